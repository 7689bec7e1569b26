"""What the page shows: the latest orders, and what the outbox holds."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Q
from django.db.models.functions import Now

from django_outbox.models import DeadLetter, OutboxMessage
from example_project.shop.models import Order, Product

ORDERS_SHOWN = 15
LETTERS_SHOWN = 5


def board() -> dict[str, Any]:
    """Return the template context of the part that keeps itself up to date."""
    orders = Order.objects.with_state().select_related("customer", "product")
    return {
        "orders": orders.order_by("-pk")[:ORDERS_SHOWN],
        "products": Product.objects.order_by("name"),
        "queues": _queues(),
        "letters": _letters(),
        "stuck": set(DeadLetter.objects.values_list("correlation_id", flat=True)),
    }


def _letters() -> list[dict[str, Any]]:
    """Return the latest dead letters, of each exception only the line that says what it was."""
    letters = DeadLetter.objects.order_by("-failed_at")[:LETTERS_SHOWN]
    return [
        {"letter": letter, "headline": (letter.last_exception or "").partition("\n")[0]}
        for letter in letters
    ]


def _queues() -> Any:
    """Count the live messages of every queue that has any, by what they wait for."""
    leased = Q(lease_token__isnull=False)
    later = ~leased & Q(next_attempt_at__gt=Now())
    return (
        OutboxMessage.objects.values("queue")
        .annotate(
            running=Count("pk", filter=leased),
            later=Count("pk", filter=later),
            due=Count("pk", filter=~leased & ~later),
        )
        .order_by("queue")
    )
