from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_outbox.testing import assert_published, published
from example_project.shop import services
from example_project.shop.models import Customer, Order, Payment, Product, Shipment, StockBooking

pytestmark = pytest.mark.django_db


def test_placing_an_order_publishes_it(customer: Customer, tea: Product) -> None:
    order = services.place_order(customer, tea, 2)

    assert_published("orders", payload={"order_id": order.pk})
    assert published()[0].correlation_id == f"order-{order.pk}"


def test_an_order_that_is_rolled_back_takes_its_message_with_it(
    customer: Customer, tea: Product
) -> None:
    with transaction.atomic():
        services.place_order(customer, tea, 2)
        transaction.set_rollback(True)

    assert not Order.objects.exists()
    assert published() == []


def test_the_state_of_an_order_is_the_last_step_it_went_through(
    customer: Customer, tea: Product
) -> None:
    order = services.place_order(customer, tea, 2)

    def state() -> str:
        stored: Any = Order.objects.with_state().get(pk=order.pk)
        return str(stored.state)

    assert state() == "placed"
    StockBooking.objects.create(order=order, product=tea, quantity=2)
    assert state() == "booked"
    Payment.objects.create(
        order=order,
        message_id="00000000-0000-0000-0000-000000000001",
        amount=order.total,
        receipt="r",
        attempt=1,
    )
    assert state() == "paid"
    Shipment.objects.create(order=order, tracking_number="p")
    assert state() == "shipped"
