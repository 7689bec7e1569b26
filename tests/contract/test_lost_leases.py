"""Lost leases: said once, and nothing is started under one."""

from __future__ import annotations

from typing import Any

import pytest

from django_outbox import outbox
from tests.support import (
    Gate,
    committed,
    drain,
    message_row,
    publish,
    publish_many,
    running,
    steal,
    wait_for,
    wait_until,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def events(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record.event for record in caplog.records if hasattr(record, "event")]


def test_a_lost_lease_is_reported_once_however_often_the_handler_asks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[bool] = []

    @outbox.handler("orders", lease_ttl=0.6)
    def handle(message: outbox.Message[Any]) -> None:
        steal(message.id)
        answers.extend(message.heartbeat() for _ in range(5))
        wait_until(lambda: "lease_lost" in events(caplog))

    publish()
    drain()

    assert answers == [False] * 5
    assert events(caplog).count("lease_lost") == 1


@pytest.mark.parametrize("atomic", [False, True])
def test_a_waiting_message_whose_lease_was_lost_is_not_started(
    caplog: pytest.LogCaptureFixture, *, atomic: bool
) -> None:
    gate = Gate()
    started: list[Any] = []

    @outbox.handler("orders", atomic=atomic, lease_ttl=0.9)
    def handle(message: outbox.Message[Any]) -> None:
        started.append(message.payload)
        if message.payload == "slow":
            gate.wait()

    # The quick ones teach the worker that it can claim ahead; then one gets stuck.
    *_, behind = publish_many(["quick"] * 50 + ["slow", "behind"])
    with running():
        wait_for(gate.reached)
        wait_until(lambda: message_row(behind).leased_by == "tester")
        steal(behind)
        wait_until(lambda: "lease_lost" in events(caplog))
        gate.opened.set()

    assert started == ["quick"] * 50 + ["slow"]
    assert message_row(behind).leased_by == "thief"
