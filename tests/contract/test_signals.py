"""Signals and log lines: what the world hears of deliveries."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.dispatch import Signal

from django_outbox import outbox, signals
from django_outbox.models import OutboxMessage
from tests.support import (
    Gate,
    committed,
    drain,
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


def complete(message: outbox.Message[Any]) -> None:
    pass


def fail(message: outbox.Message[Any]) -> None:
    raise ValueError("too late")


def reject(message: outbox.Message[Any]) -> None:
    raise outbox.Reject("too late")


@pytest.mark.parametrize(
    ("signal", "end", "adds"),
    [
        (signals.message_completed, complete, {}),
        (signals.message_retried, fail, {"delay": 3600.0, "exception": ValueError}),
        (signals.message_buried, reject, {"reason": "rejected", "exception": outbox.Reject}),
    ],
    ids=["completed", "retried", "buried"],
)
def test_each_outcome_sends_its_signal_with_what_it_adds(
    signal: Signal, end: Callable[[outbox.Message[Any]], None], adds: dict[str, Any]
) -> None:
    outbox.handler("orders", retry=outbox.ConstantRetry(3600))(end)
    id_ = publish({"n": 1})

    with received(signal) as calls:
        drain(worker_id="worker-7")

    (call,) = calls
    assert isinstance(call["message"], outbox.Message)
    assert call["message"].id == id_
    assert call["message"].payload == {"n": 1}
    assert call["worker_id"] == "worker-7"
    assert isinstance(call["duration"], float)
    assert 0 <= call["duration"] < 10
    for name, value in adds.items():
        assert isinstance(call[name], value) if isinstance(value, type) else call[name] == value


def test_a_burial_without_a_delivery_signals_its_reason_and_no_exception() -> None:
    outbox.handler("orders", max_deliveries=1)(complete)
    id_ = publish()
    OutboxMessage.objects.filter(pk=id_).update(deliveries_count=1)

    with received(signals.message_buried) as calls:
        drain()

    assert [(c["message"].id, c["reason"], c["exception"]) for c in calls] == [
        (id_, "max_deliveries", None)
    ]


def test_what_a_stopping_worker_hands_back_is_signalled_as_released() -> None:
    gate = Gate()

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "slow":
            gate.wait()

    # The quick ones teach the worker that it can claim ahead; the rest waits behind the slow one.
    with session() as other, other.transaction():
        publish_many(["quick"] * 50)
        publish("slow")
        behind = publish_many(["behind"] * 10)
    with received(signals.message_released) as calls, running(batch_size=20) as worker:
        wait_for(gate.reached)
        held = set(
            OutboxMessage.objects.filter(pk__in=behind, lease_token__isnull=False).values_list(
                "pk", flat=True
            )
        )
        worker.stop()
        wait_until(
            lambda: (
                not OutboxMessage.objects.filter(pk__in=behind, lease_token__isnull=False).exists()
            )
        )
        gate.opened.set()

    assert held
    assert {call["message"].id for call in calls} >= held
    assert {call["exception"] for call in calls} == {None}
    assert {call["duration"] for call in calls} == {0.0}


@pytest.mark.parametrize("atomic", [False, True])
def test_a_signal_is_sent_after_the_write_has_succeeded(*, atomic: bool) -> None:
    outbox.handler("orders", atomic=atomic)(complete)
    live: list[int] = []

    def count(**kwargs: Any) -> None:
        with session() as other:
            row = other.execute("SELECT count(*) FROM django_outbox_message").fetchone()
        assert row is not None
        live.append(row[0])

    signals.message_completed.connect(count)
    try:
        publish()
        drain()
    finally:
        signals.message_completed.disconnect(count)

    assert live == [0]


def test_a_receiver_that_raises_is_logged_and_harms_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox.handler("orders")(complete)

    def receiver(**kwargs: Any) -> None:
        raise RuntimeError("receiver broke")

    signals.message_completed.connect(receiver)
    try:
        publish_many([1, 2])
        with received(signals.message_completed) as calls:
            drain()
    finally:
        signals.message_completed.disconnect(receiver)

    assert len(calls) == 2
    assert not OutboxMessage.objects.exists()
    assert "receiver broke" in caplog.text


@pytest.mark.parametrize(
    "end", [complete, fail, reject, None], ids=["completed", "retried", "buried", "lost"]
)
def test_no_log_line_carries_the_payload(
    end: Callable[[outbox.Message[Any]], None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    # L03
    caplog.set_level(logging.DEBUG, "django_outbox")

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        if end is None:
            steal(message.id)
        else:
            end(message)

    publish({"token": "SECRET-XYZ"}, headers={"authorization": "SECRET-ABC"})
    drain()

    assert caplog.records
    for record in caplog.records:
        assert "SECRET" not in record.getMessage()
        assert "SECRET" not in repr(vars(record))
        assert "SECRET" not in (record.exc_text or "")


def test_only_registered_queues_run_whatever_is_in_the_table() -> None:
    # L01
    ran: list[str] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        ran.append(message.queue)

    for queue in ("os.system", "builtins.exec"):
        OutboxMessage.objects.create(queue=queue, payload=b"cos\nsystem\n(S'true'\ntR.", headers={})
    publish()
    drain()

    assert ran == ["orders"]
    assert OutboxMessage.objects.count() == 2


def test_no_signal_is_sent_for_what_is_still_running() -> None:
    gate = Gate()

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        gate.wait()

    publish()
    with received(signals.message_completed) as calls:
        with running():
            wait_for(gate.reached)
            assert calls == []
            gate.opened.set()
            wait_until(lambda: not OutboxMessage.objects.exists())
        assert len(calls) == 1
