"""What the example's tests share."""

from __future__ import annotations

from decimal import Decimal

import pytest

from example_project.shop.models import Cart, Customer, Product


@pytest.fixture
def customer() -> Customer:
    return Customer.objects.create(name="Ada", email="ada@example.com")


@pytest.fixture
def tea() -> Product:
    return Product.objects.create(name="Tea", price=Decimal("4.20"), stock=10)


@pytest.fixture
def cart(customer: Customer, tea: Product) -> Cart:
    return Cart.objects.create(customer=customer, product=tea)
