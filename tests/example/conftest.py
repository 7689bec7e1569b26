"""What the example's tests share."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest

from django_outbox.models import OutboxMessage
from example_project.shop.models import Customer, Product
from tests.support import running, wait_until

WorkOff = Callable[[], None]


@pytest.fixture
def customer() -> Customer:
    return Customer.objects.create(name="Ada", email="ada@example.com")


@pytest.fixture
def tea() -> Product:
    return Product.objects.create(name="Tea", price=Decimal("4.20"), stock=10)


@pytest.fixture
def work_off() -> WorkOff:
    """Give a function that runs the shop's handlers in a real worker until nothing is left."""

    def work_off() -> None:
        with running("orders", "payments", "shipments", "github", concurrency=4):
            wait_until(lambda: not OutboxMessage.objects.exists())

    return work_off
