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


@pytest.mark.parametrize("stay", [block, wait_for_a_thread, swallow_the_cancellation])
def test_an_async_handler_that_cannot_be_cancelled_is_no_longer_renewed(
    stay: Callable[[Gate], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    deliveries: list[int] = []

    @outbox.handler("orders", timeout=0.3, lease_ttl=0.9)
    async def handle(message: outbox.Message[Any]) -> None:
        deliveries.append(message.deliveries_count)
        if message.deliveries_count == 1:
            await stay(gate)

    publish()
    with running():
        wait_for(gate.reached)
        with running(worker_id="second"):
            wait_until(lambda: deliveries == [1, 2])
            wait_until(lambda: not OutboxMessage.objects.exists())
        gate.opened.set()

    assert "handler_timeout" in events(caplog)
