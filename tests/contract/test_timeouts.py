"""Timeouts of async handlers that no cancellation ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from tests.support import (
    Gate,
    committed,
    publish,
    running,
    wait_for,
    wait_until,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def events(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record.event for record in caplog.records if hasattr(record, "event")]


async def block(gate: Gate) -> None:
    gate.wait()


async def wait_for_a_thread(gate: Gate) -> None:
    await sync_to_async(gate.wait, thread_sensitive=False)()


async def swallow_the_cancellation(gate: Gate) -> None:
    gate.reached.set()
    while not gate.opened.is_set():
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


STAYS: dict[str, Callable[[Gate], Awaitable[None]]] = {
    "blocks": block,
    "waits for a thread": wait_for_a_thread,
    "swallows the cancellation": swallow_the_cancellation,
}


def test_async_handlers_that_cannot_be_cancelled_are_no_longer_renewed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gates = {queue: Gate() for queue in STAYS}
    deliveries: list[tuple[str, int]] = []

    @outbox.handler(*STAYS, timeout=0.3, lease_ttl=0.9)
    async def handle(message: outbox.Message[Any]) -> None:
        deliveries.append((message.queue, message.deliveries_count))
        if message.deliveries_count == 1:
            await STAYS[message.queue](gates[message.queue])

    for queue in STAYS:
        publish(queue=queue)
    with running(concurrency=3):
        for gate in gates.values():
            wait_for(gate.reached)
        with running(worker_id="second"):
            wait_until(lambda: not OutboxMessage.objects.exists())
        for gate in gates.values():
            gate.opened.set()

    assert sorted(deliveries) == sorted((queue, n) for queue in STAYS for n in (1, 2))
    assert events(caplog).count("handler_timeout") == 3
