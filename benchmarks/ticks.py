"""Measure schedules: `python -m benchmarks.ticks`.

Four questions, on a PostgreSQL with its default, durable settings. How long a tick takes when many
schedules are due, and when one is due among very many. How late after its boundary the message of
an idle leader is there for others to see. How many statements a second a scheduler runs that has
nothing to do.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from benchmarks.common import PAYLOAD, ROOT, execute, query, run

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--due", type=int, default=10_000, metavar="N")
    parser.add_argument("--schedules", type=int, default=100_000, metavar="N")
    parser.add_argument("--fires", type=int, default=20, metavar="N")
    parser.add_argument("--seconds", type=int, default=65, metavar="S")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    run(parser, measure)


def measure(options: argparse.Namespace, log: Path) -> dict[str, float]:
    """Return all figures by name; of several rounds the median and the worst."""
    figures: dict[str, float] = {}
    for spec in ("@every 1h", "@cron 30 7 * * MON-FRI Europe/Berlin"):
        times = [all_due(spec, options.due) for _ in range(options.rounds)]
        name = f"tick, {options.due:,} due, {spec.split()[0]}"
        figures[f"{name}, median, s"] = statistics.median(times)
        figures[f"{name}, worst, s"] = max(times)
    times = one_due(options.schedules, rounds=5 * options.rounds)
    name = f"tick, 1 due of {options.schedules:,}"
    figures[f"{name}, median, ms"] = statistics.median(times)
    figures[f"{name}, worst, ms"] = max(times)
    times = lateness(options.fires)
    figures["boundary to visible message, first, ms"] = min(times)
    figures["boundary to visible message, median, ms"] = statistics.median(times)
    figures["boundary to visible message, last, ms"] = max(times)
    figures["idle leader, statements/s"] = idle_statements(options.seconds, log)
    return figures


# How long a tick takes


def all_due(spec: str, schedules: int) -> float:
    """Return the seconds of a tick for which all these schedules are due."""
    fill(spec, schedules, due=schedules)
    took, published = timed_tick()
    assert published == schedules, published
    return took


def one_due(schedules: int, rounds: int) -> list[float]:
    """Return the milliseconds of ticks for which one of these schedules is due."""
    fill("@every 1h", schedules, due=0)
    times = []
    for _ in range(rounds):
        execute(LET_FALL_DUE)
        took, published = timed_tick()
        assert published == 1, published
        times.append(took * 1000)
    return times


def fill(spec: str, schedules: int, *, due: int) -> None:
    """Make so many schedules; all that are not due are so a day later."""
    execute("TRUNCATE django_outbox_schedule, django_outbox_message")
    execute(FILL, {"spec": spec, "payload": f'"{PAYLOAD}"', "schedules": schedules, "due": due})
    execute("VACUUM ANALYZE django_outbox_schedule")
    execute("CHECKPOINT")


def timed_tick() -> tuple[float, int]:
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


# What a scheduler does by itself


@contextmanager
def scheduler() -> Iterator[None]:
    """Run an `outbox_scheduler` until the block ends; it leads when the block begins."""
    process = subprocess.Popen(
        [sys.executable, "manage.py", "outbox_scheduler"],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not query("SELECT EXISTS (SELECT FROM django_outbox_lease)"):
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


def lateness(fires: int) -> list[float]:
    """Return how many ms after its boundary each message has been committed and announced."""
    from django.db import connection

    from django_outbox import outbox

    execute("TRUNCATE django_outbox_schedule, django_outbox_message")
    execute("LISTEN django_outbox")
    late = []
    with scheduler():
        outbox.schedule("bench", "@every 3s", queue="empty", payload=PAYLOAD)
        for _ in range(fires):
            next(connection.connection.notifies(timeout=30, stop_after=1))
            seen = time.time()  # the server is on this machine, so both have one clock
            late.append((seen - newest_boundary()) * 1000)
    execute("UNLISTEN django_outbox")
    return late


def newest_boundary() -> float:
    """Return which boundary the newest message stands for, in seconds since 1970."""
    text = query("SELECT headers->>'boundary' FROM django_outbox_message ORDER BY id DESC LIMIT 1")
    return datetime.fromisoformat(text).timestamp()


def idle_statements(seconds: float, log: Path) -> float:
    """Return the statements a second of a leader with nothing to do, from the server's log."""
    fill("@every 1h", 1_000, due=0)
    execute("ALTER SYSTEM SET log_statement = 'all'")
    execute("SELECT pg_reload_conf()")
    with scheduler():
        time.sleep(2)
        before = statements(log)
        time.sleep(seconds)
        return (statements(log) - before) / seconds


def statements(log: Path) -> int:
    """Return how many statements the server has logged, those that open and end blocks too."""
    text = log.read_text()
    return text.count("LOG:  statement: ") + text.count("LOG:  execute ")


if __name__ == "__main__":
    main()
