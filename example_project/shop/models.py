"""What a small shop keeps: an order, and a row for each step that it went through.

`StockBooking`, `Shipment` and `CartReminder` have no unique constraint on their order or cart, on
purpose: that each is written exactly once is the outbox's doing, and `manage.py demo` would see it
if it were not.
"""

from __future__ import annotations

from decimal import Decimal

from django.db import models
from django.db.models import Case, Exists, OuterRef, Q, Value, When


class Customer(models.Model):
    name = models.CharField(max_length=100)
    email = models.EmailField(unique=True)

    def __str__(self) -> str:
        return self.name


class Product(models.Model):
    name = models.CharField(max_length=100, unique=True)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.name


class OrderQuerySet(models.QuerySet["Order"]):
    def with_state(self) -> OrderQuerySet:
        """Add `state`, the last step that each order went through."""
        same_order = Q(order=OuterRef("pk"))
        return self.annotate(
            state=Case(
                When(Exists(Shipment.objects.filter(same_order)), then=Value("shipped")),
                When(Exists(Payment.objects.filter(same_order)), then=Value("paid")),
                When(Exists(StockBooking.objects.filter(same_order)), then=Value("booked")),
                default=Value("placed"),
            )
        )


class Order(models.Model):
    customer = models.ForeignKey(Customer, on_delete=models.PROTECT)
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    quantity = models.PositiveIntegerField(default=1)
    placed_at = models.DateTimeField(auto_now_add=True)

    objects = OrderQuerySet.as_manager()

    def __str__(self) -> str:
        return self.reference

    @property
    def reference(self) -> str:
        """The correlation id of every message about this order."""
        return f"order-{self.pk}"

    @property
    def total(self) -> Decimal:
        return self.product.price * self.quantity


class StockBooking(models.Model):
    """Goods set aside for an order; the product's stock went down by as many."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="bookings")
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    quantity = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.quantity} x {self.product}"


class Payment(models.Model):
    """Money that the bank has moved, once for each message that asked for it."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="payments")
    message_id = models.UUIDField(unique=True)
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    receipt = models.CharField(max_length=40)
    attempt = models.PositiveIntegerField(help_text="The attempt at which it went through.")

    def __str__(self) -> str:
        return self.receipt


class Shipment(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="shipments")
    tracking_number = models.CharField(max_length=40)
    shipped_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.tracking_number


class Cart(models.Model):
    """What a customer may yet order."""

    customer = models.ForeignKey(Customer, on_delete=models.PROTECT)
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    pieces = models.PositiveIntegerField(default=0)
    order = models.OneToOneField(
        Order, on_delete=models.CASCADE, null=True, blank=True, help_text="Once checked out."
    )

    def __str__(self) -> str:
        return self.reference

    @property
    def reference(self) -> str:
        """The id of this cart's timer, and the correlation id of its messages."""
        return f"cart-{self.pk}"


class CartReminder(models.Model):
    """A letter to a customer about a cart that was left standing."""

    cart = models.ForeignKey(Cart, on_delete=models.CASCADE, related_name="reminders")
    pieces = models.PositiveIntegerField(help_text="As many as the message said.")
    sent_at = models.DateTimeField(help_text="When the handler began.")

    def __str__(self) -> str:
        return f"{self.cart}: {self.pieces}"


class WebhookEvent(models.Model):
    """An event that GitHub sent."""

    message_id = models.UUIDField(unique=True)
    event = models.CharField(max_length=100)
    action = models.CharField(max_length=100, blank=True)
    repository = models.CharField(max_length=200, blank=True)
    sender = models.CharField(max_length=100, blank=True)
    received_at = models.DateTimeField(help_text="When the handler began.")

    def __str__(self) -> str:
        return f"{self.event} {self.action}".strip()
