"""The timer of a cart: it fires when the cart has not been touched for a while."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from example_project.shop.models import Cart

CARTS = "carts"
ABANDONED_AFTER = timedelta(seconds=1.5)
"""Short for the demo's sake; a real shop waits for hours."""


def cart_timer(cart: Cart) -> dict[str, Any]:
    """Return what to publish so that the timer is set, or put off if it is there already."""
    return {
        "payload": {"cart_id": cart.pk, "pieces": cart.pieces},
        "queue": CARTS,
        "timer_id": cart.reference,
        "timer_conflict": "extend",
        "activate_in": ABANDONED_AFTER,
        "correlation_id": cart.reference,
        "ref": cart,
    }
