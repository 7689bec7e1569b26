"""The demo's checks are only worth something if they notice."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from django.db import transaction
from django.utils import timezone

from django_outbox import outbox
from example_project.shop.demo.checks import checks
from example_project.shop.demo.selling import Sales, open_shop
from example_project.shop.models import (
    Cart,
    CartReminder,
    Order,
    Payment,
    Product,
    Shipment,
    StockBooking,
)

pytestmark = pytest.mark.django_db


def trade() -> Sales:
    """Leave the books as they are when all has gone well."""
    sales = open_shop()
    for product in sales.products:
        order = Order.objects.create(customer=sales.customers[0], product=product, quantity=2)
        StockBooking.objects.create(order=order, product=product, quantity=2)
        Payment.objects.create(
            order=order, message_id=UUID(int=order.pk), amount=order.total, receipt="r", attempt=1
        )
        Shipment.objects.create(order=order, tracking_number="p")
        sales.placed.append(order.pk)
        Cart.objects.create(customer=order.customer, product=product, pieces=2, order=order)
    Product.objects.update(stock=1998)
    sales.abandoned.append(sales.open_cart(0))
    remind(sales.abandoned[0])
    sales.rolled_back.append(0)
    return sales


def remind(cart: Cart) -> None:
    CartReminder.objects.create(cart=cart, pieces=cart.pieces, sent_at=timezone.now())


def failures(sales: Sales) -> list[str]:
    return [check.text for check in checks(sales, webhooks=0, pings=0) if not check.good]


def test_right_books_pass() -> None:
    assert failures(trade()) == []


def lose_an_order(sales: Sales) -> None:
    sales.placed.append(10_000)


def book_twice(sales: Sales) -> None:
    booking = StockBooking.objects.all()[0]
    StockBooking.objects.create(order=booking.order, product=booking.product, quantity=2)


def forget_to_ship(sales: Sales) -> None:
    Shipment.objects.all()[0].delete()


def misplace_goods(sales: Sales) -> None:
    Product.objects.filter(pk=sales.products[0].pk).update(stock=1997)


def handle_what_was_rolled_back(sales: Sales) -> None:
    sales.rolled_back.append(sales.placed[0])


def remind_twice(sales: Sales) -> None:
    remind(sales.abandoned[0])


def remind_of_an_order(sales: Sales) -> None:
    remind(Cart.objects.filter(order__isnull=False)[0])


def forget_a_cart(sales: Sales) -> None:
    CartReminder.objects.all().delete()


def remind_of_less(sales: Sales) -> None:
    CartReminder.objects.update(pieces=99)


def leave_a_message(sales: Sales) -> None:
    with transaction.atomic():
        outbox.publish({}, queue="github")


@pytest.mark.parametrize(
    ("spoil", "noticed"),
    [
        (lose_an_order, "none lost"),
        (book_twice, "booked exactly once"),
        (forget_to_ship, "shipped once"),
        (misplace_goods, "add up"),
        (remind_twice, "reminded of once"),
        (remind_of_an_order, "no other was"),
        (forget_a_cart, "reminded of once"),
        (remind_of_less, "with all in it"),
        (handle_what_was_rolled_back, "no handler ever saw"),
        (leave_a_message, "nothing is left"),
    ],
)
def test_wrong_books_are_noticed(spoil: Callable[[Sales], None], noticed: str) -> None:
    sales = trade()
    spoil(sales)
    assert any(noticed in text for text in failures(sales))
