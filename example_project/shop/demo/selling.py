"""What the demo sells, to whom, and which of the orders are never to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from django.db import transaction

from example_project.shop.models import Cart, Customer, Order, Product
from example_project.shop.services import check_out, place_order

CUSTOMERS = ["Ada", "Blaise", "Chika", "Dorothea", "Emil", "Fatima", "Goro", "Hedy"]
PRODUCTS = {"Tea": "4.20", "Coffee": "6.90", "Cocoa": "5.50", "Honey": "8.00", "Oats": "2.35"}
STOCK = 2000

POISONED = (100, 250, 400)
"""The orders of nothing, by their number in the sequence of all."""

ROLLED_BACK_EVERY = 12


@dataclass
class Sales:
    """The orders placed so far, the ids of those that were rolled back, and the carts left."""

    customers: list[Customer]
    products: list[Product]
    placed: list[int] = field(default_factory=list)
    poisoned: list[int] = field(default_factory=list)
    rolled_back: list[int] = field(default_factory=list)
    abandoned: list[Cart] = field(default_factory=list)

    def sell(self, count: int) -> Iterator[int]:
        """Place so many orders, yielding after each; roll back others in between."""
        for placed in range(1, count + 1):
            self._place()
            if len(self.placed) % ROLLED_BACK_EVERY == 0:
                self._place_and_roll_back()
            yield placed

    def open_cart(self, number: int) -> Cart:
        customer, product = self._parties(number)
        return Cart.objects.create(customer=customer, product=product)

    def check_out(self, cart: Cart) -> None:
        self.placed.append(check_out(cart).pk)

    def _place(self) -> None:
        number = len(self.placed) + 1
        quantity = 0 if number in POISONED else 1 + number % 3
        order = place_order(*self._parties(number), quantity)
        self.placed.append(order.pk)
        if not quantity:
            self.poisoned.append(order.pk)

    def _place_and_roll_back(self) -> None:
        with transaction.atomic():
            order = place_order(*self._parties(len(self.placed)), 1)
            transaction.set_rollback(True)
        self.rolled_back.append(order.pk)

    def _parties(self, number: int) -> tuple[Customer, Product]:
        return (
            self.customers[number % len(self.customers)],
            self.products[number % len(self.products)],
        )


def open_shop() -> Sales:
    """Write customers and a stock of products, unless they are there, and sell nothing yet."""
    for name in CUSTOMERS:
        Customer.objects.get_or_create(email=f"{name.lower()}@example.com", defaults={"name": name})
    for name, price in PRODUCTS.items():
        Product.objects.get_or_create(name=name, defaults={"price": price, "stock": STOCK})
    return Sales(
        customers=list(Customer.objects.order_by("pk")),
        products=list(Product.objects.order_by("pk")),
    )


def sell_a_few(count: int) -> None:
    """Place some orders with one of nothing among them, unless there are orders."""
    if Order.objects.exists():
        return
    sales = open_shop()
    place_order(sales.customers[0], sales.products[0], 0)
    for _ in islice(sales.sell(count), count):
        pass
