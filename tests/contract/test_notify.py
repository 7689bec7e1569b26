"""NOTIFY wakes workers: for what is due, was inserted or changed, and has committed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.conf import LazySettings
from django.db import transaction

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .conftest import Drain
from .helpers import Listener, claim, committed

pytestmark = committed

PAST = datetime(2001, 9, 9, tzinfo=UTC)
LESS_PAST = datetime(2001, 9, 10, tzinfo=UTC)
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


def publish(queue: str = "orders", **options: object) -> None:
    with transaction.atomic():
        outbox.publish({}, queue=queue, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("queue", ["orders", "ü😀", "q" * 255, "😀" * 255, "it's"])
def test_a_due_message_notifies_with_its_queues_name(listener: Listener, queue: str) -> None:
    publish(queue)

    assert listener.heard() == [queue]


def test_many_due_messages_notify_with_their_queues_name(listener: Listener) -> None:
    with transaction.atomic():
        outbox.publish_many([{}, {}], queue="orders")

    assert set(listener.heard()) == {"orders"}


def test_nothing_is_heard_before_the_commit(listener: Listener) -> None:
    with transaction.atomic():
        outbox.publish({}, queue="orders")
        assert listener.heard() == []
    assert listener.heard() == ["orders"]


def test_nothing_is_heard_after_a_rollback(listener: Listener) -> None:
    with transaction.atomic():
        outbox.publish({}, queue="orders")
        outbox.publish_many([{}], queue="orders")
        transaction.set_rollback(True)

    assert listener.heard() == []


def test_nothing_is_heard_of_a_rolled_back_savepoint(listener: Listener) -> None:
    with transaction.atomic():
        outbox.publish({}, queue="orders")
        with transaction.atomic():
            outbox.publish({}, queue="refunds")
            transaction.set_rollback(True)

    assert listener.heard() == ["orders"]


@pytest.mark.parametrize(
    "options", [{"activate_in": 3600}, {"activate_in": timedelta(days=1)}, {"activate_at": FUTURE}]
)
def test_a_future_message_does_not_notify(listener: Listener, options: dict[str, object]) -> None:
    publish(**options)  # type: ignore[arg-type]
    publish(timer_id="t", **options)  # type: ignore[arg-type]
    with transaction.atomic():
        outbox.publish_many([{}], queue="orders", **options)  # type: ignore[arg-type]

    assert OutboxMessage.objects.count() == 3
    assert listener.heard() == []


@pytest.mark.parametrize("options", [{"activate_at": PAST}, {"activate_in": -5}])
def test_a_message_that_is_overdue_notifies(listener: Listener, options: dict[str, object]) -> None:
    publish(**options)  # type: ignore[arg-type]

    assert listener.heard() == ["orders"]


@pytest.mark.parametrize("conflict", ["ignore", "extend", "replace"])
def test_a_timer_that_is_due_when_inserted_notifies(listener: Listener, conflict: str) -> None:
    publish(timer_id="t", timer_conflict=conflict)

    assert listener.heard() == ["orders"]


def test_a_skipped_conflict_does_not_notify(listener: Listener) -> None:
    publish(timer_id="t", activate_at=FUTURE)
    publish(timer_id="t")

    assert listener.heard() == []


def test_an_extension_that_leaves_the_row_due_notifies(listener: Listener) -> None:
    publish(timer_id="t", activate_at=PAST)
    listener.heard()
    publish(timer_id="t", timer_conflict="extend", activate_at=LESS_PAST)

    assert listener.heard() == ["orders"]


@pytest.mark.parametrize("requested", [PAST, LESS_PAST])
def test_an_extension_that_changes_nothing_does_not_notify(
    listener: Listener, requested: datetime
) -> None:
    publish(timer_id="t", activate_at=LESS_PAST)
    listener.heard()
    publish(timer_id="t", timer_conflict="extend", activate_at=requested)

    assert listener.heard() == []


@pytest.mark.parametrize("stored", [PAST, FUTURE])
def test_an_extension_into_the_future_does_not_notify(listener: Listener, stored: datetime) -> None:
    publish(timer_id="t", activate_at=stored)
    listener.heard()
    publish(timer_id="t", timer_conflict="extend", activate_at=FUTURE + timedelta(1))

    assert listener.heard() == []


@pytest.mark.parametrize("stored", [PAST, FUTURE])
def test_a_replacement_that_makes_the_row_due_notifies(
    listener: Listener, stored: datetime
) -> None:
    publish(timer_id="t", activate_at=stored)
    listener.heard()
    publish(timer_id="t", timer_conflict="replace", activate_at=PAST)

    assert listener.heard() == ["orders"]


def test_a_replacement_into_the_future_does_not_notify(listener: Listener) -> None:
    publish(timer_id="t")
    listener.heard()
    publish(timer_id="t", timer_conflict="replace", activate_at=FUTURE)

    assert listener.heard() == []


@pytest.mark.parametrize("conflict", ["ignore", "extend", "replace"])
def test_a_timer_that_is_left_to_its_worker_does_not_notify(
    listener: Listener, conflict: str
) -> None:
    publish(timer_id="t")
    assert len(claim("orders")) == 1
    listener.heard()
    publish(timer_id="t", timer_conflict=conflict)

    assert listener.heard() == []


def test_cancelling_does_not_notify(listener: Listener) -> None:
    publish(timer_id="t", activate_at=FUTURE)
    assert outbox.cancel_timer(queue="orders", timer_id="t")

    assert listener.heard() == []


def test_without_the_setting_nothing_is_notified_and_the_worker_still_delivers(
    listener: Listener, settings: LazySettings, drain: Drain
) -> None:
    settings.OUTBOX = {"NOTIFY": False}
    seen: list[object] = []
    outbox.handler("orders")(lambda message: seen.append(message.payload))
    publish()
    publish(timer_id="t", timer_conflict="replace")
    with transaction.atomic():
        outbox.publish_many([{}], queue="orders")

    assert listener.heard() == []
    drain()
    assert seen == [{}, {}, {}]


def test_big_payloads_and_many_messages_notify_with_a_name_only(listener: Listener) -> None:
    # F11
    with transaction.atomic():
        outbox.publish({"text": "ü" * 20_000}, queue="orders")
        for n in range(2000):
            outbox.publish({"n": n, "text": "größe"}, queue="orders")

    assert OutboxMessage.objects.count() == 2001
    assert listener.heard() == ["orders"]
