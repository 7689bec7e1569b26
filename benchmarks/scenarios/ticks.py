"""What schedules cost: a tick for very many, one among very many, and how late a message is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from benchmarks.common import PAYLOAD, execute, manage, query, running, wait_until_leading
from benchmarks.scenario import Plan, Samples, Scenario

FILL = """
INSERT INTO django_outbox_schedule
    (name, spec, timezone, queue, payload, headers, source, next_run_at, planned_for)
SELECT
    'bench-' || n, %(spec)s, 'Europe/Berlin', 'empty', convert_to(%(payload)s, 'UTF8'),
    '{"content-type": "application/json"}', 'api',
    CASE WHEN n <= %(due)s THEN clock_timestamp() - n * interval '1 microsecond'
        ELSE clock_timestamp() + interval '1 day' + n * interval '1 ms' END,
    %(spec)s || ' Europe/Berlin'
FROM generate_series(1, %(schedules)s) AS n
"""

LET_FALL_DUE = """
UPDATE django_outbox_schedule SET next_run_at = clock_timestamp() WHERE name = 'bench-1'
"""

NEWEST = "SELECT headers->>'boundary' FROM django_outbox_message ORDER BY id DESC LIMIT 1"

TICKS = 10
FIRES = 7


def all_due(plan: Plan, *, spec: str) -> Samples:
    """Return the seconds of a tick for which all schedules are due."""
    schedules = plan.size(10_000)
    fill(spec, schedules, due=schedules)
    took, published = _timed_tick()
    assert published == schedules, published
    return {"seconds": [took]}


def one_due(plan: Plan) -> Samples:
    """Return the milliseconds of ticks for which one of very many schedules is due."""
    fill("@every 1h", plan.size(100_000), due=0)
    times = []
    for _ in range(TICKS):
        execute(LET_FALL_DUE)
        took, published = _timed_tick()
        assert published == 1, published
        times.append(took * 1000)
    return {"ms": times}


def fill(spec: str, schedules: int, *, due: int) -> None:
    """Make so many schedules; all that are not due are so a day later."""
    execute("TRUNCATE django_outbox_schedule, django_outbox_message")
    execute(FILL, {"spec": spec, "payload": f'"{PAYLOAD}"', "schedules": schedules, "due": due})
    execute("VACUUM ANALYZE django_outbox_schedule")
    execute("CHECKPOINT")


def _timed_tick() -> tuple[float, int]:
    """Tick as a leader does; return the seconds, commits included, and the messages published."""
    from django_outbox.scheduling.leadership import Leadership
    from django_outbox.scheduling.ticking import tick

    leadership = Leadership("default")
    assert leadership.acquire()
    began = time.perf_counter()
    published = tick("default", owner=leadership.owner)
    took = time.perf_counter() - began
    leadership.release()
    return took, published


def boundary(plan: Plan) -> Samples:
    """Return how many ms after its boundary each message has been committed and announced."""
    from django.db import connection

    from django_outbox import outbox

    execute("TRUNCATE django_outbox_schedule, django_outbox_message")
    execute("LISTEN django_outbox")
    late = []
    with scheduler():
        outbox.schedule("bench", "@every 3s", queue="empty", payload=PAYLOAD)
        for _ in range(min(FIRES, plan.size(FIRES))):
            next(connection.connection.notifies(timeout=30, stop_after=1))
            seen = time.time()  # the server is on this machine, so both have one clock
            late.append((seen - datetime.fromisoformat(query(NEWEST)).timestamp()) * 1000)
    execute("UNLISTEN django_outbox")
    return {"ms": late}


@contextmanager
def scheduler() -> Iterator[None]:
    """Run an `outbox_scheduler` until the block ends; it leads when the block begins."""
    with running(manage("outbox_scheduler"), {}) as process:
        wait_until_leading(process)
        yield


SCENARIOS = [
    *(
        Scenario(
            f"tick/10000-{name}",
            f"one tick with 10,000 schedules due, all {spec}",
            partial(all_due, spec=spec),
        )
        for name, spec in (
            ("every", "@every 1h"),
            ("cron", "@cron 30 7 * * MON-FRI Europe/Berlin"),
        )
    ),
    Scenario("tick/1-of-100000", "ticks with one schedule due of 100,000", one_due),
    Scenario(
        "tick/boundary", "from a boundary until an idle leader's message is announced", boundary
    ),
]
