"""What much does: a deep backlog, a snapshot that keeps dead rows in the table, a long run."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.common import PAYLOAD, execute, pipe, worker
from benchmarks.explained import explained_claim
from benchmarks.marks import MARK_EVERY
from benchmarks.measuring import progress
from benchmarks.scenario import Plan, Samples, Scenario

if TYPE_CHECKING:
    from django_outbox.store.messages import Lane

CLAIMED = 100
CLAIMS = 20
ROUND_TRIP = "claim of 100, client's round trip, ms"
EXECUTION = "claim of 100, server's execution, ms"
FILLED_AT_ONCE = 500_000
LEAST_MARKS = 10
AHEAD = 4_000
SECONDS = 20.0

FILL = """
INSERT INTO django_outbox_message (queue, payload, headers, correlation_id, next_attempt_at)
SELECT
    'marked', convert_to(%(payload)s, 'UTF8'), '{"content-type": "application/json"}',
    gen_random_uuid()::text, clock_timestamp()
FROM generate_series(1, %(messages)s)
"""


def deep(plan: Plan, *, backlog: int) -> Samples:
    """Work off messages in front of a backlog that stays, and time claims from it."""
    messages = marked_size(plan, 20_000)
    refill(backlog + plan.rounds * messages)
    rates: list[float] = []
    claims: dict[str, list[float]] = {}
    for number in range(1, plan.rounds + 1):
        if plan.rounds > 1:
            progress(f"backlog of {backlog:,}, round {number} of {plan.rounds}")
        with marks(f"--max-messages={messages}") as (_, marked):
            rates.append(rate(list(islice(marked, messages // MARK_EVERY))))
        for figure, milliseconds in claim_times(min(CLAIMS, backlog // CLAIMED)).items():
            claims.setdefault(figure, []).append(milliseconds)
    return {"messages/s": rates, **claims}


def pinned(plan: Plan) -> Samples:
    """Work messages off while an old snapshot keeps all that is completed from being removed."""
    messages = marked_size(plan, 250_000)
    refill(messages)
    with psycopg.connect(os.environ["DATABASE_URL"]) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT count(*) FROM (SELECT FROM django_outbox_message LIMIT 1) AS seen")
        with marks() as (_, marked):
            moments = list(islice(marked, messages // MARK_EVERY))
        tenth = max(2, len(moments) // 10)
        fill(CLAIMS * CLAIMED)
        return {
            "messages/s, first tenth": [rate(moments[:tenth])],
            "messages/s, last tenth": [rate(moments[-tenth:])],
            "last tenth against the first, times": [rate(moments[-tenth:]) / rate(moments[:tenth])],
            **{name: [took] for name, took in claim_times(CLAIMS).items()},
        }


def steady(plan: Plan) -> Samples:
    """Keep a worker busy with what has just been published: without an old snapshot, and beside."""
    refill(0)
    with marks() as (_, marked):
        without = kept_busy(marked, SECONDS)
        with psycopg.connect(os.environ["DATABASE_URL"]) as old:
            old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            old.execute("SELECT count(*) FROM (SELECT FROM django_outbox_message LIMIT 1) AS seen")
            beside = kept_busy(marked, 3 * SECONDS)
        after = kept_busy(marked, SECONDS)
    return {
        "messages/s, without": [without],
        "messages/s, beside an old snapshot": [beside],
        "messages/s, after it": [after],
        "beside it against without, times": [beside / without],
    }


def kept_busy(marked: Iterator[float], seconds: float) -> float:
    """Publish whenever fewer than `AHEAD` messages wait, and return how many a second are done."""
    began = time.monotonic()
    waiting = handled = 0
    while (now := time.monotonic()) < began + seconds:
        if waiting < AHEAD:
            fill(AHEAD)
            execute("NOTIFY django_outbox, 'marked'")
            waiting += AHEAD
        next(marked)
        waiting -= MARK_EVERY
        handled += MARK_EVERY
    for _ in range(waiting // MARK_EVERY):
        next(marked)
    return handled / (now - began)


def memory(plan: Plan) -> Samples:
    """Read the worker's resident memory at each thousandth message, and see whether it stays."""
    messages = marked_size(plan, 1_000_000)
    refill(messages)
    with marks() as (pid, marked):
        resident = [memory_now(pid) for _ in islice(marked, messages // MARK_EVERY)]
    settled = resident[len(resident) // 10 :]
    middle = statistics.median(settled)
    return {
        "after a tenth, MB": [settled[0]],
        "in the end, MB": [settled[-1]],
        "median after a tenth, MB": [middle],
        "most above that median, %": [(max(settled) / middle - 1) * 100],
        "most below that median, %": [(1 - min(settled) / middle) * 100],
    }


def marked_size(plan: Plan, usual: int) -> int:
    """Return how many messages to use: so many marks at least that there is something between."""
    return max(plan.size(usual), LEAST_MARKS * MARK_EVERY)


def refill(messages: int) -> None:
    """Have so many messages in the table, in the order of their ids, and nothing dead."""
    execute("TRUNCATE django_outbox_message")
    fill(messages)
    # An autovacuum would come sooner or later; so it comes now, and does not disturb.
    execute("VACUUM (ANALYZE) django_outbox_message")
    execute("CHECKPOINT")


def fill(messages: int) -> None:
    """Add so many messages that are due."""
    for start in range(0, messages, FILLED_AT_ONCE):
        if messages > FILLED_AT_ONCE:
            progress(f"filling, {start:,} of {messages:,}")
        some = min(FILLED_AT_ONCE, messages - start)
        execute(FILL, {"payload": f'"{PAYLOAD}"', "messages": some})


@contextmanager
def marks(*arguments: str) -> Iterator[tuple[int, Iterator[float]]]:
    """Run a worker; give its process, and the moment of each thousandth message."""
    with pipe() as (reader, writer), worker("--queue=marked", *arguments, pipe=writer) as process:
        yield process.pid, map(float, reader)


def rate(moments: list[float]) -> float:
    """Return messages a second from the first to the last of these marks."""
    return (len(moments) - 1) * MARK_EVERY / (moments[-1] - moments[0])


def claim_times(claims: int) -> dict[str, float]:
    """Return the median milliseconds of claims, each from where the last one ended.

    They go over a connection as the worker's own; the commit, which waits for the disk, is not part
    of them. The same claims are done twice: for the client's round trip, and explained, for the
    server's share of it. In the end all is as it was.
    """
    from django_outbox.store.messages import Lane

    lanes = [Lane("marked", 60.0)]
    round_trips: list[float] = []
    executions: list[float] = []
    with psycopg.connect(os.environ["DATABASE_URL"]) as session, untouched() as ids:
        for _ in range(claims):
            took, lane = timed_claim(session, lanes[-1], ids)
            round_trips.append(took)
            lanes.append(lane)
    with psycopg.connect(os.environ["DATABASE_URL"]) as session, untouched() as leased:
        leased.extend(ids)
        for lane in lanes[:-1]:
            found = explained_claim(session, [lane], limit=CLAIMED)
            executions.append(found["server's execution, ms"])
            session.commit()
    return {
        ROUND_TRIP: statistics.median(round_trips),
        EXECUTION: statistics.median(executions),
    }


def timed_claim(session: psycopg.Connection[Any], lane: Lane, ids: list[int]) -> tuple[float, Lane]:
    """Claim and commit, note the ids, and return the milliseconds and where the next one begins."""
    from django_outbox.store.messages import claim

    with session.cursor(binary=True) as cursor:
        began = time.perf_counter()
        claimed = claim(cursor, [lane], limit=CLAIMED, worker_id="benchmark")
        took = (time.perf_counter() - began) * 1000
    session.commit()
    assert len(claimed) == CLAIMED, len(claimed)
    ids += [row.id for row in claimed]
    return took, lane._replace(low_at=claimed[-1].due_at, low_id=claimed[-1].id)


@contextmanager
def untouched() -> Iterator[list[int]]:
    """Give a list of ids to fill, and take back the leases of these messages in the end."""
    ids: list[int] = []
    yield ids
    execute(
        "UPDATE django_outbox_message SET lease_token = NULL, lease_expires_at = NULL "
        "WHERE id = ANY(%s)",
        [ids],
    )
    execute("VACUUM django_outbox_message")


def memory_now(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


SCENARIOS = [
    *(
        Scenario(
            f"deep/1e{power}",
            f"20,000 messages in front of a backlog of {10**power:,}; claims from it",
            partial(deep, backlog=10**power),
            has_rounds=True,
            is_slow=power > 5,
        )
        for power in range(3, 8)
    ),
    Scenario(
        "pinned/250k",
        "250,000 messages while an old snapshot pins what is completed",
        pinned,
        is_slow=True,
    ),
    Scenario(
        "pinned/steady",
        "what is published is worked off at once, without an old snapshot and beside one",
        steady,
        is_slow=True,
    ),
    Scenario("memory/1e6", "the worker's memory over a million messages", memory, is_slow=True),
]
