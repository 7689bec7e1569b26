"""Settle leased messages: complete, retry, bury or release them; renew their leases.

Every write matches `id AND lease_token` and returns the ids it has matched. Statements for many
messages pass over rows that somebody else has locked; `still_held` tells those from the lost.

A site may let another table inherit from that of the messages, an archive say. `ONLY` keeps the
statements to ours: what has been locked is changed by its place, which rows of two tables share.

They take arrays in the order of the ids: so a row's place in them is found by halving, where
`array_position` would walk along them, for a twentieth of a busy worker's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TypeVar

from ...messages import Again, Bury, Lease, Release
from .. import Cursor
from ..arrays import array_of_numbers

T = TypeVar("T")

_PLACE = "width_bucket(message.id, %(ids)s::bigint[])"

_STANDS = f"""
    message.id = ANY (%(ids)s::bigint[])
    AND message.lease_token = (%(tokens)s::uuid[])[{_PLACE}]
"""

_UNLOCKED = f"""
WITH held AS MATERIALIZED (
    SELECT message.ctid AS place
    FROM ONLY django_outbox_message AS message
    WHERE {_STANDS}
    FOR UPDATE SKIP LOCKED
)
"""

# A publisher that extends a timer holds its row until it commits. The worker's loop must not stand
# still for that, so it waits a moment at most; the sub-select is a one-time filter, which runs
# before the first row is locked, and the setting ends with the statement's own transaction.
COMPLETE = f"""
DELETE FROM ONLY django_outbox_message AS message
WHERE {_STANDS}
    AND (SELECT set_config('lock_timeout', '200ms', true)) IS NOT NULL
RETURNING message.id
"""


def complete(cursor: Cursor, leases: Sequence[Lease]) -> set[int]:
    """Remove delivered messages and return the ids removed; wait 200 ms at most for a lock."""
    cursor.execute(COMPLETE, _leases(leases))
    return _ids(cursor)


COMPLETE_UNLOCKED = f"""
{_UNLOCKED}
DELETE FROM ONLY django_outbox_message AS message
WHERE message.ctid = ANY (ARRAY(SELECT place FROM held))
RETURNING message.id
"""


def complete_unlocked(cursor: Cursor, leases: Sequence[Lease]) -> set[int]:
    """Remove those of the delivered messages whose rows nobody else has locked."""
    cursor.execute(COMPLETE_UNLOCKED, _leases(leases))
    return _ids(cursor)


COMPLETE_HERE = f"""
DELETE FROM ONLY django_outbox_message AS message
WHERE {_STANDS}
RETURNING message.id
"""


def complete_here(cursor: Cursor, leases: Sequence[Lease]) -> set[int]:
    """Remove delivered messages in the caller's transaction, waiting for locks on their rows."""
    cursor.execute(COMPLETE_HERE, _leases(leases))
    return _ids(cursor)


COMPLETE_ONE = """
DELETE FROM ONLY django_outbox_message WHERE id = %(id)s AND lease_token = %(token)s RETURNING id
"""


def complete_one(cursor: Cursor, lease: Lease) -> bool:
    """Remove one delivered message in the caller's transaction; False if the lease is lost."""
    cursor.execute(COMPLETE_ONE, lease._asdict())
    return cursor.fetchone() is not None


RETRY = f"""
{_UNLOCKED}
UPDATE ONLY django_outbox_message AS message
SET next_attempt_at = clock.now + interval '1 second' * (%(delays)s::float8[])[{_PLACE}],
    attempts_count = LEAST(message.attempts_count, 2147483646) + 1,
    first_attempt_at = COALESCE(message.first_attempt_at, clock.now),
    last_attempt_at = clock.now,
    last_error = (%(errors)s::text[])[{_PLACE}],
    lease_token = NULL,
    lease_expires_at = NULL,
    leased_by = NULL
FROM (SELECT clock_timestamp() AS now) AS clock
WHERE message.ctid = ANY (ARRAY(SELECT place FROM held))
RETURNING message.id
"""


def retry(cursor: Cursor, leases: Sequence[Lease], failures: Sequence[Again]) -> set[int]:
    """Count a failed attempt and make each message due again after its delay."""
    leases, failures = _in_order(leases, failures)
    cursor.execute(
        RETRY,
        {
            **_leases(leases),
            "delays": [failure.delay for failure in failures],
            "errors": [failure.error for failure in failures],
        },
    )
    return _ids(cursor)


# One statement: if the letter cannot be inserted, the message is still there; the cast at the end
# fails where a trigger passes over a letter without an error. What is buried without an attempt
# keeps the error of its last one.
BURY = f"""
{_UNLOCKED},
removed AS (
    DELETE FROM ONLY django_outbox_message AS message
    WHERE message.ctid = ANY (ARRAY(SELECT place FROM held))
    RETURNING
        message.id, message.message_id, message.queue, message.payload, message.headers,
        message.correlation_id, message.ref, message.timer_id, message.created_at,
        message.first_attempt_at, message.last_attempt_at, message.attempts_count,
        message.deliveries_count, message.last_error, {_PLACE} AS place
),
burial AS (
    SELECT
        removed.*,
        (%(reasons)s::text[])[place] AS reason,
        (%(attempted)s::boolean[])[place] AS attempted,
        (%(exception_classes)s::text[])[place] AS exception_class,
        (%(errors)s::text[])[place] AS error,
        (%(fingerprints)s::text[])[place] AS fingerprint
    FROM removed
),
buried AS (
    INSERT INTO django_outbox_dead_letter
        (original_id, message_id, queue, payload, headers, correlation_id, ref, timer_id,
         created_at, first_attempt_at, last_attempt_at, attempts_count, deliveries_count, failed_at,
         failure_reason, exception_class, last_exception, fingerprint)
    SELECT
        id, message_id, queue, payload, headers, correlation_id, ref, timer_id, created_at,
        CASE WHEN attempted THEN COALESCE(first_attempt_at, clock.now) ELSE first_attempt_at END,
        CASE WHEN attempted THEN clock.now ELSE last_attempt_at END,
        CASE WHEN attempted THEN LEAST(attempts_count, 2147483646) + 1 ELSE attempts_count END,
        deliveries_count, clock.now, reason, exception_class,
        CASE WHEN attempted THEN error ELSE last_error END, fingerprint
    FROM burial, (SELECT clock_timestamp() AS now) AS clock
    RETURNING original_id
)
SELECT original_id FROM buried
UNION ALL
SELECT (message_id || ' has no dead letter: a trigger, rule or policy keeps it out')::bigint
FROM removed
WHERE (SELECT count(*) FROM buried) < (SELECT count(*) FROM removed)
"""


def bury(cursor: Cursor, leases: Sequence[Lease], burials: Sequence[Bury]) -> set[int]:
    """Move messages to the dead letters."""
    leases, burials = _in_order(leases, burials)
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


RELEASE = f"""
{_UNLOCKED},
released AS (
    UPDATE ONLY django_outbox_message AS message
    SET lease_token = NULL,
        lease_expires_at = NULL,
        leased_by = NULL,
        deliveries_count = GREATEST(
            message.deliveries_count - (%(refunds)s::int[])[{_PLACE}], 0
        ),
        next_attempt_at = COALESCE(
            clock_timestamp() + interval '1 second' * (%(delays)s::float8[])[{_PLACE}],
            message.next_attempt_at
        )
    WHERE message.ctid = ANY (ARRAY(SELECT place FROM held))
    RETURNING message.id, message.queue, message.next_attempt_at
)
SELECT
    id,
    CASE WHEN %(notify)s AND next_attempt_at <= clock_timestamp()
        THEN pg_notify('django_outbox', queue)
    END
FROM released
"""


def release(
    cursor: Cursor, leases: Sequence[Lease], releases: Sequence[Release], *, notify: bool
) -> set[int]:
    """Hand messages back; a refund takes this delivery off the count, no delay leaves the due."""
    leases, releases = _in_order(leases, releases)
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


RENEW = f"""
{_UNLOCKED}
UPDATE ONLY django_outbox_message AS message
SET lease_expires_at = clock_timestamp() + interval '1 second'
    * (%(ttls)s::float8[])[{_PLACE}]
WHERE message.ctid = ANY (ARRAY(SELECT place FROM held))
RETURNING message.id
"""


def renew(cursor: Cursor, leases: Sequence[Lease], ttls: Sequence[float]) -> set[int]:
    """Let each lease last its `ttl` in seconds from now and return the ids renewed."""
    leases, ttls = _in_order(leases, ttls)
    cursor.execute(RENEW, {**_leases(leases), "ttls": array_of_numbers(ttls)})
    return _ids(cursor)


STILL_HELD = f"""
SELECT message.id
FROM ONLY django_outbox_message AS message
WHERE {_STANDS}
"""


def still_held(cursor: Cursor, leases: Sequence[Lease]) -> set[int]:
    """Return the ids whose lease stands; those another transaction has locked included."""
    cursor.execute(STILL_HELD, _leases(leases))
    return _ids(cursor)


LOCK = """
SELECT id FROM ONLY django_outbox_message WHERE id = %(id)s AND lease_token = %(token)s FOR UPDATE
"""


def lock(cursor: Cursor, lease: Lease) -> bool:
    """Lock the message's row for the caller's transaction; False if the lease is lost."""
    cursor.execute(LOCK, lease._asdict())
    return cursor.fetchone() is not None


LOCK_FREE = f"{LOCK} SKIP LOCKED"


def lock_free(cursor: Cursor, lease: Lease) -> bool:
    """Lock the message's row; False if the lease is lost, or the row locked by somebody else."""
    cursor.execute(LOCK_FREE, lease._asdict())
    return cursor.fetchone() is not None


def _in_order(leases: Sequence[Lease], others: Sequence[T]) -> tuple[list[Lease], list[T]]:
    """Put the leases into the order of their ids, and what belongs to each with it."""
    pairs = sorted(zip(leases, others, strict=True), key=itemgetter(0))
    return [lease for lease, _ in pairs], [other for _, other in pairs]


def _leases(leases: Iterable[Lease]) -> dict[str, str]:
    """Return the parameters of the leases."""
    leases = sorted(leases)
    tokens = ",".join([lease.token for lease in leases])
    return {
        "ids": array_of_numbers([lease.id for lease in leases]),
        "tokens": f"{{{tokens}}}",
    }


def _ids(cursor: Cursor) -> set[int]:
    return {row[0] for row in cursor.fetchall()}
