"""A cart that is left standing after a while, and one that is checked out in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from django.utils import timezone

from example_project.shop.carts import ABANDONED_AFTER
from example_project.shop.demo.selling import Sales
from example_project.shop.models import Cart, CartReminder
from example_project.shop.services import add_to_cart

TOUCHES = 8
BETWEEN_TOUCHES = 0.25
"""Seconds. All touches together take longer than a cart needs to be abandoned."""


def check_one_out(sales: Sales) -> None:
    """Fill a cart, and order what is in it before its timer fires."""
    cart = sales.open_cart(1)
    add_to_cart(cart)
    sales.check_out(cart)


def abandon_one(sales: Sales, progress: Callable[[str], None]) -> datetime:
    """Touch a cart again and again, then leave it; return when it was touched last."""
    cart = sales.open_cart(2)
    sales.abandoned.append(cart)
    for touch in range(TOUCHES):
        progress(f"{touch} pieces in the cart")
        if touch:
            time.sleep(BETWEEN_TOUCHES)
        touched_at = timezone.now()
        add_to_cart(cart)
    return touched_at


def lateness(cart: Cart, touched_at: datetime) -> float:
    """Return how many milliseconds after its deadline the reminder's handler began."""
    reminder = CartReminder.objects.filter(cart=cart).latest("pk")
    return (reminder.sent_at - touched_at - ABANDONED_AFTER).total_seconds() * 1000
