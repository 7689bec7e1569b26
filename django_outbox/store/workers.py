"""The statements on `django_outbox_worker` and `django_outbox_counter`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from . import Cursor


class Tally(NamedTuple):
    """How many deliveries of a queue have ended in which way."""

    completed: int = 0
    retried: int = 0
    buried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a process says of itself."""

    id: UUID
    worker_id: str
    kind: str
    host: str
    pid: int
    queues: Sequence[str]
    concurrency: int
    running: int


# The counters are taken in the order of their queues, against deadlocks between processes.
BEAT = """
WITH seen AS (
    INSERT INTO django_outbox_worker
        (id, worker_id, kind, host, pid, queues, concurrency, running)
    VALUES (%(id)s, %(worker_id)s, %(kind)s, %(host)s, %(pid)s, %(served)s::jsonb,
        %(concurrency)s, %(running)s)
    ON CONFLICT (id) DO UPDATE SET
        queues = excluded.queues,
        running = excluded.running,
        last_seen_at = excluded.last_seen_at
)
INSERT INTO django_outbox_counter AS counter (minute, queue, completed, retried, buried)
SELECT date_trunc('minute', clock_timestamp()), tally.queue, completed, retried, buried
FROM unnest(
    %(queues)s::text[], %(completed)s::bigint[], %(retried)s::bigint[], %(buried)s::bigint[]
) AS tally (queue, completed, retried, buried)
ORDER BY tally.queue
ON CONFLICT (minute, queue) DO UPDATE SET
    completed = counter.completed + excluded.completed,
    retried = counter.retried + excluded.retried,
    buried = counter.buried + excluded.buried
"""


def beat(cursor: Cursor, beat: Beat, tallies: Mapping[str, Tally]) -> None:
    """Write that a process is alive, and what has ended since its last beat."""
    cursor.execute(
        BEAT,
        {
            "id": beat.id,
            "worker_id": beat.worker_id,
            "kind": beat.kind,
            "host": beat.host,
            "pid": beat.pid,
            "served": json.dumps(list(beat.queues)),
            "concurrency": beat.concurrency,
            "running": beat.running,
            **_columns(tallies),
        },
    )


FORGET = """
DELETE FROM django_outbox_worker WHERE id = %(id)s
"""


def forget(cursor: Cursor, id_: UUID) -> None:
    """Remove the row of a process that has ended in good order."""
    cursor.execute(FORGET, {"id": id_})


PRUNE = """
WITH gone AS (
    DELETE FROM django_outbox_worker
    WHERE id IN (
        SELECT id FROM django_outbox_worker
        WHERE last_seen_at < clock_timestamp() - %(lost)s * interval '1 second'
        FOR UPDATE SKIP LOCKED
    )
)
DELETE FROM django_outbox_counter
WHERE id IN (
    SELECT id FROM django_outbox_counter
    WHERE minute < clock_timestamp() - %(counters)s * interval '1 second'
    ORDER BY minute
    LIMIT 10000
    FOR UPDATE SKIP LOCKED
)
RETURNING id
"""


def prune(cursor: Cursor, *, lost: float, counters: float) -> int:
    """Forget processes unheard of for `lost` seconds, and 10,000 counters older than `counters`.

    Returns how many counters it were.
    """
    cursor.execute(PRUNE, {"lost": lost, "counters": counters})
    return len(cursor.fetchall())


def _columns(tallies: Mapping[str, Tally]) -> dict[str, list[str] | list[int]]:
    return {
        "queues": list(tallies),
        "completed": [tally.completed for tally in tallies.values()],
        "retried": [tally.retried for tally in tallies.values()],
        "buried": [tally.buried for tally in tallies.values()],
    }
