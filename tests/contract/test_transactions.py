"""A message commits or vanishes with the transaction it was published in."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from tests.testapp.models import Order

from .conftest import Drain
from .helpers import Together, committed, stored_payload, without_sql

pytestmark = committed


class Oops(Exception):
    pass


def test_a_message_commits_with_the_data_it_speaks_of() -> None:
    with transaction.atomic():
        order = Order.objects.create(name="book")
        id_ = outbox.publish({"order_id": order.pk}, queue="orders")

    assert stored_payload(id_) == {"order_id": Order.objects.get().pk}


def test_a_rolled_back_transaction_takes_its_messages_with_it() -> None:
    with suppress(Oops), transaction.atomic():
        Order.objects.create(name="book")
        outbox.publish({}, queue="orders")
        outbox.publish_many([{}, {}], queue="orders")
        raise Oops

    assert not Order.objects.exists()
    assert not OutboxMessage.objects.exists()


def test_a_rolled_back_savepoint_takes_its_message_with_it() -> None:
    # A03
    with transaction.atomic():
        outer = outbox.publish("A", queue="orders")
        with suppress(Oops), transaction.atomic():
            outbox.publish("B", queue="orders")
            raise Oops

    assert [message.pk for message in OutboxMessage.objects.all()] == [outer]
    assert stored_payload(outer) == "A"


def test_nobody_else_sees_a_message_before_its_transaction_commits(together: Together) -> None:
    with transaction.atomic():
        outbox.publish({}, queue="orders")
        assert together.start(OutboxMessage.objects.count).result(10) == 0
    assert together.start(OutboxMessage.objects.count).result(10) == 1


def test_a_handler_runs_after_the_commit_and_finds_the_data(drain: Drain) -> None:
    # A01
    seen: list[tuple[int, str]] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        seen.append((message.attempt, Order.objects.get(pk=message.payload["id"]).name))

    with transaction.atomic():
        order = Order.objects.create(name="book")
        outbox.publish({"id": order.pk}, queue="orders")
        drain()
        assert seen == []
    drain()

    assert seen == [(1, "book")]


def test_ids_lost_to_rollbacks_hold_nothing_up(drain: Drain) -> None:
    # A05
    seen: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        seen.append(message.payload)

    with transaction.atomic():
        outbox.publish(1, queue="orders")
    for _ in range(50):
        with transaction.atomic():
            outbox.publish(0, queue="orders")
            transaction.set_rollback(True)
    with transaction.atomic():
        outbox.publish(2, queue="orders")
    drain()

    assert sorted(seen) == [1, 2]


def test_a_duplicate_timer_leaves_the_callers_transaction_usable() -> None:
    # A07
    with transaction.atomic():
        first = outbox.publish({"n": 1}, queue="orders", timer_id="k")
    with transaction.atomic():
        assert outbox.publish({"n": 2}, queue="orders", timer_id="k") is None
        Order.objects.create(name="book")

    assert Order.objects.get().name == "book"
    assert OutboxMessage.objects.get().pk == first


@pytest.mark.parametrize("publish", [outbox.publish, outbox.publish_many])
def test_publishing_outside_a_transaction_is_refused(publish: Any) -> None:
    # A09
    with without_sql(), pytest.raises(TransactionManagementError) as caught:
        publish([{}], queue="orders")

    text = str(caught.value)
    assert "transaction.atomic()" in text
    assert "signal receiver" in text
    assert "ATOMIC_REQUESTS" in text
    assert not OutboxMessage.objects.exists()


def test_publishing_nothing_outside_a_transaction_is_refused_too() -> None:
    with without_sql(), pytest.raises(TransactionManagementError):
        outbox.publish_many([], queue="orders")


def test_a_publisher_outside_a_transaction_is_refused_too() -> None:
    with without_sql(), pytest.raises(TransactionManagementError):
        outbox.publisher("orders").publish({})


def test_turning_autocommit_off_is_no_atomic_block() -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError):
            outbox.publish({}, queue="orders")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_without_require_atomic_the_insert_autocommits(
    settings: LazySettings, together: Together
) -> None:
    # A09
    settings.OUTBOX = {"REQUIRE_ATOMIC": False}
    id_ = outbox.publish({"n": 1}, queue="orders")
    more = outbox.publish_many([{"n": 2}], queue="orders")

    assert not connection.in_atomic_block
    ids = OutboxMessage.objects.order_by("id").values_list("id", flat=True)
    assert together.start(lambda: list(ids.all())).result(10) == [id_, *more]


def test_without_require_atomic_a_message_still_rolls_back_with_its_block(
    settings: LazySettings,
) -> None:
    settings.OUTBOX = {"REQUIRE_ATOMIC": False}
    with suppress(Oops), transaction.atomic():
        outbox.publish({}, queue="orders")
        raise Oops

    assert not OutboxMessage.objects.exists()


def test_publishing_in_a_transaction_that_is_broken_says_so_as_django_does() -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError, match="until the end of the 'atomic' block"):
            outbox.publish({}, queue="orders")
