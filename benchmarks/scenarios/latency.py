"""How long after the commit of one message its handler begins."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from benchmarks.common import execute, running, worker
from benchmarks.scenario import Plan, Samples, Scenario

SAMPLES = 300
PAUSE = 0.02
"""Seconds between two messages, so that each finds the worker asleep."""


def idle(plan: Plan) -> Samples:
    """Compare an idle worker with a bare LISTEN loop, one after the other."""
    execute("TRUNCATE django_outbox_message")
    samples = plan.size(SAMPLES)
    with _pipe() as (reader, writer), worker("--queue=latency", pipe=writer):
        ours = sorted(delays("latency", samples, reader))
    with _pipe() as (reader, writer), bare_loop(writer, reader):
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


@contextmanager
def _pipe() -> Iterator[tuple[IO[str], int]]:
    reader, writer = os.pipe()
    try:
        with os.fdopen(reader) as lines:
            yield lines, writer
    finally:
        os.close(writer)


def median(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def p99(values: list[float]) -> float:
    """Return what 99 in 100 of these sorted values do not exceed."""
    return values[int(len(values) * 0.99)]


SCENARIOS = [
    Scenario("latency/idle", "commit to handler on an idle worker, and on a bare LISTEN loop", idle)
]
