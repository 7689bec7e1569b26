"""The statements on `django_outbox_message`.

A message is inserted, claimed under a fresh token, and then settled by whoever has that token:
every terminal write matches `id AND lease_token`. Moments are read from `clock_timestamp()`, since
`now()` stands still inside the transactions of callers; it is wrapped in a sub-select so that the
planner may treat it as one value and use it to bound an index scan. Differences of moments are
taken as numbers: a row may hold `infinity`, which an interval could not before PostgreSQL 17. And
durations come as seconds: an interval of days would follow the session's time zone through DST.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

from ..messages import Again, Bury, Claimed, Draft, Lease, Release
from . import Cursor

INSERT = """
WITH stored AS (
    INSERT INTO django_outbox_message
        (queue, payload, headers, correlation_id, max_attempts, next_attempt_at, expires_at)
    SELECT
        %(queue)s, %(body)s, %(headers)s::jsonb, %(correlation_id)s, %(max_attempts)s::integer,
        deadline.at, deadline.at + %(expires_in)s::float8 * interval '1 second'
    FROM (
        SELECT LEAST(
            COALESCE(
                %(activate_at)s::timestamptz,
                clock_timestamp() + %(activate_in)s * interval '1 second'
            ),
            '9999-12-31 23:59:59.999999Z'
        ) AS at
    ) AS deadline
    RETURNING id, queue, next_attempt_at
)
SELECT
    id,
    CASE WHEN %(notify)s AND next_attempt_at <= clock_timestamp()
        THEN pg_notify('django_outbox', queue)
    END
FROM stored
"""

INSERT_TIMER = """
WITH stored AS (
    INSERT INTO django_outbox_message
        (queue, payload, headers, correlation_id, timer_id, max_attempts,
         next_attempt_at, expires_at)
    SELECT
        %(queue)s, %(body)s, %(headers)s::jsonb, %(correlation_id)s, %(timer_id)s,
        %(max_attempts)s::integer,
        deadline.at, deadline.at + %(expires_in)s::float8 * interval '1 second'
    FROM (
        SELECT LEAST(
            COALESCE(
                %(activate_at)s::timestamptz,
                clock_timestamp() + %(activate_in)s * interval '1 second'
            ),
            '9999-12-31 23:59:59.999999Z'
        ) AS at
    ) AS deadline
    ON CONFLICT (queue, timer_id) WHERE timer_id IS NOT NULL DO NOTHING
    RETURNING id, queue, next_attempt_at
)
SELECT
    id,
    CASE WHEN %(notify)s AND next_attempt_at <= clock_timestamp()
        THEN pg_notify('django_outbox', queue)
    END
FROM stored
"""

# A pending timer takes the new deadline, and with it the new content and a fresh start, when it is
# to be replaced or when the new deadline is strictly later. A leased one is left to its worker.
# That it has the deadline and the correlation id of this statement shows that it took them.
MOVE_TIMER = """
WITH deadline AS MATERIALIZED (
    SELECT LEAST(
        COALESCE(
                %(activate_at)s::timestamptz,
                clock_timestamp() + %(activate_in)s * interval '1 second'
            ),
        '9999-12-31 23:59:59.999999Z'
    ) AS at
),
stored AS (
    INSERT INTO django_outbox_message AS live
        (queue, payload, headers, correlation_id, timer_id, max_attempts,
         next_attempt_at, expires_at)
    SELECT
        %(queue)s, %(body)s, %(headers)s::jsonb, %(correlation_id)s, %(timer_id)s,
        %(max_attempts)s::integer,
        deadline.at, deadline.at + %(expires_in)s::float8 * interval '1 second'
    FROM deadline
    ON CONFLICT (queue, timer_id) WHERE timer_id IS NOT NULL DO UPDATE SET
        (payload, headers, correlation_id, max_attempts, next_attempt_at, expires_at,
         attempts_count, first_attempt_at, last_attempt_at, last_error) = (
            SELECT
                version.payload, version.headers, version.correlation_id, version.max_attempts,
                version.next_attempt_at, version.expires_at, version.attempts_count,
                version.first_attempt_at, version.last_attempt_at, version.last_error
            FROM (VALUES
                (true, excluded.payload, excluded.headers, excluded.correlation_id,
                 excluded.max_attempts, excluded.next_attempt_at, excluded.expires_at,
                 0, NULL, NULL, NULL),
                (false, live.payload, live.headers, live.correlation_id,
                 live.max_attempts, live.next_attempt_at, live.expires_at,
                 live.attempts_count, live.first_attempt_at, live.last_attempt_at,
                 live.last_error)
            ) AS version
                (is_new, payload, headers, correlation_id, max_attempts, next_attempt_at,
                 expires_at, attempts_count, first_attempt_at, last_attempt_at, last_error)
            WHERE version.is_new
                = (%(replace)s OR excluded.next_attempt_at > live.next_attempt_at)
        )
    WHERE live.lease_token IS NULL
    RETURNING live.id, live.queue, live.next_attempt_at, live.correlation_id
)
SELECT
    stored.id,
    CASE
        WHEN %(notify)s
            AND stored.next_attempt_at = deadline.at
            AND stored.correlation_id = %(correlation_id)s
            AND stored.next_attempt_at <= clock_timestamp()
        THEN pg_notify('django_outbox', stored.queue)
    END
FROM stored, deadline
"""

INSERT_MANY = """
WITH stored AS (
    INSERT INTO django_outbox_message
        (queue, payload, headers, correlation_id, max_attempts, next_attempt_at, expires_at)
    SELECT
        %(queue)s, draft.body, draft.headers::jsonb, draft.correlation_id,
        %(max_attempts)s::integer,
        deadline.at, deadline.at + %(expires_in)s::float8 * interval '1 second'
    FROM (
        SELECT LEAST(
            COALESCE(
                %(activate_at)s::timestamptz,
                clock_timestamp() + %(activate_in)s * interval '1 second'
            ),
            '9999-12-31 23:59:59.999999Z'
        ) AS at
    ) AS deadline
    CROSS JOIN unnest(%(bodies)s::bytea[], %(headers)s::text[], %(correlation_ids)s::text[])
        WITH ORDINALITY AS draft (body, headers, correlation_id, position)
    ORDER BY draft.position
    RETURNING id, next_attempt_at
),
announced AS MATERIALIZED (
    SELECT pg_notify('django_outbox', %(queue)s)
    FROM stored
    WHERE %(notify)s AND next_attempt_at <= clock_timestamp()
    LIMIT 1
)
SELECT id, (SELECT count(*) FROM announced) FROM stored ORDER BY id
"""

CANCEL_TIMER = """
DELETE FROM django_outbox_message
WHERE queue = %(queue)s AND timer_id = %(timer_id)s AND lease_token IS NULL
RETURNING id
"""

# Each lane is a queue with the position to scan from. The lateral scan walks the claim index in
# order and the outer LIMIT stops it without a sort, so nothing is locked that is not claimed.
# The position is kept ten seconds behind the clock, so that rows of slow transactions are seen.
# MATERIALIZED keeps a nested loop from running the scan again, which would claim too much.
CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT candidate.id, lane.lease_ttl, lane.rank
    FROM unnest(
        %(queues)s::text[], %(lease_ttls)s::float8[], %(low_ats)s::float8[], %(low_ids)s::bigint[]
    ) WITH ORDINALITY AS lane (queue, lease_ttl, low_at, low_id, rank)
    CROSS JOIN LATERAL (
        SELECT id
        FROM django_outbox_message
        WHERE queue = lane.queue
            AND (next_attempt_at, id) > (
                LEAST(
                    to_timestamp(lane.low_at),
                    (SELECT clock_timestamp()) - interval '10 seconds'
                ),
                lane.low_id
            )
            AND next_attempt_at <=
                (SELECT clock_timestamp() + %(ahead)s * interval '1 second')
            AND (lease_expires_at IS NULL OR lease_expires_at < (SELECT clock_timestamp()))
        ORDER BY next_attempt_at, id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    LIMIT %(limit)s
)
UPDATE django_outbox_message AS message
SET lease_token = %(token)s,
    lease_expires_at = clock_timestamp() + picked.lease_ttl * interval '1 second',
    leased_by = %(worker_id)s,
    deliveries_count = LEAST(message.deliveries_count, 2147483646) + 1
FROM picked
WHERE message.id = picked.id
RETURNING
    message.id, message.message_id, message.queue, message.payload, message.headers::text,
    message.correlation_id, message.timer_id, message.max_attempts, message.attempts_count,
    message.deliveries_count,
    extract(epoch FROM message.created_at)::float8,
    CASE WHEN isfinite(message.first_attempt_at)
        THEN extract(epoch FROM clock_timestamp() - message.first_attempt_at)::float8
    END,
    COALESCE(
        message.expires_at <= clock_timestamp() + %(ahead)s * interval '1 second', false
    ),
    extract(epoch FROM message.next_attempt_at)::float8,
    picked.rank
"""

SOONEST = """
SELECT
    min(extract(epoch FROM candidate.next_attempt_at)::float8)
    - extract(epoch FROM clock_timestamp())::float8
FROM unnest(%(queues)s::text[]) AS lane (queue)
CROSS JOIN LATERAL (
    SELECT next_attempt_at
    FROM django_outbox_message
    WHERE queue = lane.queue
        AND next_attempt_at >
            CASE WHEN %(overdue)s THEN '-infinity' ELSE (SELECT clock_timestamp()) END
        AND (lease_expires_at IS NULL OR lease_expires_at < (SELECT clock_timestamp()))
    ORDER BY next_attempt_at, id
    LIMIT 1
) AS candidate
"""

FIRST_DUE = """
SELECT queue
FROM django_outbox_message
WHERE queue = ANY(%(queues)s)
    AND next_attempt_at <= clock_timestamp() + %(ahead)s * interval '1 second'
    AND (lease_expires_at IS NULL OR lease_expires_at < clock_timestamp())
ORDER BY next_attempt_at, id
LIMIT 1
"""

LIVE = """
SELECT
    id, message_id, queue, payload, headers::text, correlation_id, timer_id,
    attempts_count, deliveries_count,
    extract(epoch FROM created_at)::float8,
    extract(epoch FROM next_attempt_at)::float8,
    extract(epoch FROM expires_at)::float8
FROM django_outbox_message
ORDER BY next_attempt_at, id
"""

# A publisher that extends a timer holds its row until it commits. The worker's loop must not stand
# still for that, so it waits a moment at most; the sub-select is a one-time filter, which runs
# before the first row is locked, and the setting ends with the statement's own transaction.
COMPLETE = """
DELETE FROM django_outbox_message AS message
USING unnest(%(ids)s::bigint[], %(tokens)s::uuid[]) AS lease (id, token)
WHERE message.id = lease.id
    AND message.lease_token = lease.token
    AND (SELECT set_config('lock_timeout', '200ms', true)) IS NOT NULL
RETURNING message.id
"""

COMPLETE_UNLOCKED = """
WITH held AS MATERIALIZED (
    SELECT message.id
    FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[]) AS lease (id, token)
    JOIN django_outbox_message AS message
        ON message.id = lease.id AND message.lease_token = lease.token
    FOR UPDATE OF message SKIP LOCKED
)
DELETE FROM django_outbox_message AS message USING held WHERE message.id = held.id
RETURNING message.id
"""

COMPLETE_ONE = """
DELETE FROM django_outbox_message WHERE id = %(id)s AND lease_token = %(token)s RETURNING id
"""

RETRY = """
WITH held AS MATERIALIZED (
    SELECT message.id, failure.delay, failure.error
    FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[], %(delays)s::float8[], %(errors)s::text[])
        AS failure (id, token, delay, error)
    JOIN django_outbox_message AS message
        ON message.id = failure.id AND message.lease_token = failure.token
    FOR UPDATE OF message SKIP LOCKED
)
UPDATE django_outbox_message AS message
SET next_attempt_at = clock.now + held.delay * interval '1 second',
    attempts_count = LEAST(message.attempts_count, 2147483646) + 1,
    first_attempt_at = COALESCE(message.first_attempt_at, clock.now),
    last_attempt_at = clock.now,
    last_error = held.error,
    lease_token = NULL,
    lease_expires_at = NULL,
    leased_by = NULL
FROM held, (SELECT clock_timestamp() AS now) AS clock
WHERE message.id = held.id
RETURNING message.id
"""

# One statement: if the letter cannot be inserted, the message is still there. What is buried
# without an attempt keeps the error of its last one.
BURY = """
WITH held AS MATERIALIZED (
    SELECT
        message.id, burial.reason, burial.attempted, burial.exception_class, burial.error,
        burial.fingerprint
    FROM unnest(
        %(ids)s::bigint[], %(tokens)s::uuid[], %(reasons)s::text[], %(attempted)s::boolean[],
        %(exception_classes)s::text[], %(errors)s::text[], %(fingerprints)s::text[]
    ) AS burial (id, token, reason, attempted, exception_class, error, fingerprint)
    JOIN django_outbox_message AS message
        ON message.id = burial.id AND message.lease_token = burial.token
    FOR UPDATE OF message SKIP LOCKED
),
removed AS (
    DELETE FROM django_outbox_message AS message
    USING held
    WHERE message.id = held.id
    RETURNING message.*, held.reason, held.attempted, held.exception_class, held.error,
        held.fingerprint
)
INSERT INTO django_outbox_dead_letter
    (original_id, message_id, queue, payload, headers, correlation_id, timer_id, created_at,
     first_attempt_at, last_attempt_at, attempts_count, deliveries_count, failed_at,
     failure_reason, exception_class, last_exception, fingerprint)
SELECT
    id, message_id, queue, payload, headers, correlation_id, timer_id, created_at,
    CASE WHEN attempted THEN COALESCE(first_attempt_at, clock.now) ELSE first_attempt_at END,
    CASE WHEN attempted THEN clock.now ELSE last_attempt_at END,
    CASE WHEN attempted THEN LEAST(attempts_count, 2147483646) + 1 ELSE attempts_count END,
    deliveries_count, clock.now, reason, exception_class,
    CASE WHEN attempted THEN error ELSE last_error END, fingerprint
FROM removed, (SELECT clock_timestamp() AS now) AS clock
RETURNING original_id
"""

RELEASE = """
WITH held AS MATERIALIZED (
    SELECT message.id, handed_back.refund, handed_back.delay
    FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[], %(refunds)s::int[], %(delays)s::float8[])
        AS handed_back (id, token, refund, delay)
    JOIN django_outbox_message AS message
        ON message.id = handed_back.id AND message.lease_token = handed_back.token
    FOR UPDATE OF message SKIP LOCKED
),
released AS (
    UPDATE django_outbox_message AS message
    SET lease_token = NULL,
        lease_expires_at = NULL,
        leased_by = NULL,
        deliveries_count = GREATEST(message.deliveries_count - held.refund, 0),
        next_attempt_at = COALESCE(
            clock_timestamp() + held.delay * interval '1 second', message.next_attempt_at
        )
    FROM held
    WHERE message.id = held.id
    RETURNING message.id, message.queue, message.next_attempt_at
)
SELECT
    id,
    CASE WHEN %(notify)s AND next_attempt_at <= clock_timestamp()
        THEN pg_notify('django_outbox', queue)
    END
FROM released
"""

RENEW = """
WITH held AS MATERIALIZED (
    SELECT message.id, lease.ttl
    FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[], %(ttls)s::float8[])
        AS lease (id, token, ttl)
    JOIN django_outbox_message AS message
        ON message.id = lease.id AND message.lease_token = lease.token
    FOR UPDATE OF message SKIP LOCKED
)
UPDATE django_outbox_message AS message
SET lease_expires_at = clock_timestamp() + held.ttl * interval '1 second'
FROM held
WHERE message.id = held.id
RETURNING message.id
"""

STILL_HELD = """
SELECT message.id
FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[]) AS lease (id, token)
JOIN django_outbox_message AS message
    ON message.id = lease.id AND message.lease_token = lease.token
"""

LOCK = """
SELECT id FROM django_outbox_message WHERE id = %(id)s AND lease_token = %(token)s FOR UPDATE
"""

COUNTS = """
SELECT
    queue,
    count(*) FILTER (WHERE next_attempt_at <= now()
        AND (lease_expires_at IS NULL OR lease_expires_at < now())),
    count(*) FILTER (WHERE lease_expires_at >= now()),
    count(*) FILTER (WHERE next_attempt_at > now() AND attempts_count = 0
        AND lease_expires_at IS NULL),
    count(*) FILTER (WHERE next_attempt_at > now() AND attempts_count > 0
        AND lease_expires_at IS NULL),
    extract(epoch FROM now())::float8
        - extract(epoch FROM min(next_attempt_at) FILTER (WHERE next_attempt_at <= now()
            AND (lease_expires_at IS NULL OR lease_expires_at < now())))::float8
FROM django_outbox_message
GROUP BY queue
ORDER BY queue
"""


class Lane(NamedTuple):
    """A queue to claim from: its lease's length in seconds, and the position to scan from.

    The position is `(next_attempt_at, id)` of a row that need not be looked at again, the moment
    in seconds since 1970; the default lies before every row.
    """

    queue: str
    lease_ttl: float
    low_at: float = float("-inf")
    low_id: int = -(2**63)


def insert(cursor: Cursor, draft: Draft, *, notify: bool) -> int | None:
    """Store the draft and return its id; None if its timer is there already and stays as it is."""
    params = {
        "queue": draft.queue,
        "body": draft.body,
        "headers": json.dumps(draft.headers),
        "correlation_id": draft.correlation_id,
        "timer_id": draft.timer_id,
        "max_attempts": draft.max_attempts,
        "activate_at": draft.activate_at,
        "activate_in": draft.activate_in.total_seconds(),
        "expires_in": _seconds(draft.expires_in),
        "notify": notify,
    }
    if draft.timer_id is None:
        cursor.execute(INSERT, params)
    elif draft.timer_conflict == "ignore":
        cursor.execute(INSERT_TIMER, params)
    else:
        cursor.execute(MOVE_TIMER, {**params, "replace": draft.timer_conflict == "replace"})
    row = cursor.fetchone()
    return None if row is None else row[0]


def insert_many(cursor: Cursor, drafts: Sequence[Draft], *, notify: bool) -> list[int]:
    """Store drafts that differ only in content and return their ids, in the same order."""
    common = drafts[0]
    cursor.execute(
        INSERT_MANY,
        {
            "queue": common.queue,
            "max_attempts": common.max_attempts,
            "activate_at": common.activate_at,
            "activate_in": common.activate_in.total_seconds(),
            "expires_in": _seconds(common.expires_in),
            "bodies": [draft.body for draft in drafts],
            "headers": [json.dumps(draft.headers) for draft in drafts],
            "correlation_ids": [draft.correlation_id for draft in drafts],
            "notify": notify,
        },
    )
    return [row[0] for row in cursor.fetchall()]


def cancel_timer(cursor: Cursor, *, queue: str, timer_id: str) -> bool:
    """Delete the timer unless it is leased; tell whether there was one."""
    cursor.execute(CANCEL_TIMER, {"queue": queue, "timer_id": timer_id})
    return cursor.fetchone() is not None


def claim(
    cursor: Cursor, lanes: Sequence[Lane], *, limit: int, worker_id: str, ahead: float = 0.0
) -> list[Claimed]:
    """Lease up to `limit` due messages, lane by lane in the order given, and return them so.

    What is due or expires within `ahead` seconds counts as due or expired.
    """
    token = uuid4()
    cursor.execute(
        CLAIM,
        {
            "queues": [lane.queue for lane in lanes],
            "lease_ttls": [lane.lease_ttl for lane in lanes],
            "low_ats": [lane.low_at for lane in lanes],
            "low_ids": [lane.low_id for lane in lanes],
            "limit": limit,
            "token": token,
            "worker_id": worker_id,
            "ahead": ahead,
        },
    )
    claimed = [Claimed._make((*row, token)) for row in cursor.fetchall()]
    claimed.sort(key=lambda row: (row.rank, row.due_at, row.id))
    return claimed


def soonest(cursor: Cursor, queues: Sequence[str], *, overdue: bool) -> float | None:
    """Return the seconds until the next message is due, None if none waits.

    Without `overdue` only what is still to come counts, so the answer is positive.
    """
    cursor.execute(SOONEST, {"queues": list(queues), "overdue": overdue})
    seconds: float | None = cursor.fetchone()[0]
    return seconds


def complete(cursor: Cursor, leases: Sequence[Lease]) -> set[int]:
    """Remove delivered messages and return the ids removed; wait 200 ms at most for a lock."""
    cursor.execute(COMPLETE, _leases(leases))
    return _ids(cursor)


def complete_unlocked(cursor: Cursor, leases: Sequence[Lease]) -> set[int]:
    """Remove those of the delivered messages whose rows nobody else has locked."""
    cursor.execute(COMPLETE_UNLOCKED, _leases(leases))
    return _ids(cursor)


def complete_one(cursor: Cursor, lease: Lease) -> bool:
    """Remove one delivered message in the caller's transaction; False if the lease is lost."""
    cursor.execute(COMPLETE_ONE, lease._asdict())
    return cursor.fetchone() is not None


def retry(cursor: Cursor, leases: Sequence[Lease], failures: Sequence[Again]) -> set[int]:
    """Count a failed attempt and make each message due again after its delay."""
    cursor.execute(
        RETRY,
        {
            **_leases(leases),
            "delays": [failure.delay for failure in failures],
            "errors": [failure.error for failure in failures],
        },
    )
    return _ids(cursor)


def bury(cursor: Cursor, leases: Sequence[Lease], burials: Sequence[Bury]) -> set[int]:
    """Move messages to the dead letters."""
    cursor.execute(
        BURY,
        {
            **_leases(leases),
            "reasons": [burial.reason for burial in burials],
            "attempted": [burial.attempted for burial in burials],
            "exception_classes": [burial.exception_class for burial in burials],
            "errors": [burial.error for burial in burials],
            "fingerprints": [burial.fingerprint for burial in burials],
        },
    )
    return _ids(cursor)


def release(
    cursor: Cursor, leases: Sequence[Lease], releases: Sequence[Release], *, notify: bool
) -> set[int]:
    """Hand messages back; a refund takes this delivery off the count, no delay leaves the due."""
    cursor.execute(
        RELEASE,
        {
            **_leases(leases),
            "refunds": [int(release.refund) for release in releases],
            "delays": [release.delay for release in releases],
            "notify": notify,
        },
    )
    return _ids(cursor)


def renew(cursor: Cursor, leases: Sequence[Lease], ttls: Sequence[float]) -> set[int]:
    """Let each lease last its `ttl` in seconds from now and return the ids renewed."""
    cursor.execute(RENEW, {**_leases(leases), "ttls": list(ttls)})
    return _ids(cursor)


def still_held(cursor: Cursor, leases: Sequence[Lease]) -> set[int]:
    """Return the ids whose lease stands; those another transaction has locked included."""
    cursor.execute(STILL_HELD, _leases(leases))
    return _ids(cursor)


def lock(cursor: Cursor, lease: Lease) -> bool:
    """Lock the message's row for the caller's transaction; False if the lease is lost."""
    cursor.execute(LOCK, lease._asdict())
    return cursor.fetchone() is not None


class Stored(NamedTuple):
    """A live message as it stands; moments in seconds since 1970."""

    id: int
    message_id: UUID
    queue: str
    body: bytes
    headers: str
    correlation_id: str
    timer_id: str | None
    attempts_count: int
    deliveries_count: int
    created_at: float
    next_attempt_at: float
    expires_at: float | None


def first_due(cursor: Cursor, queues: Sequence[str], *, ahead: float) -> str | None:
    """Return the queue whose message is to be claimed first; None if nothing is due."""
    cursor.execute(FIRST_DUE, {"queues": list(queues), "ahead": ahead})
    row = cursor.fetchone()
    return None if row is None else row[0]


def live(cursor: Cursor) -> list[Stored]:
    """Return all messages in the order of their claims."""
    cursor.execute(LIVE, {})
    return [Stored._make(row) for row in cursor.fetchall()]


class QueueCounts(NamedTuple):
    """What one queue holds; `oldest_ready` is for how many seconds a message has been due."""

    queue: str
    ready: int
    leased: int
    scheduled: int
    retrying: int
    oldest_ready: float | None


def counts(cursor: Cursor) -> list[QueueCounts]:
    """Count the messages of every queue that has any, by state."""
    cursor.execute(COUNTS, {})
    return [QueueCounts(*row) for row in cursor.fetchall()]


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _leases(leases: Iterable[Lease]) -> dict[str, list[int] | list[UUID]]:
    leases = list(leases)
    return {"ids": [lease.id for lease in leases], "tokens": [lease.token for lease in leases]}


def _ids(cursor: Cursor) -> set[int]:
    return {row[0] for row in cursor.fetchall()}
