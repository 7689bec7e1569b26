"""Measure timers: `python -m benchmarks.timers`.

Three questions, on a PostgreSQL with its default, durable settings. What an extend of a pending
timer costs beside a plain publish; both are for later, so that neither notifies. What a claim
reads, and how long it takes, when a million timers wait for later in the same queue. How late an
idle worker starts timers that were set one to three seconds ahead.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.common import PAYLOAD, execute, query, run, worker

AHEAD = timedelta(days=1)
CLAIMED = 100
"""Messages that each measured claim finds due and takes."""

FILL = """
INSERT INTO django_outbox_message
    (queue, payload, headers, correlation_id, timer_id, next_attempt_at)
SELECT
    'empty', convert_to(%(payload)s, 'UTF8'), '{"content-type": "application/json"}',
    gen_random_uuid()::text, n::text, clock_timestamp() + interval '1 day' + n * interval '1 ms'
FROM generate_series(1, %(timers)s) AS n
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--statements", type=int, default=2_000, metavar="N")
    parser.add_argument("--transactions", type=int, default=500, metavar="N")
    parser.add_argument("--future", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--late", type=int, default=500, metavar="N")
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    run(parser, measure)


def measure(options: argparse.Namespace, _log: Path) -> dict[str, float]:
    """Return all figures by name; of several rounds the median."""
    return {
        **lateness(options.late, rounds=3),
        **extends("one transaction", options.statements, options.rounds, together=True),
        **extends("one transaction each", options.transactions, options.rounds, together=False),
        **claims(options.future, rounds=9),
    }


# What an extend costs


def extends(name: str, statements: int, rounds: int, *, together: bool) -> dict[str, float]:
    """Compare plain publishes with extends of as many pending timers, in turns."""
    execute("TRUNCATE django_outbox_message")
    ahead = map(timedelta, count(1))
    extend_all(statements, next(ahead), together=together)
    plain, extended = [], []
    for _ in range(rounds):
        plain.append(cost(partial(publish_all, statements, together=together), statements))
        execute("DELETE FROM django_outbox_message WHERE timer_id IS NULL")
        execute("VACUUM django_outbox_message")
        extend = partial(extend_all, statements, next(ahead), together=together)
        extended.append(cost(extend, statements))
        execute("VACUUM django_outbox_message")
    took, wal = (statistics.median(column) for column in zip(*plain, strict=True))
    extend_took, extend_wal = (statistics.median(column) for column in zip(*extended, strict=True))
    return {
        f"publish, {name}, µs": took,
        f"extend, {name}, µs": extend_took,
        f"extend to publish, {name}": extend_took / took,
        f"publish, {name}, bytes of WAL": wal,
        f"extend, {name}, bytes of WAL": extend_wal,
    }


def publish_all(statements: int, *, together: bool) -> None:
    """Publish so many messages for later."""
    from django_outbox import outbox

    outer, inner = blocks(together=together)
    with outer():
        for _ in range(statements):
            with inner():
                outbox.publish(PAYLOAD, queue="empty", activate_in=AHEAD)


def extend_all(statements: int, ahead: timedelta, *, together: bool) -> None:
    """Extend so many timers, or set them if they are not there."""
    from django_outbox import outbox

    outer, inner = blocks(together=together)
    with outer():
        for n in range(statements):
            with inner():
                outbox.publish(
                    PAYLOAD,
                    queue="empty",
                    activate_in=ahead,
                    timer_id=str(n),
                    timer_conflict="extend",
                )


Block = Callable[[], AbstractContextManager[Any]]


def blocks(*, together: bool) -> tuple[Block, Block]:
    """Return what to open around all statements, and around each."""
    from django.db import transaction

    return (transaction.atomic, nullcontext) if together else (nullcontext, transaction.atomic)


def cost(work: Callable[[], None], statements: int) -> tuple[float, float]:
    """Return the microseconds and the bytes of WAL that each of the statements took."""
    # Otherwise the first change to a page since the last checkpoint would write all of it.
    execute("CHECKPOINT")
    at = query("SELECT pg_current_wal_insert_lsn()::text")
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    written = query("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", [at])
    return took / statements * 1e6, float(written) / statements


# What a claim reads


def claims(future: int, rounds: int) -> dict[str, float]:
    """Compare claims from a table of future timers with claims from one that has none."""
    figures: dict[str, float] = {}
    for timers in (0, future):
        execute("TRUNCATE django_outbox_message")
        execute(FILL, {"payload": json.dumps(PAYLOAD), "timers": timers})
        execute("VACUUM ANALYZE django_outbox_message")
        for due in (CLAIMED, 0):
            plans = list(claim_plans(due, rounds))
            name = f"claim of {due}, {timers:,} future timers"
            for figure in plans[0]:
                figures[f"{name}, {figure}"] = statistics.median(plan[figure] for plan in plans)
    return figures


def claim_plans(due: int, rounds: int) -> Iterator[dict[str, float]]:
    """Claim what is due, round after round, and yield what each claim read and took."""
    from django.db import transaction

    from django_outbox import outbox

    for _ in range(rounds + 1):
        with transaction.atomic():
            outbox.publish_many([PAYLOAD] * due, queue="empty")
        yield explained_claim()
        execute("DELETE FROM django_outbox_message WHERE timer_id IS NULL")
        execute("VACUUM django_outbox_message")


def explained_claim() -> dict[str, float]:
    """Claim as a worker does that has just started, and return what PostgreSQL says of it."""
    from django.db import connection

    from django_outbox.store.messages import Lane, claim

    plans: list[Any] = []

    def explain(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        answer = run(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params, many, context)
        plans.append(context["cursor"].fetchone()[0][0])
        return answer

    with connection.cursor() as cursor, connection.execute_wrapper(explain):
        claim(cursor, [Lane("empty", 60.0)], limit=CLAIMED, worker_id="benchmark")
    [plan] = plans
    return {
        "rows read": sum(rows_scanned(plan["Plan"])),
        "buffers read": float(buffers(plan["Plan"])),
        "ms": plan["Execution Time"],
    }


def rows_scanned(node: dict[str, Any], *, to_lock: bool = False) -> Iterator[float]:
    """Yield the rows that each scan for rows to lock has read, those it left out included."""
    if to_lock and "Relation Name" in node:
        yield node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    for child in node.get("Plans", []):
        yield from rows_scanned(child, to_lock=to_lock or node["Node Type"] == "LockRows")


def buffers(node: dict[str, Any]) -> int:
    """Return how many pages a node and all below it have looked at."""
    return int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])


# How late a timer is


def lateness(timers: int, rounds: int) -> dict[str, float]:
    """Return how many ms after its deadline an idle worker's handler has begun."""
    execute("TRUNCATE django_outbox_message")
    reader, writer = os.pipe()
    with worker("--queue=lateness", pipe=writer), os.fdopen(reader) as reached:
        late = [sorted(fire(timers, reached)) for _ in range(rounds)]
    os.close(writer)
    return {
        f"lateness of {timers} timers, first, ms": min(times[0] for times in late),
        f"lateness of {timers} timers, p50, ms": statistics.median(
            times[len(times) // 2] for times in late
        ),
        f"lateness of {timers} timers, p99, ms": statistics.median(
            times[int(len(times) * 0.99)] for times in late
        ),
        f"lateness of {timers} timers, last, ms": max(times[-1] for times in late),
    }


def fire(timers: int, reached: Any) -> list[float]:
    """Set timers one to three seconds ahead, each in a transaction, and return their lateness."""
    from django.db import transaction

    from django_outbox import outbox

    for n in range(timers):
        with transaction.atomic():
            # The server is on this machine, so both have one clock.
            at = datetime.now(UTC) + timedelta(seconds=random.uniform(1, 3))  # noqa: S311
            outbox.publish(at.timestamp(), queue="lateness", timer_id=str(n), activate_at=at)
    return [float(reached.readline()) for _ in range(timers)]


if __name__ == "__main__":
    main()
