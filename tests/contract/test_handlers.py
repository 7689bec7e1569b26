"""Handlers: what they get, how they are registered, what returning and raising means."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage
from tests.support import committed, drain, letter_of, make_due, message_row, publish

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def test_a_handler_gets_the_message_with_all_its_attributes() -> None:
    got: list[outbox.Message[Any]] = []
    outbox.handler("orders")(got.append)
    before = datetime.now(UTC)
    id_ = publish(
        {"order_id": 7},
        headers={"tenant": "acme"},
        correlation_id="request-1",
        timer_id="order-7",
    )
    row = message_row(id_)

    drain()

    (message,) = got
    assert message.id == id_
    assert message.message_id == row.message_id
    assert isinstance(message.message_id, uuid.UUID)
    assert message.queue == "orders"
    assert message.payload == {"order_id": 7}
    assert message.headers["tenant"] == "acme"
    assert message.headers["content-type"] == "application/json"
    assert message.correlation_id == "request-1"
    assert message.timer_id == "order-7"
    assert message.attempt == 1
    assert message.deliveries_count == 1
    assert message.created_at.tzinfo is not None
    assert abs(message.created_at - before) < timedelta(seconds=10)
    assert message.body == b'{"order_id":7}'


def test_bytes_are_handed_over_as_they_were_published() -> None:
    got: list[outbox.Message[Any]] = []
    outbox.handler("orders")(got.append)
    publish(b"\x00\xff", headers={"content-type": "image/png"})

    drain()

    assert [(m.payload, m.body, m.headers["content-type"]) for m in got] == [
        (b"\x00\xff", b"\x00\xff", "image/png")
    ]


def test_returning_settles_the_message_as_done() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        pass

    publish()
    drain()

    assert not OutboxMessage.objects.exists()
    assert not DeadLetter.objects.exists()


def test_an_async_handler_is_awaited() -> None:
    got: list[Any] = []

    @outbox.handler("orders")
    async def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)

    publish("hello")
    drain()

    assert got == ["hello"]
    assert not OutboxMessage.objects.exists()


def test_several_queues_may_share_a_handler() -> None:
    got: list[tuple[str, Any]] = []

    @outbox.handler("orders", "refunds")
    def handle(message: outbox.Message[Any]) -> None:
        got.append((message.queue, message.payload))

    publish(1, queue="orders")
    publish(2, queue="refunds")
    drain()

    assert sorted(got) == [("orders", 1), ("refunds", 2)]


def test_the_decorator_returns_the_function_itself() -> None:
    def handle(message: outbox.Message[Any]) -> None:
        pass

    assert outbox.handler("orders")(handle) is handle


def test_a_second_handler_for_a_queue_is_refused() -> None:
    @outbox.handler("orders", "refunds")
    def first(message: outbox.Message[Any]) -> None:
        pass

    def second(message: outbox.Message[Any]) -> None:
        pass

    with pytest.raises(ImproperlyConfigured, match="refunds"):
        outbox.handler("payments", "refunds")(second)
    outbox.handler("payments")(second)  # nothing of the refused registration has stayed


@pytest.mark.parametrize("queue", ["", "q" * 256, "a\x00b", "a\ud800b"])
def test_a_handler_for_a_queue_nobody_can_publish_to_is_refused(queue: str) -> None:
    with pytest.raises(outbox.InvalidName):
        outbox.handler(queue)


def test_a_handler_for_a_reserved_queue_is_refused() -> None:
    with pytest.raises(outbox.ReservedName):
        outbox.handler("__private")


def test_attempts_are_counted_from_one_and_grow_with_each_failure() -> None:
    seen: list[tuple[int, int]] = []

    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        seen.append((message.attempt, message.deliveries_count))
        if message.attempt < 3:
            raise ValueError("not yet")

    id_ = publish()
    for _ in range(3):
        make_due(id_)
        drain()

    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert not OutboxMessage.objects.exists()


def test_the_message_id_stays_the_same_through_retries_and_burial() -> None:
    seen: set[uuid.UUID] = set()

    @outbox.handler("orders", retry=outbox.ConstantRetry(3600, max_attempts=2))
    def handle(message: outbox.Message[Any]) -> None:
        seen.add(message.message_id)
        raise ValueError("never")

    id_ = publish()
    message_id = message_row(id_).message_id
    drain()
    make_due(id_)
    drain()

    assert seen == {message_id}
    assert letter_of(id_).message_id == message_id


def test_what_a_handler_publishes_inherits_its_correlation_and_trace() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    got: list[outbox.Message[Any]] = []
    outbox.handler("invoices")(got.append)

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        publish(queue="invoices")

    publish(correlation_id="request-1", headers={"traceparent": trace})
    drain()

    assert [(m.correlation_id, m.headers["traceparent"]) for m in got] == [("request-1", trace)]


def test_repr_of_a_message_shows_no_payload_and_no_headers() -> None:
    # L03
    got: list[outbox.Message[Any]] = []
    outbox.handler("orders")(got.append)
    publish({"token": "SECRET-XYZ"}, headers={"authorization": "SECRET-ABC"})

    drain()

    assert "SECRET" not in repr(got[0])
    assert "orders" in repr(got[0])
