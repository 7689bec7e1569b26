"""What a handler does after its ack changes nothing, and is not kept secret."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from tests.support import (
    committed,
    drain,
    publish,
)
from tests.testapp.models import Order

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def events(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record.event for record in caplog.records if hasattr(record, "event")]


@pytest.mark.parametrize("times", [2, 3])
def test_acking_again_in_the_same_block_changes_nothing(times: int) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            for _ in range(times):
                Order.objects.create(name="booked")
                message.ack()

    publish()
    drain()

    assert not OutboxMessage.objects.exists()
    assert Order.objects.count() == times


def test_an_error_after_a_committed_ack_is_logged_by_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            message.ack()
        raise ValueError("too late")

    id_ = publish()
    drain()

    (record,) = [r for r in caplog.records if getattr(r, "event", None) == "failed_after_ack"]
    assert (record.levelname, vars(record)["id"], vars(record)["queue"]) == ("ERROR", id_, "orders")
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize(
    "response",
    [
        outbox.OutboxResponse({}, queue="__reserved"),
        outbox.OutboxResponse(object(), queue="others"),
        outbox.OutboxResponse({}, queue="others", max_attempts=0),
    ],
    ids=["bad queue", "bad payload", "bad option"],
)
def test_a_response_that_cannot_be_published_after_a_committed_ack_is_logged_too(
    response: outbox.OutboxResponse, caplog: pytest.LogCaptureFixture
) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        with transaction.atomic():
            message.ack()
        return response

    publish()
    drain()

    assert events(caplog).count("failed_after_ack") == 1
    assert not OutboxMessage.objects.exists()
