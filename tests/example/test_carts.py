from __future__ import annotations

from datetime import timedelta

import pytest

from django_outbox import outbox
from django_outbox.testing import assert_published, drain, published
from example_project.shop import services
from example_project.shop.carts import ABANDONED_AFTER
from example_project.shop.models import Cart, CartReminder, Order

pytestmark = pytest.mark.django_db

LATER = ABANDONED_AFTER + timedelta(seconds=1)


def reminders() -> list[int]:
    """Return how many pieces each reminder sent spoke of."""
    return list(CartReminder.objects.order_by("pk").values_list("pieces", flat=True))


def leave_a_due_timer(cart: Cart) -> None:
    """Publish what is due when the cart is touched or checked out just as its timer fires."""
    payload = {"cart_id": cart.pk, "pieces": cart.pieces - 1}
    outbox.publish(payload, queue="carts", timer_id=cart.reference)


def test_an_abandoned_cart_is_reminded_of_once_with_all_that_is_in_it(cart: Cart) -> None:
    for _ in range(3):
        services.add_to_cart(cart)

    assert drain() == 0
    assert drain(advance=LATER) == 1
    assert reminders() == [3]
    assert published() == []


def test_every_touch_puts_the_one_timer_off(cart: Cart) -> None:
    services.add_to_cart(cart)
    [first] = published("carts")
    services.add_to_cart(cart)
    [second] = published("carts")

    assert second.id == first.id
    assert second.timer_id == cart.reference
    assert second.next_attempt_at > first.next_attempt_at
    assert_published("carts", payload={"cart_id": cart.pk, "pieces": 2})


def test_a_cart_that_is_checked_out_is_not_reminded_of(cart: Cart) -> None:
    services.add_to_cart(cart)
    order = services.check_out(cart)

    assert published("carts") == []
    assert_published("orders", payload={"order_id": order.pk})
    cart.refresh_from_db()
    assert (cart.order, order.quantity) == (order, 1)
    drain(advance=LATER)
    assert reminders() == []


def test_a_cart_checked_out_while_its_timer_fires_is_not_reminded_of(cart: Cart) -> None:
    cart.pieces = 1
    cart.order = Order.objects.create(customer=cart.customer, product=cart.product)
    cart.save()
    leave_a_due_timer(cart)

    assert drain() == 1
    assert published() == []
    assert reminders() == []


def test_a_cart_touched_while_its_timer_fires_gets_a_new_timer(cart: Cart) -> None:
    cart.pieces = 2
    cart.save()
    leave_a_due_timer(cart)

    assert drain() == 1
    assert reminders() == []
    assert_published("carts", timer_id=cart.reference, payload={"cart_id": cart.pk, "pieces": 2})
    assert drain(advance=LATER) == 1
    assert reminders() == [2]
