"""What the shop does, each thing in one transaction together with the message that follows it."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F

from django_outbox import outbox
from django_outbox.models import DeadLetter
from example_project.shop.carts import CARTS, cart_timer
from example_project.shop.models import Cart, Customer, Order, Product


def place_order(customer: Customer, product: Product, quantity: int) -> Order:
    """Write the order and publish it: both are there after the commit, or neither is."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, product=product, quantity=quantity)
        outbox.publish(
            {"order_id": order.pk}, queue="orders", correlation_id=order.reference, ref=order
        )
    return order


def add_to_cart(cart: Cart) -> None:
    """Put one more piece into the cart, and put off the reminder, which then speaks of it too.

    First the cart, then the timer, as its handler does: so neither waits for the other for ever.
    """
    with transaction.atomic():
        Cart.objects.filter(pk=cart.pk).update(pieces=F("pieces") + 1)
        cart.refresh_from_db()
        outbox.publish(**cart_timer(cart))


def check_out(cart: Cart) -> Order:
    """Make an order of the cart, and cancel the reminder in the same transaction."""
    with transaction.atomic():
        cart = Cart.objects.select_for_update().get(pk=cart.pk)
        cart.order = place_order(cart.customer, cart.product, cart.pieces)
        cart.save()
        outbox.cancel_timer(queue=CARTS, timer_id=cart.reference)
    return cart.order


def correct_quantities() -> int:
    """Give the orders of nothing a quantity, and return how many there were."""
    return Order.objects.filter(quantity=0).update(quantity=1)


def replay_orders() -> int:
    """Send the buried orders through their handler again, and return how many there were."""
    return DeadLetter.objects.filter(queue="orders").replay().replayed
