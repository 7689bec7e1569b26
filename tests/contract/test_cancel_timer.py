"""Cancelling a timer deletes it, unless a worker has it."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .helpers import claim, committed, complete, fail, row

pytestmark = pytest.mark.django_db


def cancel() -> bool:
    return outbox.cancel_timer(queue="orders", timer_id="t")


def publish(activate_in: float = 0) -> int | None:
    return outbox.publish({}, queue="orders", timer_id="t", activate_in=activate_in)


@pytest.mark.parametrize("activate_in", [-5, 3600])
def test_a_pending_timer_is_deleted(activate_in: float) -> None:
    publish(activate_in)

    assert cancel() is True
    assert not OutboxMessage.objects.exists()


def test_a_timer_between_retries_is_deleted() -> None:
    publish()
    (claimed,) = claim("orders")
    fail(claimed, delay=60)

    assert cancel() is True
    assert not OutboxMessage.objects.exists()


def test_a_timer_that_is_missing_is_not_cancelled() -> None:
    assert cancel() is False


def test_a_second_cancel_finds_nothing() -> None:
    publish()
    assert cancel() is True
    assert cancel() is False


@pytest.mark.parametrize("lease_ttl", [60, 0], ids=["leased", "lease run out"])
def test_a_leased_timer_is_left_to_its_worker(lease_ttl: float) -> None:
    id_ = publish()
    (claimed,) = claim("orders", lease_ttl=lease_ttl)

    assert cancel() is False
    assert row(id_).lease_token == claimed.lease_token
    complete(claimed)


def test_other_timers_and_other_queues_stay() -> None:
    publish()
    kept = [
        outbox.publish({}, queue="orders", timer_id="T"),
        outbox.publish({}, queue="orders"),
        outbox.publish({}, queue="refunds", timer_id="t"),
    ]

    assert cancel() is True
    assert list(OutboxMessage.objects.order_by("id").values_list("id", flat=True)) == kept


def test_cancelling_is_one_statement() -> None:
    publish()
    with CaptureQueriesContext(connection) as queries:
        cancel()
    assert len(queries) == 1


def test_a_publisher_cancels_timers_of_its_queue() -> None:
    publish()

    assert outbox.publisher("refunds").cancel_timer(timer_id="t") is False
    assert outbox.publisher("orders").cancel_timer(timer_id="t") is True


@committed
def test_a_cancel_is_undone_with_the_callers_transaction() -> None:
    with transaction.atomic():
        id_ = publish()
    with transaction.atomic():
        assert cancel() is True
        transaction.set_rollback(True)

    assert OutboxMessage.objects.get().pk == id_


@committed
def test_a_cancel_outside_a_transaction_commits_by_itself() -> None:
    with transaction.atomic():
        publish()

    assert cancel() is True
    assert not OutboxMessage.objects.exists()
