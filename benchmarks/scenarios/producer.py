"""How fast messages are published: one by one, each in a transaction of its own, many at once."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.common import PAYLOAD, execute
from benchmarks.counting import of_this_process
from benchmarks.scenario import Counted, Plan, Samples, Scenario


def together(messages: int) -> None:
    """Publish one by one, in one transaction."""
    from django.db import transaction

    from django_outbox import outbox

    with transaction.atomic():
        for _ in range(messages):
            outbox.publish(PAYLOAD, queue="empty")


def apart(messages: int) -> None:
    """Publish each in a transaction of its own."""
    from django.db import transaction

    from django_outbox import outbox

    for _ in range(messages):
        with transaction.atomic():
            outbox.publish(PAYLOAD, queue="empty")


def many(messages: int) -> None:
    """Publish with `publish_many`."""
    from django.db import transaction

    from django_outbox import outbox

    with transaction.atomic():
        outbox.publish_many([PAYLOAD] * messages, queue="empty")


def _producer(
    name: str, summary: str, work: Callable[[int], None], *, messages: int, counted: int
) -> Scenario:
    def measure(plan: Plan) -> Samples:
        execute("TRUNCATE django_outbox_message")
        amount = plan.size(messages)
        work(1)
        began = time.perf_counter()
        work(amount)
        return {"messages/s": [amount / (time.perf_counter() - began)]}

    counts = Counted(work=of_this_process(work), messages=counted)
    return Scenario(f"producer/{name}", summary, measure, count=counts)


SCENARIOS = [
    _producer(
        "single", "publish, each in a transaction of its own", apart, messages=2_000, counted=500
    ),
    _producer(
        "transaction", "publish, all in one transaction", together, messages=5_000, counted=500
    ),
    _producer("many", "publish_many, one transaction", many, messages=50_000, counted=10_000),
]
