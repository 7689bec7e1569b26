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

import psycopg

from benchmarks.common import PAYLOAD, execute, pipe, worker
from benchmarks.marks import MARK_EVERY
from benchmarks.measuring import progress
from benchmarks.scenario import Plan, Samples, Scenario

CLAIMED = 100
CLAIMS = 20
FILLED_AT_ONCE = 500_000

FILL = """
INSERT INTO django_outbox_message (queue, payload, headers, correlation_id, next_attempt_at)
SELECT
    'marked', convert_to(%(payload)s, 'UTF8'), '{"content-type": "application/json"}',
    gen_random_uuid()::text, clock_timestamp()
FROM generate_series(1, %(messages)s)
"""


def deep(plan: Plan, *, backlog: int) -> Samples:
    """Work off messages in front of a backlog that stays, and time claims from it."""
    messages = plan.size(20_000)
    refill(backlog + plan.rounds * messages)
    rates, claims = [], []
    for number in range(1, plan.rounds + 1):
        if plan.rounds > 1:
            progress(f"backlog of {backlog:,}, round {number} of {plan.rounds}")
        with marks(f"--max-messages={messages}") as (_, marked):
            rates.append(rate(list(islice(marked, messages // MARK_EVERY))))
        claims.append(median_claim(min(CLAIMS, backlog // CLAIMED)))
    return {"messages/s": rates, "claim of 100, ms": claims}


def pinned(plan: Plan) -> Samples:
    """Work messages off while an old snapshot keeps all that is completed from being removed."""
    messages = plan.size(250_000)
    refill(messages)
    with psycopg.connect(os.environ["DATABASE_URL"]) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT count(*) FROM (SELECT FROM django_outbox_message LIMIT 1) AS some")
        with marks() as (_, marked):
            moments = list(islice(marked, messages // MARK_EVERY))
        tenth = max(2, len(moments) // 10)
        fill(CLAIMS * CLAIMED)
        return {
            "messages/s, first tenth": [rate(moments[:tenth])],
            "messages/s, last tenth": [rate(moments[-tenth:])],
            "last tenth against the first, times": [rate(moments[-tenth:]) / rate(moments[:tenth])],
            "claim of 100, ms": [median_claim(CLAIMS)],
        }


def memory(plan: Plan) -> Samples:
    """Compare the worker's memory after a tenth of very many messages with that later on."""
    messages = plan.size(1_000_000)
    refill(messages)
    tenth = messages // 10 // MARK_EVERY
    resident = []
    with marks() as (pid, marked):
        for _ in range(10):
            *_, _last = islice(marked, tenth)
            resident.append(memory_now(pid))
    return {
        "after a tenth, MB": [resident[0]],
        "in the end, MB": [resident[-1]],
        "most after a tenth, against then, %": [(max(resident) / resident[0] - 1) * 100],
    }


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


def median_claim(claims: int) -> float:
    """Return the milliseconds that a claim takes, each from where the last one ended.

    It goes over a connection as the worker's own; the commit, which waits for the disk, is not part
    of it. In the end all is as it was.
    """
    from django_outbox.store.messages import Lane, claim

    lane = Lane("marked", 60.0)
    times: list[float] = []
    ids: list[int] = []
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        for _ in range(claims):
            with connection.cursor(binary=True) as cursor:
                began = time.perf_counter()
                claimed = claim(cursor, [lane], limit=CLAIMED, worker_id="benchmark")
                times.append((time.perf_counter() - began) * 1000)
            connection.commit()
            assert len(claimed) == CLAIMED, len(claimed)
            ids += [row.id for row in claimed]
            lane = lane._replace(low_at=claimed[-1].due_at, low_id=claimed[-1].id)
    execute(
        "UPDATE django_outbox_message SET lease_token = NULL, lease_expires_at = NULL "
        "WHERE id = ANY(%s)",
        [ids],
    )
    execute("VACUUM django_outbox_message")
    return statistics.median(times)


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
    Scenario("memory/1e6", "the worker's memory over a million messages", memory, is_slow=True),
]
