"""How long after the commit of one message its handler begins."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import psycopg

from benchmarks.common import PAYLOAD, execute, pipe, running, worker
from benchmarks.scenario import Plan, Samples, Scenario

SAMPLES = 300
PAUSE = 0.02
"""Seconds between two messages, so that each finds the worker asleep."""


LOAD_EVERY = 0.05
LOAD_MESSAGES = 50

LOAD = """
INSERT INTO django_outbox_message (queue, payload, headers, correlation_id, next_attempt_at)
SELECT
    'empty', convert_to(%(payload)s, 'UTF8'), '{"content-type": "application/json"}',
    gen_random_uuid()::text, clock_timestamp()
FROM generate_series(1, %(messages)s)
"""


def idle(plan: Plan) -> Samples:
    """Compare an idle worker with a bare LISTEN loop, one after the other."""
    execute("TRUNCATE django_outbox_message")
    samples = plan.size(SAMPLES)
    with pipe() as (reader, writer), worker("--queue=latency", pipe=writer):
        ours = sorted(delays("latency", samples, reader))
    with pipe() as (reader, writer), bare_loop(writer, reader):
        bare = sorted(delays("bare", samples, reader))
    return {
        "p50, ms": [median(ours)],
        "p99, ms": [p99(ours)],
        "bare LISTEN loop, p50, ms": [median(bare)],
        "bare LISTEN loop, p99, ms": [p99(bare)],
        "p50 against the bare loop, times": [median(ours) / median(bare)],
    }


def delays(queue: str, samples: int, reader: IO[str]) -> Iterator[float]:
    """Publish messages one by one, and yield for each the ms from its commit to its handler."""
    from django.db import transaction

    from django_outbox import outbox

    for n in range(samples):
        with transaction.atomic():
            outbox.publish(n, queue=queue)
            about_to_commit = time.monotonic()
        yield (float(reader.readline()) - about_to_commit) * 1000
        time.sleep(PAUSE)


@contextmanager
def bare_loop(writer: int, reader: IO[str]) -> Iterator[None]:
    """Run the bare loop until the block ends; it is listening when the block begins."""
    command = [sys.executable, "-m", "benchmarks.bare_loop"]
    with running(command, {"BENCH_PIPE": str(writer)}, (writer,)):
        reader.readline()
        yield


def median(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def p99(values: list[float]) -> float:
    """Return what 99 in 100 of these sorted values do not exceed."""
    return values[int(len(values) * 0.99)]


def loaded(plan: Plan) -> Samples:
    """Measure latency while messages of another queue keep coming."""
    execute("TRUNCATE django_outbox_message")
    with pipe() as (reader, writer), worker(pipe=writer), load():
        found = sorted(delays("latency", plan.size(SAMPLES), reader))
    return {"p50, ms": [median(found)], "p99, ms": [p99(found)]}


@contextmanager
def load() -> Iterator[None]:
    """Publish messages for the empty handler until the block ends, from a thread."""
    stopped = threading.Event()

    def publish() -> None:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            while not stopped.wait(LOAD_EVERY):
                with connection.transaction():
                    connection.execute(LOAD, {"payload": f'"{PAYLOAD}"', "messages": LOAD_MESSAGES})
                    connection.execute("NOTIFY django_outbox, 'empty'")

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


SCENARIOS = [
    Scenario(
        "latency/idle", "commit to handler on an idle worker, and on a bare LISTEN loop", idle
    ),
    Scenario(
        "latency/loaded",
        f"the same under {LOAD_MESSAGES / LOAD_EVERY:,.0f} messages a second in another queue",
        loaded,
    ),
]
