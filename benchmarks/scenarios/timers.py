"""What timers cost: to extend one, to claim beside very many, and how late they are."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import IO, Any

import psycopg

from benchmarks.common import PAYLOAD, execute, pipe, query, worker
from benchmarks.explained import explained_claim
from benchmarks.scenario import Plan, Samples, Scenario
from benchmarks.scenarios.latency import median, p99

FUTURE = 1_000_000
CLAIMED = 100
"""Messages that a measured claim finds due and takes."""

TURNS = 3
CLAIMS = 9
AHEAD = timedelta(days=1)

FILL = """
INSERT INTO django_outbox_message
    (queue, payload, headers, correlation_id, timer_id, next_attempt_at)
SELECT
    'empty', convert_to(%(payload)s, 'UTF8'), '{"content-type": "application/json"}',
    gen_random_uuid()::text, n::text, clock_timestamp() + interval '1 day' + n * interval '1 ms'
FROM generate_series(1, %(timers)s) AS n
"""


# What an extend costs


def extend(plan: Plan, *, statements: int, together: bool) -> Samples:
    """Compare plain publishes with extends of as many pending timers, in turns.

    Both are for later, so that neither notifies.
    """
    execute("TRUNCATE django_outbox_message")
    statements = plan.size(statements)
    ahead = map(timedelta, count(1))
    _extend_all(statements, next(ahead), together=together)
    figures: dict[str, list[float]] = {}
    for _ in range(TURNS):
        plain = _cost(lambda: _publish_all(statements, together=together), statements)
        execute("DELETE FROM django_outbox_message WHERE timer_id IS NULL")
        execute("VACUUM django_outbox_message")
        extended = _cost(
            lambda: _extend_all(statements, next(ahead), together=together), statements
        )
        execute("VACUUM django_outbox_message")
        for name, took in (("publish", plain), ("extend", extended)):
            figures.setdefault(f"{name}, µs", []).append(took[0])
            figures.setdefault(f"{name}, bytes of WAL", []).append(took[1])
        figures.setdefault("extend against publish, times", []).append(extended[0] / plain[0])
    return figures


def _publish_all(statements: int, *, together: bool) -> None:
    """Publish so many messages for later."""
    from django_outbox import outbox

    outer, inner = _blocks(together=together)
    with outer():
        for _ in range(statements):
            with inner():
                outbox.publish(PAYLOAD, queue="empty", activate_in=AHEAD)


def _extend_all(statements: int, ahead: timedelta, *, together: bool) -> None:
    """Extend so many timers, or set them if they are not there."""
    from django_outbox import outbox

    outer, inner = _blocks(together=together)
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


def _blocks(*, together: bool) -> tuple[Block, Block]:
    """Return what to open around all statements, and around each."""
    from django.db import transaction

    return (transaction.atomic, nullcontext) if together else (nullcontext, transaction.atomic)


def _cost(work: Callable[[], None], statements: int) -> tuple[float, float]:
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


def claims(plan: Plan) -> Samples:
    """Compare claims from a table of future timers with claims from one that has none."""
    figures: dict[str, list[float]] = {}
    for timers in (0, plan.size(FUTURE)):
        execute("TRUNCATE django_outbox_message")
        execute(FILL, {"payload": f'"{PAYLOAD}"', "timers": timers})
        execute("VACUUM ANALYZE django_outbox_message")
        for due in (CLAIMED, 0):
            for found in [_claim(due) for _ in range(CLAIMS * plan.rounds)][1:]:
                for figure, value in found.items():
                    name = f"claim of {due} beside {timers:,} timers, {figure}"
                    figures.setdefault(name, []).append(value)
    return figures


def _claim(due: int) -> dict[str, float]:
    """Have so many messages due, and return what PostgreSQL says of their claim."""
    from django.db import transaction

    from django_outbox import outbox
    from django_outbox.store.messages import Lane

    with transaction.atomic():
        outbox.publish_many([PAYLOAD] * due, queue="empty")
    with psycopg.connect(os.environ["DATABASE_URL"]) as session:
        # As a worker claims that has just started.
        found = explained_claim(session, [Lane("empty", 60.0)], limit=CLAIMED)
    execute("DELETE FROM django_outbox_message WHERE timer_id IS NULL")
    execute("VACUUM django_outbox_message")
    return found


# How late a timer is


def late(plan: Plan) -> Samples:
    """Return how many ms after its deadline an idle worker's handler has begun."""
    execute("TRUNCATE django_outbox_message")
    with pipe() as (reader, writer), worker("--queue=lateness", pipe=writer):
        found = sorted(_fire(plan.size(500), reader))
    return {
        "first, ms": [found[0]],
        "p50, ms": [median(found)],
        "p99, ms": [p99(found)],
        "last, ms": [found[-1]],
    }


def _fire(timers: int, reader: IO[str]) -> list[float]:
    """Set timers one to three seconds ahead, each in a transaction, and return their lateness."""
    from django.db import transaction

    from django_outbox import outbox

    for n in range(timers):
        with transaction.atomic():
            # The server is on this machine, so both have one clock.
            at = datetime.now(UTC) + timedelta(seconds=random.uniform(1, 3))  # noqa: S311
            outbox.publish(at.timestamp(), queue="lateness", timer_id=str(n), activate_at=at)
    return [float(reader.readline()) for _ in range(timers)]


SCENARIOS = [
    Scenario(
        "timers/extend",
        "extend a pending timer and publish a message, each in a transaction of its own",
        lambda plan: extend(plan, statements=200, together=False),
    ),
    Scenario(
        "timers/extend-together",
        "the same, all in one transaction",
        lambda plan: extend(plan, statements=1_000, together=True),
    ),
    Scenario(
        "timers/claim",
        f"claims beside {FUTURE:,} future timers, and beside none",
        claims,
        has_rounds=True,
        is_slow=True,
    ),
    Scenario("timers/late", "how late an idle worker starts 500 timers, 1 to 3 s ahead", late),
]
