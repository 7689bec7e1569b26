"""How an order travels: orders -> payments -> shipments; a cart's timer; what GitHub sends.

A worker may be killed at any line here, and then another one runs the function again. Three ways
to bear that are shown, one in each of the first three handlers. Delays and leases are short for
the demo's sake; the defaults suit a real shop better.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from django_outbox import outbox
from example_project.shop import partners
from example_project.shop.carts import CARTS, cart_timer
from example_project.shop.models import (
    Cart,
    CartReminder,
    Order,
    Payment,
    Product,
    Shipment,
    StockBooking,
    WebhookEvent,
)

LEASE_TTL = 2.0
"""Seconds until another worker may take what a killed one held."""


@dataclass(frozen=True)
class OrderStep:
    """The payload on the queues of an order."""

    order_id: int


@outbox.handler(
    "orders", atomic=True, lease_ttl=LEASE_TTL, retry=outbox.ConstantRetry(0.2, max_attempts=3)
)
def book_stock(message: outbox.Message[OrderStep]) -> outbox.OutboxResponse:
    """Take the goods from the stock.

    First way, `atomic=True`: these writes, the removal of this message and the next message are
    one transaction. A second run finds nothing of a first one that did not get to its end.
    """
    order = Order.objects.get(pk=message.payload.order_id)
    if order.quantity < 1:
        raise ValueError(f"{order} is of {order.quantity} pieces")
    in_stock = Product.objects.filter(pk=order.product_id, stock__gte=order.quantity)
    if not in_stock.update(stock=F("stock") - order.quantity):
        raise outbox.Reject(f"{order} is of more than there is in stock")
    StockBooking.objects.create(order=order, product=order.product, quantity=order.quantity)
    return outbox.OutboxResponse(message.payload, queue="payments", ref=order)


@outbox.handler(
    "payments",
    lease_ttl=LEASE_TTL,
    retry=outbox.ExponentialRetry(0.1, max_attempts=8, jitter_factor=0.2),
)
def take_payment(message: outbox.Message[OrderStep]) -> outbox.OutboxResponse:
    """Charge the customer.

    Second way, an idempotency key: the bank cannot be part of a transaction, so it is given the
    `message_id`, which is the same in every delivery, and so is our own row. What is returned is
    published in the transaction that settles this message, so it goes out once.
    """
    order = Order.objects.select_related("product").get(pk=message.payload.order_id)
    receipt = partners.charge(order.total, key=message.message_id, attempt=message.attempt)
    Payment.objects.get_or_create(
        message_id=message.message_id,
        defaults={
            "order": order,
            "amount": order.total,
            "receipt": receipt,
            "attempt": message.attempt,
        },
    )
    return outbox.OutboxResponse(message.payload, queue="shipments", ref=order)


@outbox.handler("shipments", lease_ttl=LEASE_TTL)
def ship(message: outbox.Message[OrderStep]) -> None:
    """Hand the parcel to the carrier.

    Third way, `message.ack()`: the slow part runs outside any transaction, and the row is written
    in a short one together with the removal of the message.
    """
    tracking_number = partners.print_label(message.message_id)
    with transaction.atomic():
        Shipment.objects.create(order_id=message.payload.order_id, tracking_number=tracking_number)
        message.ack()


@dataclass(frozen=True)
class CartTouched:
    """The payload of a cart's timer."""

    cart_id: int
    pieces: int


@outbox.handler(CARTS, atomic=True, lease_ttl=LEASE_TTL)
def remind(message: outbox.Message[CartTouched]) -> outbox.OutboxResponse | None:
    """Remind a customer of a cart that has not been touched for a while.

    Whatever touches the cart puts this timer off, but not while it is being delivered. So look at
    the cart itself, under a lock: if it holds more than the message says, set the timer anew.
    """
    sent_at = timezone.now()
    cart = Cart.objects.select_for_update().get(pk=message.payload.cart_id)
    if cart.order_id is not None:
        return None  # checked out when this was on its way already
    if cart.pieces != message.payload.pieces:
        return outbox.OutboxResponse(**cart_timer(cart))
    CartReminder.objects.create(cart=cart, pieces=message.payload.pieces, sent_at=sent_at)
    return None


@dataclass(frozen=True)
class Sender:
    login: str


@dataclass(frozen=True)
class Repository:
    full_name: str


@dataclass(frozen=True)
class GithubEvent:
    """What the shop reads of an event; the rest of the payload is left alone."""

    action: str | None = None
    sender: Sender | None = None
    repository: Repository | None = None


@outbox.handler("github", atomic=True, lease_ttl=LEASE_TTL)
def receive_webhook(message: outbox.Message[GithubEvent]) -> None:
    """Keep what GitHub sent; the first way again, which is the best one for what stays at home."""
    received_at = timezone.now()
    event = message.payload
    WebhookEvent.objects.create(
        message_id=message.message_id,
        event=message.headers.get("X-GitHub-Event", ""),
        action=event.action or "",
        sender=event.sender.login if event.sender else "",
        repository=event.repository.full_name if event.repository else "",
        received_at=received_at,
    )
