from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from django_outbox.models import DeadLetter
from django_outbox.testing import assert_published, published
from example_project.shop.models import Customer, Order, Product

pytestmark = pytest.mark.django_db


def test_the_page_places_an_order(client: Client, customer: Customer, tea: Product) -> None:
    answer = client.post(
        reverse("shop:index"),
        {"customer": customer.pk, "product": tea.pk, "quantity": 2},
        follow=True,
    )

    order = Order.objects.get()
    assert answer.redirect_chain == [("/", 302)]
    assert f"Placed order-{order.pk}." in answer.text
    assert_published("orders", payload={"order_id": order.pk})


def test_a_quantity_that_is_none_places_nothing(
    client: Client, customer: Customer, tea: Product
) -> None:
    answer = client.post("/", {"customer": customer.pk, "product": tea.pk, "quantity": "many"})

    assert "Enter a whole number." in answer.text
    assert not Order.objects.exists()


def test_the_board_shows_orders_and_what_the_outbox_holds(
    client: Client, customer: Customer, tea: Product
) -> None:
    Order.objects.create(customer=customer, product=tea, quantity=1)
    client.post("/", {"customer": customer.pk, "product": tea.pk, "quantity": 1})

    board = client.get(reverse("shop:board"))

    assert board.context["queues"].get() == {"queue": "orders", "due": 1, "running": 0, "later": 0}
    assert board.text.count('<span class="state placed">placed</span>') == 2


def test_the_board_shows_a_stuck_order_and_why(
    client: Client, customer: Customer, tea: Product
) -> None:
    order = Order.objects.create(customer=customer, product=tea, quantity=0)
    bury(order)

    board = client.get(reverse("shop:board")).text

    assert '<span class="state stuck">dead letter</span>' in board
    assert "retries exhausted after 3 attempts" in board
    assert "<code>ValueError: of 0 pieces</code>" in board


def test_repairing_corrects_the_orders_and_replays_them(
    client: Client, customer: Customer, tea: Product
) -> None:
    order = Order.objects.create(customer=customer, product=tea, quantity=0)
    bury(order)

    answer = client.post(reverse("shop:repair"), follow=True)

    assert "Corrected 1 and replayed 1." in answer.text
    order.refresh_from_db()
    assert order.quantity == 1
    assert published("orders")[0].correlation_id == order.reference


def test_only_a_post_repairs(client: Client) -> None:
    assert client.get(reverse("shop:repair")).status_code == 405


def test_the_admin_lists_what_the_shop_keeps(
    admin_client: Client, customer: Customer, tea: Product
) -> None:
    Order.objects.create(customer=customer, product=tea, quantity=1)
    for model in (
        "customer",
        "product",
        "order",
        "stockbooking",
        "payment",
        "shipment",
        "cart",
        "cartreminder",
        "webhookevent",
    ):
        assert admin_client.get(f"/admin/shop/{model}/").status_code == 200


def bury(order: Order) -> None:
    """Leave what a handler that fails three times leaves."""
    DeadLetter.objects.create(
        original_id=1,
        message_id="00000000-0000-0000-0000-000000000001",
        queue="orders",
        payload=b'{"order_id": %d}' % order.pk,
        headers={"content-type": "application/json"},
        correlation_id=order.reference,
        created_at=order.placed_at,
        attempts_count=3,
        failure_reason="retry_terminal",
        last_exception="ValueError: of 0 pieces\nTraceback …",
    )
