"""Messages go to the database of the business write, and only to PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import LazySettings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.db.transaction import TransactionManagementError

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage
from tests.testapp.models import Order

from .conftest import Drain
from .helpers import row

both = pytest.mark.django_db(
    transaction=True,
    databases=["default", "orders"],
    available_apps=["django_outbox", "tests.testapp"],
)


class OrdersElsewhere:
    """Sends the business data to `orders`, and leaves the outbox where it is."""

    def db_for_write(self, model: type[Any], **hints: Any) -> str | None:
        return "orders" if model is Order else None

    db_for_read = db_for_write


class OutboxElsewhere:
    """Sends the outbox to `orders`."""

    def db_for_write(self, model: type[Any], **hints: Any) -> str | None:
        return "orders" if model._meta.app_label == "django_outbox" else None

    db_for_read = db_for_write


@pytest.fixture
def orders_elsewhere(settings: LazySettings) -> None:
    settings.DATABASE_ROUTERS = [OrdersElsewhere()]


@both
@pytest.mark.usefixtures("orders_elsewhere")
def test_a_message_does_not_go_to_another_database_than_the_transactions() -> None:
    # J03
    with transaction.atomic(using="orders"):
        Order.objects.create(name="book")
        with pytest.raises(TransactionManagementError, match="'default'"):
            outbox.publish({}, queue="orders")
        transaction.set_rollback(True, using="orders")

    assert not OutboxMessage.objects.using("default").exists()
    assert not OutboxMessage.objects.using("orders").exists()


@both
@pytest.mark.usefixtures("orders_elsewhere")
def test_a_message_published_to_a_database_rolls_back_with_it() -> None:
    # J03
    with transaction.atomic(using="orders"):
        Order.objects.create(name="book")
        id_ = outbox.publish({}, queue="orders", using="orders")
        outbox.publish_many([{}], queue="orders", using="orders")
        assert row(id_, "orders").queue == "orders"
        transaction.set_rollback(True, using="orders")

    assert not OutboxMessage.objects.using("orders").exists()
    assert not OutboxMessage.objects.using("default").exists()


@both
@pytest.mark.usefixtures("orders_elsewhere")
def test_a_worker_of_that_database_delivers_its_messages_and_no_others(drain: Drain) -> None:
    # J03
    received: list[str] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        received.append(Order.objects.get(pk=message.payload).name)

    with transaction.atomic(using="orders"):
        order = Order.objects.create(name="book")
        outbox.publish(order.pk, queue="orders", using="orders")
    with transaction.atomic():
        here = outbox.publish(0, queue="orders")
    drain("orders")

    assert received == ["book"]
    assert not OutboxMessage.objects.using("orders").exists()
    assert OutboxMessage.objects.using("default").get().pk == here


@both
def test_the_router_decides_where_messages_go_when_nobody_says(settings: LazySettings) -> None:
    settings.DATABASE_ROUTERS = [OutboxElsewhere()]
    with transaction.atomic(using="orders"):
        id_ = outbox.publish({}, queue="orders", timer_id="t")

    assert row(id_, "orders").queue == "orders"
    assert outbox.cancel_timer(queue="orders", timer_id="t") is True


@both
def test_a_transaction_on_another_database_does_not_count() -> None:
    with (
        transaction.atomic(using="default"),
        pytest.raises(TransactionManagementError, match="'orders'"),
    ):
        outbox.publish({}, queue="orders", using="orders")


@both
def test_dead_letters_are_replayed_and_discarded_on_their_own_database(drain: Drain) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        raise outbox.Reject("no")

    with transaction.atomic(using="orders"):
        outbox.publish_many([1, 2], queue="orders", using="orders")
    drain("orders")
    letters = DeadLetter.objects.using("orders")

    assert letters.filter(payload=b"1").replay() == outbox.ReplayResult(replayed=1, skipped=0)
    assert bytes(OutboxMessage.objects.using("orders").get().payload) == b"1"
    assert letters.discard() == 1
    assert not OutboxMessage.objects.using("default").exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "call",
    [
        lambda using: outbox.publish({}, queue="orders", using=using),
        lambda using: outbox.publish_many([{}], queue="orders", using=using),
        lambda using: outbox.publish_many([], queue="orders", using=using),
        lambda using: outbox.cancel_timer(queue="orders", timer_id="t", using=using),
        lambda using: outbox.publisher("orders", using=using).publish({}),
    ],
)
def test_a_database_that_is_not_postgresql_is_refused(call: Any, sqlite: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"PostgreSQL.*'lite' is SQLite"):
        call(sqlite)
