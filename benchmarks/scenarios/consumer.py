"""How fast workers work messages off, from the commit that publishes all to the empty table."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.common import PAYLOAD, execute, query, worker
from benchmarks.scenario import Plan, Samples, Scenario

MESSAGES = 20_000
PUBLISHED_AT_ONCE = 5_000


def drain(
    plan: Plan, queue: str, *arguments: str, processes: int = 1, messages: int = MESSAGES
) -> Samples:
    """Return messages a second, and the most memory that the worker's process had."""
    execute("TRUNCATE django_outbox_message, bench_effect")
    amount = plan.size(messages)
    with worker(f"--queue={queue}", *arguments, processes=processes) as process:
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


def _consumer(name: str, summary: str, measure: Callable[[Plan], Samples]) -> Scenario:
    return Scenario(f"consumer/{name}", summary, measure)


SCENARIOS = [
    _consumer("default", "default options, empty handler, 256 bytes", partial(drain, queue="empty"))
]
