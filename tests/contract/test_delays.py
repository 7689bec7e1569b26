"""When a message is due, and until when: on the database's clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection, transaction

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .conftest import Drain
from .helpers import claim, committed, database_clock, row

pytestmark = pytest.mark.django_db


def publish(**options: Any) -> OutboxMessage:
    return row(outbox.publish({}, queue="orders", **options))


def publish_one_of_many(**options: Any) -> OutboxMessage:
    return row(outbox.publish_many([{}], queue="orders", **options)[0])


either = pytest.mark.parametrize("publish", [publish, publish_one_of_many])
Publish = Callable[..., OutboxMessage]


@either
def test_a_message_is_due_at_once(publish: Publish) -> None:
    before = database_clock()
    stored = publish()
    assert before <= stored.next_attempt_at <= database_clock()
    assert [claimed.id for claimed in claim("orders")] == [stored.pk]


@either
def test_a_delay_counts_from_the_databases_clock_and_not_the_transactions_start(
    publish: Publish,
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        transaction_began = cursor.fetchone()[0]
    before = database_clock()
    stored = publish(activate_in=timedelta(hours=1))
    after = database_clock()

    assert transaction_began < before
    assert before <= stored.next_attempt_at - timedelta(hours=1) <= after


@either
@pytest.mark.parametrize(
    "delay", [timedelta(hours=3), 3 * 3600, 3 * 3600.0, timedelta(seconds=10800)]
)
def test_a_delay_is_a_timedelta_or_seconds(publish: Publish, delay: timedelta | float) -> None:
    # D13
    before = database_clock()
    stored = publish(activate_in=delay)

    assert before <= stored.next_attempt_at - timedelta(hours=3) <= database_clock()


@either
def test_a_moment_is_stored_as_given(publish: Publish) -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    stored = publish(activate_at=datetime(2100, 1, 1, 5, 30, 0, 123456, tzinfo=zone))

    assert stored.next_attempt_at == datetime(2100, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    assert claim("orders") == []


@either
@pytest.mark.parametrize(
    "moment",
    [
        datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
    ],
)
def test_a_moment_in_the_past_is_stored_as_given_and_due_now(
    publish: Publish, moment: datetime
) -> None:
    stored = publish(activate_at=moment)

    assert stored.next_attempt_at == moment
    assert [claimed.id for claimed in claim("orders")] == [stored.pk]


@either
@pytest.mark.parametrize("delay", [-5, timedelta(days=-1), 0, timedelta(0)])
def test_a_delay_that_is_over_is_due_now(publish: Publish, delay: timedelta | float) -> None:
    # D11
    stored = publish(activate_in=delay)

    assert [claimed.id for claimed in claim("orders")] == [stored.pk]


@either
def test_the_calendars_last_moment_is_stored(publish: Publish) -> None:
    # D11
    last = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert publish(activate_at=last).next_attempt_at == last


@either
def test_what_expires_need_be_neither_delayed_nor_a_timer(publish: Publish) -> None:
    before = database_clock()
    stored = [publish(expires_in=60), publish(expires_in=60)]
    after = database_clock()

    assert len({message.pk for message in stored}) == 2
    for message in stored:
        assert message.timer_id is None
        assert before <= message.next_attempt_at <= after
        assert message.expires_at == message.next_attempt_at + timedelta(minutes=1)


@either
def test_an_expiry_counts_from_the_deadline(publish: Publish) -> None:
    stored = publish(activate_in=timedelta(hours=1), expires_in=timedelta(minutes=10))

    assert stored.expires_at == stored.next_attempt_at + timedelta(minutes=10)


@either
def test_an_expiry_counts_from_a_given_moment(publish: Publish) -> None:
    stored = publish(activate_at=datetime(2100, 1, 1, tzinfo=UTC), expires_in=60)

    assert stored.expires_at == datetime(2100, 1, 1, 0, 1, tzinfo=UTC)


@either
def test_an_expiry_may_end_with_the_calendar(publish: Publish) -> None:
    stored = publish(
        activate_at=datetime(9999, 12, 31, 23, 59, 58, tzinfo=UTC), expires_in=timedelta(seconds=1)
    )
    assert stored.expires_at == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_message_due_later_has_no_lease_and_is_not_claimed() -> None:
    # D01
    stored = publish(activate_in=10)

    assert claim("orders") == []
    stored.refresh_from_db()
    assert stored.lease_token is None
    assert stored.deliveries_count == 0


@committed
def test_what_is_due_is_delivered_past_a_message_that_is_due_in_a_thousand_years(
    drain: Drain,
) -> None:
    # D11
    seen: list[str] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        seen.append(message.payload)

    with transaction.atomic():
        late = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
        outbox.publish("late", queue="orders", activate_at=late)
        outbox.publish("overdue", queue="orders", activate_in=-5)
    drain()

    assert seen == ["overdue"]
    assert OutboxMessage.objects.get().next_attempt_at == late
