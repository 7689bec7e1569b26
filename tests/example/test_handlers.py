from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command

from django_outbox import outbox
from django_outbox.models import DeadLetter
from django_outbox.testing import drain, published
from example_project.shop import partners, services
from example_project.shop.demo.story import WEBHOOKS
from example_project.shop.models import (
    Customer,
    Order,
    Payment,
    Product,
    Shipment,
    StockBooking,
    WebhookEvent,
)

pytestmark = pytest.mark.django_db


def work_off() -> None:
    """Run the shop's handlers until nothing is left, retries included."""
    drain(advance=timedelta(minutes=1))
    assert published() == []


def stock_of(product: Product) -> int:
    product.refresh_from_db()
    return product.stock


def test_an_order_is_booked_paid_and_shipped(customer: Customer, tea: Product) -> None:
    order = services.place_order(customer, tea, 3)
    work_off()

    assert StockBooking.objects.get().quantity == 3
    assert Payment.objects.get().amount == Decimal("12.60")
    assert Shipment.objects.get().order == order
    assert stock_of(tea) == 7
    assert not DeadLetter.objects.exists()


def test_a_booking_that_fails_halfway_leaves_the_stock_as_it_was(
    customer: Customer, tea: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = StockBooking.objects.create
    seen: list[int] = []

    def fail_at_first(**fields: Any) -> StockBooking:
        seen.append(stock_of(tea))
        if len(seen) == 1:
            raise RuntimeError("the power went out")
        return create(**fields)

    monkeypatch.setattr(StockBooking.objects, "create", fail_at_first)
    services.place_order(customer, tea, 3)
    work_off()

    assert seen == [7, 7]
    assert stock_of(tea) == 7
    assert StockBooking.objects.count() == 1


def test_an_order_of_more_than_there_is_gets_rejected(customer: Customer, tea: Product) -> None:
    services.place_order(customer, tea, 11)
    work_off()

    letter = DeadLetter.objects.get()
    assert (letter.failure_reason, letter.attempts_count) == ("rejected", 1)
    assert stock_of(tea) == 10


def test_a_declined_payment_is_tried_again_under_the_same_key(
    customer: Customer, tea: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[UUID] = []

    def decline_at_first(amount: Decimal, *, key: UUID, attempt: int) -> str:
        keys.append(key)
        if attempt == 1:
            raise partners.Declined
        return "receipt"

    monkeypatch.setattr(partners, "charge", decline_at_first)
    services.place_order(customer, tea, 1)
    work_off()

    payment = Payment.objects.get()
    assert payment.attempt == 2
    assert keys == [payment.message_id] * 2
    assert Shipment.objects.count() == 1


def test_a_payment_written_before_the_worker_died_is_not_written_again(
    customer: Customer, tea: Product
) -> None:
    order = Order.objects.create(customer=customer, product=tea, quantity=1)
    outbox.publish({"order_id": order.pk}, queue="payments")
    [message] = published()
    left_by_the_dead = Payment.objects.create(
        order=order,
        message_id=message.message_id,
        amount=order.total,
        receipt="of the first delivery",
        attempt=1,
    )
    work_off()

    assert Payment.objects.get() == left_by_the_dead
    assert Shipment.objects.count() == 1


def test_a_poisoned_order_is_buried_and_goes_through_after_the_fix(
    customer: Customer, tea: Product
) -> None:
    order = services.place_order(customer, tea, 0)
    work_off()

    letter = DeadLetter.objects.get()
    assert letter.correlation_id == order.reference
    assert (letter.failure_reason, letter.attempts_count) == ("retry_terminal", 3)
    assert "is of 0 pieces" in (letter.last_exception or "")

    assert services.correct_quantities() == 1
    assert services.replay_orders() == 1
    work_off()

    assert not DeadLetter.objects.exists()
    assert Shipment.objects.get().order == order


def test_every_real_event_of_the_file_is_received() -> None:
    call_command("outbox_publish", str(WEBHOOKS), verbosity=0)
    work_off()

    assert WebhookEvent.objects.count() == 110
    assert WebhookEvent.objects.values("event").distinct().count() == 54
    rule = WebhookEvent.objects.filter(event="branch_protection_rule", action="edited").get()
    assert rule.repository == "octo-org/octo-repo"
    assert not DeadLetter.objects.exists()


def test_an_event_of_another_shape_is_buried_unread() -> None:
    outbox.publish({"sender": "nobody"}, queue="github")
    work_off()

    assert DeadLetter.objects.get().failure_reason == "invalid_payload"
    assert not WebhookEvent.objects.exists()


def test_the_bank_declines_some_keys_and_never_the_third_time() -> None:
    def refusals(key: int) -> int:
        attempt = 0
        while True:
            attempt += 1
            try:
                partners.charge(Decimal(1), key=UUID(int=key), attempt=attempt)
            except partners.Declined:
                continue
            return attempt - 1

    assert [refusals(key) for key in range(17)] == [2, *[0] * 7, 1, *[0] * 7, 2]
