"""What the shop does, each thing in one transaction together with the message that follows it."""

from __future__ import annotations

from django.db import transaction

from django_outbox import outbox
from django_outbox.models import DeadLetter
from example_project.shop.models import Customer, Order, Product


def place_order(customer: Customer, product: Product, quantity: int) -> Order:
    """Write the order and publish it: both are there after the commit, or neither is."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, product=product, quantity=quantity)
        outbox.publish({"order_id": order.pk}, queue="orders", correlation_id=order.reference)
    return order


def correct_quantities() -> int:
    """Give the orders of nothing a quantity, and return how many there were."""
    return Order.objects.filter(quantity=0).update(quantity=1)


def replay_orders() -> int:
    """Send the buried orders through their handler again, and return how many there were."""
    return DeadLetter.objects.filter(queue="orders").replay().replayed
