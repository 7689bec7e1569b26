"""What the overview reads of all tables together; nothing here looks at more rows than it says.

Queues are found by skipping from name to name through the indexes, and counted from their ends, so
that five million messages cost no more than the rows that are looked at. Moments are in seconds
since 1970, lengths of time in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from . import Cursor

# In the order of an index and nothing else: a planner that knows little of a table which has just
# been filled would rather read all of a queue and sort it.
READ_IN_ORDER = """
SELECT
    set_config('enable_bitmapscan', 'off', true),
    set_config('enable_seqscan', 'off', true),
    set_config('enable_sort', 'off', true),
    set_config('jit', 'off', true),
    set_config('lock_timeout', %(milliseconds)s, true),
    set_config('statement_timeout', %(milliseconds)s, true)
"""


def read_in_order(cursor: Cursor, *, seconds: float) -> None:
    """Have what follows in this transaction read by index, and end each statement after a while."""
    cursor.execute(READ_IN_ORDER, {"milliseconds": f"{int(seconds * 1000)}"})


# A DISTINCT would read every row of the table. Whatever goes along the claim index says something
# of the queue.
NAMES = """
WITH RECURSIVE live AS (
    (
        SELECT queue, 1 AS position FROM ONLY django_outbox_message
        WHERE queue >= ''
        ORDER BY queue
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue, live.position + 1
    FROM live
    CROSS JOIN LATERAL (
        SELECT queue FROM ONLY django_outbox_message
        WHERE queue > live.queue
        ORDER BY queue
        LIMIT 1
    ) AS following
    WHERE live.position < %(most)s
),
dead AS (
    (SELECT queue, 1 AS position FROM django_outbox_dead_letter ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT following.queue, dead.position + 1
    FROM dead
    CROSS JOIN LATERAL (
        SELECT queue FROM django_outbox_dead_letter
        WHERE queue > dead.queue
        ORDER BY queue
        LIMIT 1
    ) AS following
    WHERE dead.position < %(most)s
)
SELECT queue FROM live UNION SELECT queue FROM dead
"""


def names(cursor: Cursor, *, most: int) -> list[str]:
    """Return queues that have messages or dead letters: the first `most` of each."""
    cursor.execute(NAMES, {"most": most})
    return [row[0] for row in cursor.fetchall()]


class QueueGlance(NamedTuple):
    """What was seen of a queue.

    `due` and `later` are how many rows were looked at on either side of now, one more than was
    asked for if there were more; the counts below them are then the least there are.
    """

    queue: str
    due: int
    ready: int
    leased: int
    expired: int
    oldest_ready: float | None
    later: int
    scheduled: int
    retrying: int
    leased_later: int
    expired_later: int
    dead: int
    is_served: bool


# The order of the claims, oldest first: what is leased stands at the front of what is due.
GLANCES = """
WITH served AS MATERIALIZED (
    SELECT DISTINCT jsonb_array_elements_text(queues) AS queue
    FROM django_outbox_worker
    WHERE kind = 'worker'
        AND last_seen_at > clock_timestamp() - %(lost_after)s * interval '1 second'
        AND jsonb_typeof(queues) = 'array'
)
SELECT
    name.queue,
    due.looked_at, due.ready, due.leased, due.expired,
    extract(epoch FROM clock.now)::float8 - extract(epoch FROM due.oldest)::float8,
    later.looked_at, later.scheduled, later.retrying, later.leased, later.expired,
    dead.looked_at,
    EXISTS (SELECT FROM served WHERE served.queue = name.queue)
FROM (SELECT statement_timestamp() AS now) AS clock
CROSS JOIN unnest(%(names)s::text[]) AS name (queue)
CROSS JOIN LATERAL (
    SELECT
        count(*) AS looked_at,
        count(*) FILTER (WHERE is_free AND NOT is_expired) AS ready,
        count(*) FILTER (WHERE NOT is_free) AS leased,
        count(*) FILTER (WHERE is_free AND is_expired) AS expired,
        min(next_attempt_at) FILTER (WHERE is_free AND NOT is_expired) AS oldest
    FROM (
        SELECT
            next_attempt_at,
            COALESCE(expires_at <= clock.now, false) AS is_expired,
            lease_expires_at IS NULL OR lease_expires_at < clock.now AS is_free
        FROM ONLY django_outbox_message
        WHERE queue = name.queue AND next_attempt_at <= clock.now
        ORDER BY next_attempt_at, id
        LIMIT %(most)s + 1
    ) AS message
) AS due
CROSS JOIN LATERAL (
    SELECT
        count(*) AS looked_at,
        count(*) FILTER (WHERE is_free AND NOT is_expired AND attempts_count = 0) AS scheduled,
        count(*) FILTER (WHERE is_free AND NOT is_expired AND attempts_count > 0) AS retrying,
        count(*) FILTER (WHERE NOT is_free) AS leased,
        count(*) FILTER (WHERE is_free AND is_expired) AS expired
    FROM (
        SELECT
            attempts_count,
            COALESCE(expires_at <= clock.now, false) AS is_expired,
            lease_expires_at IS NULL OR lease_expires_at < clock.now AS is_free
        FROM ONLY django_outbox_message
        WHERE queue = name.queue AND next_attempt_at > clock.now
        ORDER BY next_attempt_at, id
        LIMIT %(most)s + 1
    ) AS message
) AS later
CROSS JOIN LATERAL (
    SELECT count(*) AS looked_at
    FROM (
        SELECT FROM django_outbox_dead_letter
        WHERE queue = name.queue
        ORDER BY failed_at
        LIMIT %(most)s + 1
    ) AS letter
) AS dead
ORDER BY name.queue
"""


def glances(
    cursor: Cursor, names: Sequence[str], *, most: int, lost_after: float
) -> list[QueueGlance]:
    """Look at these queues, at no more than `most` rows of each kind and one.

    A queue is served if a worker heard of in the last `lost_after` seconds serves it.
    """
    cursor.execute(GLANCES, {"names": list(names), "most": most, "lost_after": lost_after})
    return [QueueGlance._make(row) for row in cursor.fetchall()]


class Minute(NamedTuple):
    """How deliveries ended so many minutes ago; `queue` is None for all that were not named."""

    queue: str | None
    ago: int
    completed: int
    retried: int
    buried: int


TRAFFIC = """
SELECT
    CASE WHEN queue = ANY(%(names)s::text[]) THEN queue END AS named,
    (extract(epoch FROM clock.minute - date_trunc('minute', counter.minute)) / 60)::integer AS ago,
    greatest(0, least(sum(completed), 1e15))::bigint,
    greatest(0, least(sum(retried), 1e15))::bigint,
    greatest(0, least(sum(buried), 1e15))::bigint
FROM (SELECT date_trunc('minute', statement_timestamp()) AS minute) AS clock
JOIN django_outbox_counter AS counter
    ON counter.minute >= clock.minute - (%(minutes)s - 1) * interval '1 minute'
    AND counter.minute < clock.minute + interval '1 minute'
GROUP BY named, ago
"""


def traffic(cursor: Cursor, names: Sequence[str], *, minutes: int) -> list[Minute]:
    """Return what was counted of these queues, and of all others, in the last `minutes`."""
    cursor.execute(TRAFFIC, {"names": list(names), "minutes": minutes})
    return [Minute._make(row) for row in cursor.fetchall()]


class Process(NamedTuple):
    """A worker or scheduler, by its own account."""

    id: UUID
    worker_id: str
    kind: str
    host: str
    pid: int
    queues: str
    concurrency: int
    running: int
    up_for: float
    silent_for: float


PROCESSES = """
SELECT
    id, worker_id, kind, host, pid, queues::text, concurrency, running,
    extract(epoch FROM statement_timestamp())::float8 - extract(epoch FROM started_at)::float8,
    extract(epoch FROM statement_timestamp())::float8 - extract(epoch FROM last_seen_at)::float8
FROM django_outbox_worker
ORDER BY last_seen_at < statement_timestamp() - %(lost_after)s * interval '1 second',
    kind, worker_id, id
LIMIT %(most)s
"""


def processes(cursor: Cursor, *, most: int, lost_after: float) -> list[Process]:
    """Return the processes there are, those not heard of for `lost_after` seconds last."""
    cursor.execute(PROCESSES, {"most": most, "lost_after": lost_after})
    return [Process._make(row) for row in cursor.fetchall()]


class Scheduling(NamedTuple):
    """Who leads the schedulers, and what there is for them to do."""

    leader: str | None
    led_for: float | None
    lease_for: float | None
    enabled: int
    failing: int
    failing_names: Sequence[str]


SCHEDULING = """
SELECT
    lease.owner, lease.led_for, lease.lease_for,
    (SELECT count(*) FROM django_outbox_schedule WHERE enabled),
    (SELECT count(*) FROM django_outbox_schedule WHERE last_error IS NOT NULL),
    ARRAY(
        SELECT name::text FROM django_outbox_schedule
        WHERE last_error IS NOT NULL
        ORDER BY name
        LIMIT %(most)s
    )
FROM (SELECT) AS always
LEFT JOIN (
    SELECT
        owner,
        extract(epoch FROM statement_timestamp())::float8
            - extract(epoch FROM acquired_at)::float8 AS led_for,
        extract(epoch FROM expires_at)::float8
            - extract(epoch FROM statement_timestamp())::float8 AS lease_for
    FROM django_outbox_lease
    WHERE name = %(lease)s AND expires_at > statement_timestamp()
) AS lease ON true
"""


def scheduling(cursor: Cursor, *, lease: str, most: int) -> Scheduling:
    """Return who has the lease, how many schedules are enabled, and which have an error."""
    cursor.execute(SCHEDULING, {"lease": lease, "most": most})
    return Scheduling._make(cursor.fetchone())
