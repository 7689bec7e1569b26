"""The checks at the end: what the business tables say, against what the demo did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.db.models import Count, QuerySet, Sum

from django_outbox.models import DeadLetter, OutboxMessage
from example_project.shop.demo.selling import STOCK, Sales
from example_project.shop.models import (
    CartReminder,
    Order,
    Payment,
    Product,
    Shipment,
    StockBooking,
    WebhookEvent,
)


class Check(NamedTuple):
    good: bool
    text: str


def checks(sales: Sales, webhooks: int, pings: int) -> Iterator[Check]:
    """Yield each check with its outcome."""
    placed = set(sales.placed)
    yield Check(
        set(Order.objects.values_list("pk", flat=True)) == placed,
        f"{len(placed)} orders placed, none lost, {len(sales.rolled_back)} rolled back are gone",
    )
    yield Check(
        all(_once_each(step.objects.all(), placed) for step in (StockBooking, Payment, Shipment)),
        "every order was booked exactly once, paid once and shipped once",
    )
    yield Check(_stock_adds_up(), "the stock and the bookings add up")
    yield Check(
        _reminders() == [(cart.pk, cart.pieces) for cart in sales.abandoned],
        "the abandoned cart was reminded of once, with all in it; no other was",
    )
    yield Check(_is_unseen(sales.rolled_back), "no handler ever saw an order rolled back")
    yield _webhooks_received(webhooks, pings)
    yield Check(
        not OutboxMessage.objects.exists() and not DeadLetter.objects.exists(),
        "nothing is left in the outbox or among the dead letters",
    )


def _once_each(steps: QuerySet[Any], orders: set[int]) -> bool:
    counts = steps.values_list("order").annotate(Count("pk"))
    return dict(counts) == dict.fromkeys(orders, 1)


def _stock_adds_up() -> bool:
    """Compare what is left with what was booked, and what was booked with what was ordered."""
    booked = dict(StockBooking.objects.values_list("product").annotate(Sum("quantity")))
    ordered = dict(Order.objects.values_list("product").annotate(Sum("quantity")))
    sold = {product.pk: STOCK - product.stock for product in Product.objects.all()}
    return sold == booked == ordered


def _reminders() -> list[tuple[int, int]]:
    return list(CartReminder.objects.order_by("pk").values_list("cart", "pieces"))


def _is_unseen(rolled_back: list[int]) -> bool:
    """Look for traces; a handler that got such an order would not find it, and be buried."""
    references = [f"order-{pk}" for pk in rolled_back]
    return bool(rolled_back) and not (
        StockBooking.objects.filter(order__in=rolled_back).exists()
        or DeadLetter.objects.filter(correlation_id__in=references).exists()
        or OutboxMessage.objects.filter(correlation_id__in=references).exists()
    )


def _webhooks_received(webhooks: int, pings: int) -> Check:
    received = WebhookEvent.objects.count()
    return Check(
        received == webhooks + pings,
        f"{received:,} webhook events received of {webhooks:,} from the file and {pings:,} pings",
    )
