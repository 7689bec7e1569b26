"""`publish(ref=…)`: which object a message is about, through all that becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage
from tests.testapp.models import Order

from .helpers import claim, fail, without_sql

pytestmark = pytest.mark.django_db


@pytest.fixture
def order() -> Order:
    return Order.objects.create(name="tea")


def test_a_message_keeps_which_object_it_is_about(order: Order) -> None:
    outbox.publish({}, queue="orders", ref=order)
    outbox.publisher("orders").publish({}, ref=order)
    outbox.publish({}, queue="orders")

    refs = OutboxMessage.objects.order_by("id").values_list("ref", flat=True)
    assert list(refs) == [f"testapp.order:{order.pk}", f"testapp.order:{order.pk}", None]


def test_a_proxy_is_told_by_the_model_it_stands_for(order: Order) -> None:
    class Special(Order):
        class Meta:
            proxy = True
            app_label = "testapp"

    outbox.publish({}, queue="orders", ref=Special.objects.get())

    assert OutboxMessage.objects.get().ref == f"testapp.order:{order.pk}"


def test_it_outlives_retries_burial_and_replay(order: Order) -> None:
    ref = f"testapp.order:{order.pk}"
    outbox.publish({}, queue="orders", ref=order)
    fail(claim("orders")[0], delay=0)
    assert OutboxMessage.objects.get().ref == ref

    outbox.run_once("orders", reject)
    assert DeadLetter.objects.get().ref == ref

    DeadLetter.objects.replay()
    assert OutboxMessage.objects.get().ref == ref


def reject(message: outbox.Message[Any]) -> None:
    raise outbox.Reject("no")


@pytest.mark.parametrize("conflict", ["extend", "replace"])
def test_a_timer_that_is_moved_takes_the_new_object(order: Order, conflict: Any) -> None:
    other = Order.objects.create(name="coffee")
    for seconds, about in ((60, order), (120, other)):
        outbox.publish(
            {}, queue="q", timer_id="t", timer_conflict=conflict, activate_in=seconds, ref=about
        )

    assert OutboxMessage.objects.get().ref == f"testapp.order:{other.pk}"


def test_a_response_may_name_its_object(order: Order) -> None:
    outbox.publish({}, queue="orders")

    outbox.run_once("orders", lambda message: outbox.OutboxResponse({}, queue="letters", ref=order))

    assert OutboxMessage.objects.get(queue="letters").ref == f"testapp.order:{order.pk}"


@pytest.mark.parametrize(
    ("ref", "error", "says"),
    [
        ("testapp.order:1", TypeError, "it is of type str"),
        (Order(), ValueError, "this testapp.order has no primary key yet"),
        (Order(pk="x" * 600), ValueError, "614 characters, more than 512"),
        (Order(pk="a\x00b"), ValueError, "NUL"),
    ],
)
def test_what_is_no_saved_object_is_refused_before_any_sql(
    ref: Any, error: type[Exception], says: str
) -> None:
    with without_sql(), pytest.raises(error, match=says):
        outbox.publish({}, queue="orders", ref=ref)
