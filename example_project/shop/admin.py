"""The shop's tables in the admin."""

from __future__ import annotations

from django.contrib import admin

from django_outbox.admin import OutboxTrailInline
from example_project.shop.models import (
    Cart,
    CartReminder,
    Customer,
    Order,
    Payment,
    Product,
    Shipment,
    StockBooking,
    WebhookEvent,
)

admin.site.register(Customer, list_display=["name", "email"], search_fields=["name", "email"])
admin.site.register(Product, list_display=["name", "price", "stock"])
admin.site.register(
    Order,
    list_display=["reference", "customer", "product", "quantity", "placed_at"],
    list_select_related=["customer", "product"],
    list_filter=["product"],
    inlines=[OutboxTrailInline],
)
admin.site.register(
    Cart,
    list_display=["reference", "customer", "product", "pieces", "order"],
    inlines=[OutboxTrailInline],
)
admin.site.register(CartReminder, list_display=["cart", "pieces", "sent_at"])
admin.site.register(StockBooking, list_display=["order", "product", "quantity"])
admin.site.register(Payment, list_display=["receipt", "order", "amount", "attempt"])
admin.site.register(Shipment, list_display=["tracking_number", "order", "shipped_at"])
admin.site.register(
    WebhookEvent,
    list_display=["event", "action", "repository", "sender", "received_at"],
    list_filter=["event"],
)
