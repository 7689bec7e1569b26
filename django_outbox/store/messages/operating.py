"""Find messages, and do to them what operators may: run now, cancel, release.

Nothing here may read the whole table. It has the claim index, the primary key and two partial
indexes, and each search goes along one of them and ends after so many rows.

What an operator does is decided by the statement itself, under a lock on the row: a message that a
worker has claimed since the page was shown is not touched. Rows that somebody else has locked are
passed over, so that no page waits for a transaction of the site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple
from uuid import UUID

from .. import Cursor

State = Literal["ready", "leased", "scheduled", "retrying", "expired"]

# A loose scan: each step goes down the claim index to the first row of the next queue.
# Whatever goes along that index says something of the queue.
QUEUES = """
WITH RECURSIVE found AS (
    (
        SELECT queue, 1 AS position FROM ONLY django_outbox_message
        WHERE queue >= ''
        ORDER BY queue
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue, found.position + 1
    FROM found
    CROSS JOIN LATERAL (
        SELECT queue FROM ONLY django_outbox_message
        WHERE queue > found.queue
        ORDER BY queue
        LIMIT 1
    ) AS following
    WHERE found.position < %(most)s
)
SELECT queue FROM found
"""


def queues(cursor: Cursor, *, most: int) -> list[str]:
    """Return the queues that have a message, in the order of the index, `most` of them."""
    cursor.execute(QUEUES, {"most": most})
    return [row[0] for row in cursor.fetchall()]


class Found(NamedTuple):
    """Ids of messages, and whether there may be others behind what has been looked at."""

    ids: list[int]
    is_partial: bool


# Each lane goes along the claim index from where the state can begin. The row after its share
# comes back as a mark that the lane has been cut.
IN_STATE = """
SELECT looked_at.id, looked_at.is_past
FROM unnest(%(queues)s::text[]) AS lane (queue)
CROSS JOIN LATERAL (
    SELECT head.*, row_number() OVER () > %(share)s AS is_past
    FROM (
        SELECT id, next_attempt_at, attempts_count, expires_at, lease_expires_at
        FROM ONLY django_outbox_message
        WHERE queue = lane.queue
            AND next_attempt_at > CASE WHEN %(state)s IN ('scheduled', 'retrying')
                THEN (SELECT clock_timestamp()) ELSE '-infinity' END
            AND next_attempt_at <= CASE WHEN %(state)s IN ('ready', 'leased')
                THEN (SELECT clock_timestamp()) ELSE 'infinity' END
        ORDER BY next_attempt_at, id
        LIMIT %(share)s + 1
    ) AS head
) AS looked_at
WHERE looked_at.is_past OR %(state)s = CASE
    WHEN looked_at.lease_expires_at >= (SELECT clock_timestamp()) THEN 'leased'
    WHEN looked_at.expires_at <= (SELECT clock_timestamp()) THEN 'expired'
    WHEN looked_at.next_attempt_at <= (SELECT clock_timestamp()) THEN 'ready'
    WHEN looked_at.attempts_count > 0 THEN 'retrying'
    ELSE 'scheduled'
END
LIMIT %(most)s + 1
"""


def in_state(
    cursor: Cursor, state: State, queues: Sequence[str], *, look_at: int, most: int
) -> Found:
    """Return messages of these queues that are in a state, `most` of them.

    It looks at `look_at` rows altogether, an equal share of them in each queue, in claim order.
    """
    share = max(look_at // max(len(queues), 1), 1)
    cursor.execute(IN_STATE, {"queues": list(queues), "state": state, "share": share, "most": most})
    rows = cursor.fetchall()
    ids = [id_ for id_, is_past in rows if not is_past]
    return Found(ids[:most], len(rows) > most or any(is_past for _, is_past in rows))


FIND = """
(SELECT id FROM ONLY django_outbox_message WHERE id = %(id)s::bigint)
UNION
(
    SELECT id FROM ONLY django_outbox_message
    WHERE queue = ANY(%(queues)s::text[]) AND timer_id = %(text)s
    LIMIT %(most)s
)
UNION
(SELECT id FROM ONLY django_outbox_message WHERE ref = %(text)s LIMIT %(most)s)
"""


def find(
    cursor: Cursor, text: str, *, id_: int | None, queues: Sequence[str], most: int
) -> list[int]:
    """Return the messages with this id, with `text` as a timer of these queues, or as their ref."""
    cursor.execute(FIND, {"text": text, "id": id_, "queues": list(queues), "most": most})
    return [row[0] for row in cursor.fetchall()]


# Neither column has an index: what leads into every insert and delete must earn it there.
FIND_NEAR_THE_ENDS = """
SELECT id
FROM (
    (
        SELECT id, message_id, correlation_id FROM ONLY django_outbox_message
        ORDER BY id DESC
        LIMIT %(look_at)s
    )
    UNION ALL
    (
        SELECT id, message_id, correlation_id FROM ONLY django_outbox_message
        ORDER BY id
        LIMIT %(look_at)s
    )
) AS looked_at
WHERE message_id = %(message_id)s::uuid OR correlation_id = %(text)s
LIMIT %(most)s
"""


def find_near_the_ends(
    cursor: Cursor, text: str, *, message_id: UUID | None, look_at: int, most: int
) -> list[int]:
    """Return those of the newest and the oldest messages with this message or correlation id."""
    params = {"text": text, "message_id": message_id, "look_at": look_at, "most": most}
    cursor.execute(FIND_NEAR_THE_ENDS, params)
    return sorted({row[0] for row in cursor.fetchall()})


Outcome = Literal["done", "gone", "leased", "run_out", "due", "busy", "unleased", "changed", "held"]
"""How it went with one message; all but `done` have left it as it was.

There is no such message any more; a worker has a lease on it, or had one that nobody has taken off;
it is due already; somebody else is changing it; it has no lease; its lease is not the one that was
shown; its worker lives.
"""

# Whether a row may be changed is known only once it is locked; what was `seen` tells why not.
RUN_NOW = """
WITH seen AS MATERIALIZED (
    SELECT
        id, lease_token,
        lease_expires_at < clock_timestamp() AS has_run_out,
        next_attempt_at <= clock_timestamp() AS is_due
    FROM ONLY django_outbox_message
    WHERE id = ANY(%(ids)s)
),
pending AS MATERIALIZED (
    SELECT id FROM ONLY django_outbox_message
    WHERE id = ANY(%(ids)s)
        AND lease_token IS NULL
        AND next_attempt_at > clock_timestamp()
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
moved AS (
    UPDATE ONLY django_outbox_message AS message
    SET next_attempt_at = clock_timestamp()
    FROM pending
    WHERE message.id = pending.id
    RETURNING message.id, message.queue
),
announced AS MATERIALIZED (
    SELECT pg_notify('django_outbox', queue)
    FROM (SELECT DISTINCT queue FROM moved) AS due
    WHERE %(notify)s
)
SELECT
    asked.id,
    CASE
        WHEN moved.id IS NOT NULL THEN 'done'
        WHEN seen.id IS NULL THEN 'gone'
        WHEN seen.lease_token IS NOT NULL AND seen.has_run_out THEN 'run_out'
        WHEN seen.lease_token IS NOT NULL THEN 'leased'
        WHEN seen.is_due THEN 'due'
        ELSE 'busy'
    END,
    (SELECT count(*) FROM announced)
FROM unnest(%(ids)s::bigint[]) AS asked (id)
LEFT JOIN seen ON seen.id = asked.id
LEFT JOIN moved ON moved.id = asked.id
"""


def run_now(cursor: Cursor, ids: Iterable[int], *, notify: bool) -> dict[int, Outcome]:
    """Make pending messages due now."""
    cursor.execute(RUN_NOW, {"ids": list(ids), "notify": notify})
    return _outcomes(cursor)


CANCEL = """
WITH seen AS MATERIALIZED (
    SELECT id, lease_token, lease_expires_at < clock_timestamp() AS has_run_out
    FROM ONLY django_outbox_message
    WHERE id = ANY(%(ids)s)
),
pending AS MATERIALIZED (
    SELECT id FROM ONLY django_outbox_message
    WHERE id = ANY(%(ids)s) AND lease_token IS NULL
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
cancelled AS (
    DELETE FROM ONLY django_outbox_message AS message
    USING pending
    WHERE message.id = pending.id
    RETURNING message.id
)
SELECT
    asked.id,
    CASE
        WHEN cancelled.id IS NOT NULL THEN 'done'
        WHEN seen.id IS NULL THEN 'gone'
        WHEN seen.lease_token IS NOT NULL AND seen.has_run_out THEN 'run_out'
        WHEN seen.lease_token IS NOT NULL THEN 'leased'
        ELSE 'busy'
    END
FROM unnest(%(ids)s::bigint[]) AS asked (id)
LEFT JOIN seen ON seen.id = asked.id
LEFT JOIN cancelled ON cancelled.id = asked.id
"""


def cancel(cursor: Cursor, ids: Iterable[int]) -> dict[int, Outcome]:
    """Delete messages that have no lease, not even one that has run out."""
    cursor.execute(CANCEL, {"ids": list(ids)})
    return _outcomes(cursor)


# The delivery stays counted: the worker may have done part of it. If it lives after all, its own
# token no longer matches, and it finds its lease lost.
RELEASE_ABANDONED = """
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[]) AS asked (id, token)
),
seen AS MATERIALIZED (
    SELECT
        message.id, message.lease_token,
        message.lease_expires_at < clock_timestamp() OR NOT EXISTS (
            SELECT FROM django_outbox_worker AS worker
            WHERE worker.worker_id = message.leased_by
                AND worker.last_seen_at >= clock_timestamp() - %(lost_after)s * interval '1 second'
        ) AS is_abandoned
    FROM asked JOIN ONLY django_outbox_message AS message ON message.id = asked.id
),
abandoned AS MATERIALIZED (
    SELECT message.id
    FROM asked
    JOIN ONLY django_outbox_message AS message
        ON message.id = asked.id AND message.lease_token = asked.token
    WHERE message.lease_expires_at < clock_timestamp() OR NOT EXISTS (
        SELECT FROM django_outbox_worker AS worker
        WHERE worker.worker_id = message.leased_by
            AND worker.last_seen_at >= clock_timestamp() - %(lost_after)s * interval '1 second'
    )
    ORDER BY message.id
    FOR UPDATE OF message SKIP LOCKED
),
released AS (
    UPDATE ONLY django_outbox_message AS message
    SET lease_token = NULL, lease_expires_at = NULL, leased_by = NULL
    FROM abandoned
    WHERE message.id = abandoned.id
    RETURNING message.id, message.queue, message.next_attempt_at
),
announced AS MATERIALIZED (
    SELECT pg_notify('django_outbox', queue)
    FROM (
        SELECT DISTINCT queue FROM released WHERE next_attempt_at <= clock_timestamp()
    ) AS due
    WHERE %(notify)s
)
SELECT
    asked.id,
    CASE
        WHEN released.id IS NOT NULL THEN 'done'
        WHEN seen.id IS NULL THEN 'gone'
        WHEN seen.lease_token IS NULL THEN 'unleased'
        WHEN seen.lease_token = asked.token
            THEN CASE WHEN seen.is_abandoned THEN 'busy' ELSE 'held' END
        ELSE 'changed'
    END,
    (SELECT count(*) FROM announced)
FROM asked
LEFT JOIN seen ON seen.id = asked.id
LEFT JOIN released ON released.id = asked.id
"""


def release_abandoned(
    cursor: Cursor, tokens: Mapping[int, UUID | None], *, lost_after: float, notify: bool
) -> dict[int, Outcome]:
    """Take leases off messages that have run out, or whose worker is silent for `lost_after` s.

    `tokens` are the leases meant, by the id of their message; a newer one stays.
    """
    cursor.execute(
        RELEASE_ABANDONED,
        {
            "ids": list(tokens),
            "tokens": list(tokens.values()),
            "lost_after": lost_after,
            "notify": notify,
        },
    )
    return _outcomes(cursor)


def _outcomes(cursor: Cursor) -> dict[int, Outcome]:
    return {row[0]: row[1] for row in cursor.fetchall()}
