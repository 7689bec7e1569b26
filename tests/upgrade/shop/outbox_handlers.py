"""Handlers that say which code has run them, as `SHOP_CODE` tells it."""

from __future__ import annotations

import os
from typing import Any

from django_outbox import outbox
from tests.testapp.models import Order


@outbox.handler("orders", atomic=True)
def book(message: outbox.Message[Any]) -> None:
    Order.objects.create(name=f"{message.payload} by {os.environ['SHOP_CODE']}")


@outbox.handler("checked")
def check(message: outbox.Message[Any]) -> None:
    """Write down all that a message carries."""
    carried = (
        message.payload,
        message.headers.get("kind"),
        message.correlation_id,
        message.timer_id,
    )
    Order.objects.create(name=repr(carried))


@outbox.handler("refused")
def refuse(message: outbox.Message[Any]) -> None:
    raise outbox.Reject("no such order")
