"""How fast workers work messages off, from the commit that publishes all to the empty table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.common import PAYLOAD, execute, query, worker
from benchmarks.counting import of_a_worker
from benchmarks.scenario import Counted, Plan, Samples, Scenario

MESSAGES = 20_000
PUBLISHED_AT_ONCE = 5_000
ATOMIC_COUNTED = "--concurrency=1", "--batch-size=20"


def drain(plan: Plan, *arguments: str, queue: str, processes: int, messages: int) -> Samples:
    """Return messages a second, and the most memory that the worker's process had."""
    execute("TRUNCATE django_outbox_message, bench_effect")
    amount = plan.size(messages)
    with worker(*arguments, processes=processes) as process:
        publish(queue, amount)
        began = time.perf_counter()
        wait_until_empty()
        took = time.perf_counter() - began
        memory = peak_memory(process.pid)
    figures = {"messages/s": [amount / took]}
    return figures if processes > 1 or memory is None else {**figures, "peak memory, MB": [memory]}


def publish(queue: str, messages: int) -> None:
    """Publish all messages in one transaction."""
    from django.db import transaction

    from django_outbox import outbox

    with transaction.atomic():
        for start in range(0, messages, PUBLISHED_AT_ONCE):
            some = min(PUBLISHED_AT_ONCE, messages - start)
            outbox.publish_many([PAYLOAD] * some, queue=queue)


def wait_until_empty() -> None:
    """Wait until no message is left.

    A look at the whole table costs more the more dead rows it has, so the newest message is looked
    at until it is gone.
    """
    newest = query("SELECT max(id) FROM django_outbox_message")
    for left, key in (("id = %s", [newest]), ("true", None)):
        while query(f"SELECT EXISTS (SELECT FROM django_outbox_message WHERE {left})", key):  # noqa: S608
            time.sleep(0.005)


def peak_memory(pid: int) -> float | None:
    """Return the most resident memory a process has had, in MB; None where /proc does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _consumer(
    name: str,
    summary: str,
    *arguments: str,
    queue: str = "empty",
    processes: int = 1,
    messages: int = MESSAGES,
    counted: int = 1_000,
) -> Scenario:
    options = (f"--queue={queue}", *arguments)
    counts = Counted(
        # Handlers that settle themselves leave the table in an order that threads decide, and that
        # decides which updates find room on their page. They also take long enough for the pace to
        # bound a claim, were it not small.
        work=of_a_worker(*options, *(ATOMIC_COUNTED if queue == "atomic" else ())),
        free=of_a_worker(*options, lockstep=False),
        prepare=partial(publish, queue),
        messages=counted,
        free_messages=messages,
    )
    return Scenario(
        name,
        summary,
        lambda plan: drain(plan, *options, queue=queue, processes=processes, messages=messages),
        count=counts if processes == 1 and counted else None,
    )


def _matrix() -> Iterator[Scenario]:
    for processes in (1, 2, 4):
        for batch in (10, 100):
            yield _consumer(
                f"consumer/w{processes}/b{batch}",
                f"{processes} worker process(es), --batch-size={batch}",
                f"--batch-size={batch}",
                processes=processes,
                counted=batch * 10,
            )


SCENARIOS = [
    _consumer("consumer/default", "default options, empty handler, 256 bytes"),
    *_matrix(),
    _consumer(
        "atomic/c8",
        "atomic=True, one INSERT in the handler, 8 threads",
        "--concurrency=8",
        queue="atomic",
        messages=MESSAGES // 4,
        counted=200,
    ),
    _consumer(
        "atomic/b10",
        "the same with atomic_batch=10; how many share a transaction depends on the moment",
        "--concurrency=8",
        queue="atomic_b10",
        messages=MESSAGES // 4,
        counted=0,
    ),
]
