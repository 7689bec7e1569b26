"""`message.ack()`: settle in the handler's own transaction, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import DataError, connection, transaction
from django.db.transaction import TransactionManagementError

from django_outbox import outbox, signals
from django_outbox.models import DeadLetter, OutboxMessage
from tests.support import committed, drain, message_row, publish, received, session, steal
from tests.testapp.models import Order

pytestmark = [committed, pytest.mark.usefixtures("registry")]

HOUR = outbox.ConstantRetry(3600)


def live_messages() -> int:
    """Count the messages another session can see."""
    with session() as other:
        row = other.execute("SELECT count(*) FROM django_outbox_message").fetchone()
    assert row is not None
    return int(row[0])


def test_an_acked_message_is_gone_when_the_block_commits() -> None:
    seen: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            Order.objects.create(name="booked")
            message.ack()
            seen.append(live_messages())
        seen.append(live_messages())

    publish()
    with received(signals.message_completed) as completed:
        drain()

    assert seen == [1, 0]
    assert Order.objects.count() == 1
    assert len(completed) == 1


@pytest.mark.parametrize("error", [ValueError("too late"), outbox.Reject("no"), SystemExit(1)])
def test_what_follows_an_ack_cannot_bring_the_message_back(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            Order.objects.create(name="booked")
            message.ack()
        raise error

    publish()
    with received(signals.lease_lost) as lost:
        drain()

    assert Order.objects.count() == 1
    assert not OutboxMessage.objects.exists()
    assert not DeadLetter.objects.exists()
    assert lost == []
    assert not any(getattr(r, "event", None) == "lease_lost" for r in caplog.records)


def test_an_ack_is_undone_with_its_block() -> None:
    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            Order.objects.create(name="booked")
            message.ack()
            raise ValueError("no")

    id_ = publish()
    drain()

    row = message_row(id_)
    assert row.attempts_count == 1
    assert row.lease_token is None
    assert not Order.objects.exists()


def test_returning_after_an_ack_that_was_rolled_back_settles_the_message() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        try:
            with transaction.atomic():
                message.ack()
                Order.objects.create(name="too long" * 100)
        except DataError:
            pass

    publish()
    with received(signals.lease_lost) as lost:
        drain()

    assert not OutboxMessage.objects.exists()
    assert lost == []


@pytest.mark.parametrize("caught", ["caught", "not caught"])
def test_acking_outside_a_block_is_refused(caught: str) -> None:
    raised: list[str] = []

    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        try:
            message.ack()
        except TransactionManagementError as error:
            raised.append(str(error))
            if caught == "not caught":
                raise

    id_ = publish()
    drain()

    assert len(raised) == 1
    assert "atomic" in raised[0]
    if caught == "caught":
        assert not OutboxMessage.objects.exists()
    else:
        assert message_row(id_).attempts_count == 1


def test_acking_with_the_lease_lost_raises_and_rolls_the_block_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    raised: list[outbox.LeaseLost] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        steal(message.id)
        try:
            with transaction.atomic():
                Order.objects.create(name="booked")
                message.ack()
        except outbox.LeaseLost as error:
            raised.append(error)
            raise

    id_ = publish()
    drain()

    assert len(raised) == 1
    assert not Order.objects.exists()
    row = message_row(id_)
    assert (row.leased_by, row.attempts_count) == ("thief", 0)
    phases = [vars(r)["phase"] for r in caplog.records if getattr(r, "event", "") == "lease_lost"]
    assert phases == ["ack"]


def test_a_response_is_published_after_an_ack_in_the_handlers_block() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        with transaction.atomic():
            message.ack()
        return outbox.OutboxResponse(1, queue="invoices")

    publish()
    drain("orders")

    assert [row.queue for row in OutboxMessage.objects.all()] == ["invoices"]


def test_acking_in_an_atomic_handler_is_its_own_settlement() -> None:
    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name="booked")
        message.ack()

    publish()
    with received(signals.message_completed) as completed:
        drain()

    assert len(completed) == 1
    assert Order.objects.count() == 1
    assert not OutboxMessage.objects.exists()


def test_a_message_kept_after_its_delivery_cannot_be_acked() -> None:
    kept: list[outbox.Message[Any]] = []
    outbox.handler("orders")(kept.append)
    publish()
    drain()

    def ack_again() -> None:
        with transaction.atomic():
            Order.objects.create(name="booked")
            kept[0].ack()

    with pytest.raises(outbox.LeaseLost):
        ack_again()
    assert not Order.objects.exists()


def test_an_async_handler_acks_in_a_block_of_its_thread() -> None:
    @outbox.handler("orders")
    async def handle(message: outbox.Message[Any]) -> None:
        def book() -> None:
            with transaction.atomic():
                Order.objects.create(name="booked")
                message.ack()

        await sync_to_async(book)()
        raise ValueError("too late")

    publish()
    drain()

    assert Order.objects.count() == 1
    assert not OutboxMessage.objects.exists()


def test_after_an_ack_that_was_rolled_back_a_lost_lease_publishes_no_response() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        try:
            with transaction.atomic():
                message.ack()
                Order.objects.create(name="too long" * 100)
        except DataError:
            pass
        steal(message.id)
        return outbox.OutboxResponse(1, queue="invoices")

    id_ = publish()
    with received(signals.lease_lost) as lost:
        drain("orders")

    assert [row.id for row in OutboxMessage.objects.all()] == [id_]
    assert len(lost) == 1


def test_a_session_lost_after_an_ack_changes_nothing() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            Order.objects.create(name="booked")
            message.ack()
        with connection.cursor() as cursor:
            connection.connection.close()
            cursor.execute("SELECT 1")

    publish()
    with received(signals.message_completed) as completed:
        drain()

    assert len(completed) == 1
    assert Order.objects.count() == 1
    assert not OutboxMessage.objects.exists()
