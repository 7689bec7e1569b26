"""Atomic handlers: their writes and the removal of the message commit together or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, DataError, connection, transaction

from django_outbox import outbox, signals
from django_outbox.models import OutboxMessage
from tests.support import (
    Gate,
    committed,
    drain,
    expire_lease,
    letter_of,
    make_due,
    message_row,
    publish,
    received,
    running,
    steal,
    wait_for,
    wait_until,
)
from tests.testapp.models import Order

pytestmark = [committed, pytest.mark.usefixtures("registry")]

HOUR = outbox.ConstantRetry(3600, max_attempts=2)


def test_writes_publishes_and_the_removal_commit_together() -> None:
    inside: list[tuple[bool, int]] = []

    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        inside.append((connection.in_atomic_block, OutboxMessage.objects.count()))
        Order.objects.create(name="booked")
        outbox.publish(1, queue="invoices")
        return outbox.OutboxResponse(2, queue="labels")

    publish()
    drain("orders")

    assert inside == [(True, 1)]
    assert [order.name for order in Order.objects.all()] == ["booked"]
    queues = OutboxMessage.objects.order_by("id").values_list("queue", flat=True)
    assert list(queues) == ["invoices", "labels"]


def test_a_handler_that_rolls_back_behind_django_has_failed() -> None:
    @outbox.handler("orders", atomic=True, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name="lost")
        connection.connection.rollback()

    id_ = publish()
    drain()

    assert "ended the transaction on 'default'" in str(message_row(id_).last_error)


@pytest.mark.parametrize(
    "statement",
    [
        "ROLLBACK",
        "-- that will do\nCOMMIT;",
        "INSERT INTO testapp_order (name, amount) VALUES ('lost', 1); ROLLBACK",
        "BEGIN; INSERT INTO testapp_order (name, amount) VALUES ('kept', 1); COMMIT;",
    ],
)
def test_a_handler_that_ends_the_transaction_by_hand_has_failed(statement: str) -> None:
    @outbox.handler("orders", atomic=True, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    id_ = publish()
    drain()

    assert message_row(id_).attempts_count == 1
    assert "ended the transaction on 'default'" in str(message_row(id_).last_error)


@pytest.mark.parametrize("error", [ValueError("no"), outbox.Retry(delay=3600), SystemExit(1)])
def test_a_failure_rolls_all_of_it_back_and_counts(error: BaseException) -> None:
    @outbox.handler("orders", atomic=True, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name="booked")
        outbox.publish(1, queue="invoices")
        raise error

    id_ = publish()
    drain("orders")
    assert message_row(id_).attempts_count == 1
    make_due(id_)
    drain("orders")

    assert letter_of(id_).attempts_count == 2
    assert not Order.objects.exists()
    assert not OutboxMessage.objects.exists()


def test_a_lost_lease_rolls_all_of_it_back() -> None:
    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name="booked")
        outbox.publish(1, queue="invoices")
        steal(message.id)

    id_ = publish()
    drain("orders")

    assert not Order.objects.exists()
    assert [row.id for row in OutboxMessage.objects.all()] == [id_]
    assert message_row(id_).attempts_count == 0


def test_database_effects_happen_once_though_two_workers_deliver_the_message() -> None:
    gate = Gate()
    deliveries: list[int] = []

    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        deliveries.append(message.deliveries_count)
        Order.objects.create(name="booked")
        if message.deliveries_count == 1:
            gate.wait()

    id_ = publish()
    with received(signals.lease_lost) as lost, running(worker_id="paused"):
        wait_for(gate.reached)
        expire_lease(id_)
        drain()
        assert not OutboxMessage.objects.exists()
        gate.opened.set()
        wait_until(lambda: lost)

    assert deliveries == [1, 2]
    assert [order.name for order in Order.objects.all()] == ["booked"]


def test_a_savepoint_rolled_back_in_the_handler_takes_only_its_own_with_it() -> None:
    # A03
    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name="kept")
        outbox.publish("A", queue="invoices")
        try:
            with transaction.atomic():
                Order.objects.create(name="dropped")
                outbox.publish("B", queue="invoices")
                Order.objects.create(name="too long" * 100)
        except DataError:
            pass

    publish()
    drain("orders")

    assert [order.name for order in Order.objects.all()] == ["kept"]
    assert [bytes(row.payload) for row in OutboxMessage.objects.all()] == [b'"A"']


def test_an_async_atomic_handler_writes_in_the_same_transaction() -> None:
    @outbox.handler("orders", atomic=True, retry=HOUR)
    async def handle(message: outbox.Message[Any]) -> None:
        await Order.objects.acreate(name=message.payload)
        if message.payload == "bad":
            raise ValueError("no")

    bad = publish("bad")
    publish("good")
    drain()

    assert [order.name for order in Order.objects.all()] == ["good"]
    assert [row.id for row in OutboxMessage.objects.all()] == [bad]


def test_on_commit_hooks_run_after_the_removal_is_committed() -> None:
    live: list[int] = []

    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        transaction.on_commit(lambda: live.append(OutboxMessage.objects.count()))

    publish()
    drain()

    assert live == [0]


def test_an_on_commit_hook_that_raises_is_logged_and_the_message_stays_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name="booked")

        def hook() -> None:
            raise RuntimeError("hook broke")

        transaction.on_commit(hook)

    publish()
    with received(signals.message_completed) as done:
        drain()

    assert len(done) == 1
    assert Order.objects.count() == 1
    assert not OutboxMessage.objects.exists()
    assert "hook broke" in caplog.text


def test_a_failure_at_commit_is_a_failed_attempt() -> None:
    @outbox.handler("orders", atomic=True, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name="booked")
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE strict_child (id int REFERENCES testapp_order"
                " DEFERRABLE INITIALLY DEFERRED)"
            )
            cursor.execute("INSERT INTO strict_child VALUES (-1)")

    id_ = publish()
    drain()

    row = message_row(id_)
    assert row.attempts_count == 1
    assert "IntegrityError" in (row.last_error or "")
    assert not Order.objects.exists()


def test_an_error_of_the_database_that_is_not_caught_is_a_failed_attempt() -> None:
    seen: list[type[BaseException]] = []

    @outbox.handler("orders", atomic=True, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")
        except DatabaseError as error:
            seen.append(type(error))
            raise

    id_ = publish()
    drain()

    assert len(seen) == 1
    assert message_row(id_).attempts_count == 1


def test_an_ack_that_was_rolled_back_is_no_proof_of_the_lease() -> None:
    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        try:
            with transaction.atomic():
                message.ack()
                Order.objects.create(name="too long" * 100)
        except DataError:
            pass
        steal(message.id)
        Order.objects.create(name="booked")

    id_ = publish()
    drain()

    assert not Order.objects.exists()
    assert message_row(id_).leased_by == "thief"
