"""Claim what is due, and look for what will be.

The clock is wrapped in a sub-select so that the planner may treat it as one value and use it to
bound an index scan. Differences of moments are taken as numbers: a row may hold `infinity`, which
an interval could not before PostgreSQL 17.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple
from uuid import uuid4

from ...messages import Claimed, Lease
from .. import Cursor
from ..arrays import array_of_numbers, array_of_texts


class Lane(NamedTuple):
    """A queue to claim from: its lease's length in seconds, and the position to scan from.

    The position is `(next_attempt_at, id)` of a row that need not be looked at again, the moment
    in seconds since 1970; the default lies before every row.
    """

    queue: str
    lease_ttl: float
    low_at: float = float("-inf")
    low_id: int = -(2**63)


# Each lane is a queue with the position to scan from. The lateral scan walks the claim index in
# order and the outer LIMIT stops it without a sort, so nothing is locked that is not claimed.
# The position is kept a slack behind the clock, so that rows of slow transactions are seen.
# MATERIALIZED keeps a nested loop from running the scan again, which would claim too much.
# The limit of a lane is a sub-select, which the planner takes for a tenth of what it expects: with
# the number itself it would, before the first ANALYZE, read and sort all of a queue.
# What is picked is locked, so it is changed where it lies: at a look for its id, a planner that
# takes the table for empty, as it is whenever a worker keeps up, might read all of it. A row that
# somebody has changed since the statement began lies elsewhere, and is left to the next claim.
# ONLY, since rows of two tables share a place, and a site may let an archive inherit from ours.
CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT candidate.place
    FROM unnest(
        %(queues)s::text[], %(lease_ttls)s::float8[], %(low_ats)s::float8[], %(low_ids)s::bigint[]
    ) WITH ORDINALITY AS lane (queue, lease_ttl, low_at, low_id, rank)
    CROSS JOIN LATERAL (
        SELECT ctid AS place
        FROM ONLY django_outbox_message
        WHERE queue = lane.queue
            AND (next_attempt_at, id) > (
                LEAST(
                    to_timestamp(lane.low_at),
                    (SELECT clock_timestamp()) - %(slack)s * interval '1 second'
                ),
                lane.low_id
            )
            AND next_attempt_at <=
                (SELECT clock_timestamp() + %(ahead)s * interval '1 second')
            AND (lease_expires_at IS NULL OR lease_expires_at < (SELECT clock_timestamp()))
        ORDER BY next_attempt_at, id
        LIMIT (SELECT %(limit)s)
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    LIMIT %(limit)s
)
UPDATE ONLY django_outbox_message AS message
SET lease_token = %(token)s,
    lease_expires_at = clock_timestamp() + interval '1 second'
        * (%(lease_ttls)s::float8[])[array_position(%(queues)s::text[], message.queue::text)],
    leased_by = %(worker_id)s,
    deliveries_count = LEAST(message.deliveries_count, 2147483646) + 1
WHERE message.ctid = ANY (ARRAY(SELECT place FROM picked))
RETURNING
    message.id, message.message_id, message.payload, message.headers::text,
    message.correlation_id, message.timer_id, message.max_attempts, message.attempts_count,
    message.deliveries_count,
    date_part('epoch', message.created_at),
    CASE WHEN isfinite(message.first_attempt_at)
        THEN date_part('epoch', clock_timestamp() - message.first_attempt_at)
    END,
    COALESCE(
        message.expires_at <= clock_timestamp() + %(ahead)s * interval '1 second', false
    ),
    date_part('epoch', message.next_attempt_at),
    array_position(%(queues)s::text[], message.queue::text)
"""


_IN_ORDER = attrgetter("rank", "due_at", "id")


def claim(
    cursor: Cursor,
    lanes: Sequence[Lane],
    *,
    limit: int,
    worker_id: str,
    slack: float = 0.0,
    ahead: float = 0.0,
) -> list[Claimed]:
    """Lease up to `limit` due messages, lane by lane in the order given, and return them so.

    What was due up to `slack` seconds ago is seen even if it lies before a lane's position. What is
    due or expires within `ahead` seconds counts as due or expired.
    """
    token = str(uuid4())
    cursor.execute(
        CLAIM,
        {
            "queues": array_of_texts(lane.queue for lane in lanes),
            "lease_ttls": array_of_numbers(lane.lease_ttl for lane in lanes),
            "low_ats": array_of_numbers(lane.low_at for lane in lanes),
            "low_ids": array_of_numbers(lane.low_id for lane in lanes),
            "limit": limit,
            "token": token,
            "worker_id": worker_id,
            "slack": slack,
            "ahead": ahead,
        },
    )
    claimed = [
        Claimed._make((*row, lanes[row[-1] - 1].queue, Lease(row[0], token)))
        for row in cursor.fetchall()
        if row[-1] is not None  # a trigger of somebody's has moved it to a queue that is not ours
    ]
    claimed.sort(key=_IN_ORDER)
    return claimed


SOONEST = """
SELECT
    min(extract(epoch FROM candidate.next_attempt_at)::float8)
    - extract(epoch FROM clock_timestamp())::float8
FROM unnest(%(queues)s::text[]) AS lane (queue)
CROSS JOIN LATERAL (
    SELECT next_attempt_at
    FROM ONLY django_outbox_message
    WHERE queue = lane.queue
        AND next_attempt_at >=
            CASE WHEN %(since)s::float8 IS NULL THEN '-infinity'
                ELSE (SELECT clock_timestamp() - %(since)s::float8 * interval '1 second')
            END
        AND (lease_expires_at IS NULL OR lease_expires_at < (SELECT clock_timestamp()))
    ORDER BY next_attempt_at, id
    LIMIT 1
) AS candidate
"""


def soonest(cursor: Cursor, queues: Sequence[str], *, since: float | None) -> float | None:
    """Return the seconds until the next message is due, negative if it is; None if none waits.

    With `since` only what became due in so many last seconds counts, and what is still to come.
    """
    cursor.execute(SOONEST, {"queues": list(queues), "since": since})
    seconds: float | None = cursor.fetchone()[0]
    return seconds


FIRST_DUE = """
SELECT lane.queue, candidate.id
FROM unnest(%(queues)s::text[]) AS lane (queue)
CROSS JOIN LATERAL (
    SELECT next_attempt_at, id
    FROM ONLY django_outbox_message
    WHERE queue = lane.queue
        AND next_attempt_at <= (SELECT clock_timestamp() + %(ahead)s * interval '1 second')
        AND (lease_expires_at IS NULL OR lease_expires_at < (SELECT clock_timestamp()))
    ORDER BY next_attempt_at, id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
) AS candidate
ORDER BY candidate.next_attempt_at, candidate.id
LIMIT 1
"""


def first_due(cursor: Cursor, queues: Sequence[str], *, ahead: float) -> str | None:
    """Return the queue whose message is to be claimed first; None if nothing is free and due."""
    cursor.execute(FIRST_DUE, {"queues": list(queues), "ahead": ahead})
    row = cursor.fetchone()
    return None if row is None else row[0]


def first_of(cursor: Cursor, queue: str) -> int | None:
    """Return the id of the queue's message that is to be claimed first; None if there is none."""
    cursor.execute(FIRST_DUE, {"queues": [queue], "ahead": 0.0})
    row = cursor.fetchone()
    return None if row is None else row[1]
