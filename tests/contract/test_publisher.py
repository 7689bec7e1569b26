"""A publisher fills in the queue, some headers and the database."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .helpers import row, stored_payload

pytestmark = pytest.mark.django_db


def test_a_publisher_publishes_to_its_queue() -> None:
    orders = outbox.publisher("orders")

    assert isinstance(orders, outbox.OutboxPublisher)
    one = row(orders.publish(1))
    two, three = (row(id_) for id_ in orders.publish_many([2, 3]))
    assert [stored_payload(stored.pk) for stored in (one, two, three)] == [1, 2, 3]
    assert [stored.queue for stored in (one, two, three)] == ["orders"] * 3


def test_headers_are_merged_and_the_calls_win() -> None:
    orders = outbox.publisher("orders", headers={"tenant": "acme", "source": "shop"})
    json = {"content-type": "application/json"}

    one = row(orders.publish({}, headers={"source": "admin", "user": "ada"}))
    assert one.headers == {"tenant": "acme", "source": "admin", "user": "ada", **json}
    (many,) = orders.publish_many([{}], headers={"source": "admin"})
    assert row(many).headers == {"tenant": "acme", "source": "admin", **json}
    assert row(orders.publish({})).headers == {"tenant": "acme", "source": "shop", **json}


@pytest.mark.parametrize("name", ["content-type", "Content-Type"])
def test_the_calls_content_type_wins_however_it_is_spelt(name: str) -> None:
    images = outbox.publisher("images", headers={"content-type": "image/gif"})

    stored = row(images.publish(b"PNG", headers={name: "image/png"}))
    assert stored.headers == {"content-type": "image/png"}


def test_a_publisher_passes_every_option_on() -> None:
    at = datetime(2100, 1, 1, tzinfo=UTC)
    orders = outbox.publisher("orders")
    id_ = orders.publish(
        "old",
        correlation_id="checkout-7",
        activate_at=at,
        timer_id="t",
        expires_in=60,
        max_attempts=3,
    )

    stored = row(id_)
    assert stored.correlation_id == "checkout-7"
    assert stored.next_attempt_at == at
    assert stored.timer_id == "t"
    assert stored.expires_at == datetime(2100, 1, 1, 0, 1, tzinfo=UTC)
    assert stored.max_attempts == 3
    assert orders.publish("new", timer_id="t") is None
    assert orders.publish("new", timer_id="t", timer_conflict="replace", activate_in=5) == id_
    assert stored_payload(id_) == "new"


def test_changing_the_given_headers_later_does_not_change_the_publisher() -> None:
    headers = {"tenant": "acme"}
    orders = outbox.publisher("orders", headers=headers)
    headers["tenant"] = "evil"

    assert row(orders.publish({})).headers["tenant"] == "acme"


@pytest.mark.django_db(databases=["default", "orders"])
def test_a_publisher_publishes_to_its_database() -> None:
    orders = outbox.publisher("orders", using="orders")
    id_ = orders.publish({}, timer_id="t")
    orders.publish_many([{}])

    assert row(id_, "orders").queue == "orders"
    assert not OutboxMessage.objects.using("default").exists()
    assert orders.cancel_timer(timer_id="t") is True
    assert OutboxMessage.objects.using("orders").count() == 1
