"""Cancelling a timer deletes it, unless a worker has it."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .box import Box
from .helpers import committed


@pytest.mark.parametrize("activate_in", [-5, 3600])
def test_a_pending_timer_is_deleted(box: Box, activate_in: float) -> None:
    box.timer(activate_in=activate_in)

    assert box.cancel() is True
    assert box.messages() == []


def test_a_timer_between_retries_is_deleted(box: Box) -> None:
    box.timer()
    (claimed,) = box.claim()
    box.fail(claimed, delay=60)

    assert box.cancel() is True
    assert box.messages() == []


def test_a_timer_that_is_missing_is_not_cancelled(box: Box) -> None:
    assert box.cancel() is False


def test_a_second_cancel_finds_nothing(box: Box) -> None:
    box.timer()
    assert box.cancel() is True
    assert box.cancel() is False


@pytest.mark.parametrize("lease_ttl", [60, -1], ids=["leased", "lease run out"])
def test_a_leased_timer_is_left_to_its_worker(box: Box, lease_ttl: float) -> None:
    id_ = box.timer()
    (claimed,) = box.claim(lease_ttl=lease_ttl)

    assert box.cancel() is False
    assert [message.id for message in box.messages()] == [id_]
    assert box.complete(claimed)


def test_a_handler_cannot_cancel_the_timer_it_runs_for(box: Box) -> None:
    answers: list[bool] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[None]) -> None:
        answers.append(box.cancel())

    box.timer()

    assert box.drain() == 1
    assert answers == [False]


def test_other_timers_and_other_queues_stay(box: Box) -> None:
    box.timer()
    kept = [box.timer(timer_id="T"), box.publish(), box.timer(queue="refunds")]

    assert box.cancel() is True
    assert [message.id for message in box.messages()] == kept


@pytest.mark.django_db
def test_cancelling_is_one_statement() -> None:
    outbox.publish({}, queue="orders", timer_id="t")
    with CaptureQueriesContext(connection) as queries:
        assert outbox.cancel_timer(queue="orders", timer_id="t")
    assert len(queries) == 1


@committed
def test_a_cancel_is_undone_with_the_callers_transaction() -> None:
    with transaction.atomic():
        id_ = outbox.publish({}, queue="orders", timer_id="t")
    with transaction.atomic():
        assert outbox.cancel_timer(queue="orders", timer_id="t") is True
        transaction.set_rollback(True)

    assert OutboxMessage.objects.get().pk == id_


@committed
def test_a_cancel_outside_a_transaction_commits_by_itself() -> None:
    with transaction.atomic():
        outbox.publish({}, queue="orders", timer_id="t")

    assert outbox.cancel_timer(queue="orders", timer_id="t") is True
    assert not OutboxMessage.objects.exists()
