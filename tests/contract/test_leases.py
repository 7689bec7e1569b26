"""Leases: renewed while held, by the worker or by hand, until the handler's timeout."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from django_outbox import outbox, signals
from django_outbox.models import OutboxMessage
from tests.support import (
    Gate,
    committed,
    drain,
    message_row,
    publish,
    publish_many,
    received,
    running,
    session,
    steal,
    wait_for,
    wait_until,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def ends_of_the_lease(id_: int, *, during: float) -> list[datetime]:
    """Return the different ends the message's lease takes on in so many seconds."""
    ends: list[datetime] = []
    deadline = time.monotonic() + during
    with session() as other:
        while time.monotonic() < deadline:
            row = other.execute(
                "SELECT lease_expires_at FROM django_outbox_message WHERE id = %s", [id_]
            ).fetchone()
            if row is not None and row[0] is not None and row[0] not in ends:
                ends.append(row[0])
            time.sleep(0.01)
    return ends


def test_the_lease_of_a_running_message_is_renewed_at_a_third_of_its_ttl() -> None:
    # B03
    gate = Gate()

    @outbox.handler("orders", lease_ttl=1.5)
    def handle(message: outbox.Message[Any]) -> None:
        gate.wait()

    id_ = publish()
    with running():
        wait_for(gate.reached)
        ends = ends_of_the_lease(id_, during=2.2)
        gate.opened.set()

    steps = [later - earlier for earlier, later in pairwise(ends)]
    assert 3 <= len(steps) <= 5
    for step in steps:
        assert timedelta(seconds=0.35) < step < timedelta(seconds=0.75)


def test_a_handler_longer_than_its_lease_runs_once_among_several_workers() -> None:
    # B03, B07
    runs: list[int] = []

    @outbox.handler("orders", lease_ttl=0.6)
    def handle(message: outbox.Message[Any]) -> None:
        runs.append(message.attempt)
        time.sleep(1.5)  # so long is the work

    publish(timer_id="nightly")
    with running(), running(worker_id="second"), running(worker_id="third"):
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert runs == [1]


def test_waiting_messages_are_renewed_too_and_while_draining() -> None:
    runs: list[int] = []

    @outbox.handler("orders", lease_ttl=0.5)
    def handle(message: outbox.Message[Any]) -> None:
        runs.append(message.id)
        if message.payload == "slow":
            time.sleep(1.5)

    # The quick ones let the worker claim ahead, so that some wait behind the slow one.
    ids = publish_many(["quick"] * 30 + ["slow"] + ["quick"] * 30)
    drain(batch_size=20)

    assert runs == ids


def test_heartbeat_renews_the_lease_by_hand() -> None:
    got: list[tuple[bool, timedelta]] = []

    @outbox.handler("orders", lease_ttl=60)
    def handle(message: outbox.Message[Any]) -> None:
        before = message_row(message.id).lease_expires_at
        time.sleep(0.05)  # so that the new end differs
        renewed = message.heartbeat()
        after = message_row(message.id).lease_expires_at
        assert before is not None
        assert after is not None
        got.append((renewed, after - before))

    publish()
    drain()

    ((renewed, step),) = got
    assert renewed is True
    assert timedelta(seconds=0.04) < step < timedelta(seconds=5)


def test_heartbeat_says_when_the_lease_is_lost() -> None:
    got: list[bool] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        steal(message.id)
        got.append(message.heartbeat())

    id_ = publish()
    with received(signals.lease_lost) as lost:
        drain()

    assert got == [False]
    assert message_row(id_).leased_by == "thief"
    assert len(lost) == 1


def test_a_lease_found_lost_at_renewal_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    @outbox.handler("orders", lease_ttl=0.6)
    def handle(message: outbox.Message[Any]) -> None:
        gate.wait()

    id_ = publish()
    with received(signals.lease_lost) as lost, running(concurrency=2):
        wait_for(gate.reached)
        steal(id_)
        wait_until(lambda: lost)
        gate.opened.set()

    records = [r for r in caplog.records if getattr(r, "event", None) == "lease_lost"]
    (found,) = [{name: vars(r)[name] for name in ("phase", "ids", "count")} for r in records]
    assert found == {"phase": "renew", "ids": [id_], "count": 1}
    assert [call["phase"] for call in lost] == ["renew"]
    assert message_row(id_).leased_by == "thief"


def test_handlers_may_give_their_lease_in_whole_seconds_and_in_fractions() -> None:
    handled: list[str] = []

    @outbox.handler("orders", lease_ttl=30)
    @outbox.handler("refunds", lease_ttl=1.5)
    @outbox.handler("invoices")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.queue)
        assert message.heartbeat()

    for queue in ("orders", "refunds", "invoices"):
        publish(queue=queue)
    drain()

    assert sorted(handled) == ["invoices", "orders", "refunds"]


# Timeouts


def test_an_async_handler_past_its_timeout_is_cancelled_and_has_failed() -> None:
    cancelled: list[bool] = []

    @outbox.handler("orders", timeout=0.2, retry=outbox.ConstantRetry(3600))
    async def handle(message: outbox.Message[Any]) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    id_ = publish()
    began = time.monotonic()
    drain()

    assert time.monotonic() - began < 3
    assert cancelled == [True]
    row = message_row(id_)
    assert row.attempts_count == 1
    assert "TimeoutError" in (row.last_error or "")


def test_an_async_handler_within_its_timeout_is_left_alone() -> None:
    @outbox.handler("orders", timeout=5)
    async def handle(message: outbox.Message[Any]) -> None:
        await asyncio.sleep(0)

    publish()
    drain()

    assert not OutboxMessage.objects.exists()


def test_a_thread_past_its_timeout_is_no_longer_renewed_and_the_message_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()
    runs: list[tuple[int, int]] = []

    @outbox.handler("orders", timeout=0.3, lease_ttl=0.9)
    def handle(message: outbox.Message[Any]) -> None:
        runs.append((message.attempt, message.deliveries_count))
        if message.deliveries_count == 1:
            gate.wait()

    id_ = publish()
    with running(worker_id="stuck") as stuck:
        wait_for(gate.reached)
        with running(worker_id="healthy"):
            wait_until(lambda: not OutboxMessage.objects.exists())
        stuck.stop()
        gate.opened.set()

    assert runs == [(1, 1), (1, 2)]
    (record,) = [r for r in caplog.records if getattr(r, "event", None) == "handler_timeout"]
    assert record.levelname == "WARNING"
    assert vars(record)["id"] == id_


def test_a_thread_past_its_timeout_that_ends_while_its_lease_stands_has_settled() -> None:
    @outbox.handler("orders", timeout=0.1, lease_ttl=60)
    def handle(message: outbox.Message[Any]) -> None:
        time.sleep(0.3)  # so long is the work

    publish()
    drain()

    assert not OutboxMessage.objects.exists()
