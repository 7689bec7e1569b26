"""Timers published, extended, cancelled and claimed by several sessions at the same time."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .helpers import (
    PATIENCE,
    Together,
    backend_pid,
    claim,
    committed,
    row,
    stored_payload,
    wait_until_blocked,
)

pytestmark = committed

FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


def publish(
    payload: object = None,
    conflict: outbox.TimerConflict = "ignore",
    activate_at: datetime | None = None,
) -> int | None:
    with transaction.atomic():
        return outbox.publish(
            payload, queue="orders", timer_id="t", timer_conflict=conflict, activate_at=activate_at
        )


def claimed_ids() -> list[int]:
    return [claimed.id for claimed in claim("orders")]


@pytest.mark.parametrize("conflict", ["extend", "replace"])
def test_an_uncommitted_move_keeps_a_due_timer_from_being_claimed(
    together: Together, conflict: outbox.TimerConflict
) -> None:
    id_ = publish("old")
    with transaction.atomic():
        assert publish("new", conflict, FUTURE) == id_
        assert together.start(claimed_ids).result(PATIENCE) == []

    assert claimed_ids() == []
    assert row(id_).next_attempt_at == FUTURE


def test_a_rolled_back_move_lets_a_due_timer_be_claimed_again(together: Together) -> None:
    id_ = publish("old")
    with transaction.atomic():
        publish("new", "extend", FUTURE)
        transaction.set_rollback(True)

    assert together.start(claimed_ids).result(PATIENCE) == [id_]
    assert stored_payload(id_) == "old"


@pytest.mark.parametrize("conflict", ["extend", "replace"])
def test_a_move_waits_for_an_uncommitted_claim_and_then_leaves_the_timer_to_it(
    together: Together, conflict: outbox.TimerConflict
) -> None:
    id_ = publish("old")
    with transaction.atomic():
        assert claimed_ids() == [id_]
        moving = together.start(publish, "new", conflict, FUTURE)
        wait_until_blocked(moving, by=backend_pid())

    assert moving.result(PATIENCE) is None
    assert stored_payload(id_) == "old"
    assert row(id_).lease_token is not None


@pytest.mark.parametrize("conflict", ["extend", "replace"])
def test_a_move_that_waited_for_a_claim_that_rolls_back_takes_effect(
    together: Together, conflict: outbox.TimerConflict
) -> None:
    id_ = publish("old")
    with transaction.atomic():
        assert claimed_ids() == [id_]
        moving = together.start(publish, "new", conflict, FUTURE)
        wait_until_blocked(moving, by=backend_pid())
        transaction.set_rollback(True)

    assert moving.result(PATIENCE) == id_
    assert row(id_).next_attempt_at == FUTURE
    assert stored_payload(id_) == "new"


def test_a_publish_waits_for_an_uncommitted_one_of_the_same_timer(together: Together) -> None:
    with transaction.atomic():
        id_ = publish("first", activate_at=FUTURE)
        second = together.start(publish, "second", "ignore", FUTURE)
        wait_until_blocked(second, by=backend_pid())

    assert second.result(PATIENCE) is None
    assert OutboxMessage.objects.get().pk == id_


def test_a_publish_takes_the_place_of_one_that_rolled_back(together: Together) -> None:
    with transaction.atomic():
        publish("first", activate_at=FUTURE)
        second = together.start(publish, "second", "ignore", FUTURE)
        wait_until_blocked(second, by=backend_pid())
        transaction.set_rollback(True)

    id_ = second.result(PATIENCE)
    assert OutboxMessage.objects.get().pk == id_
    assert stored_payload(id_) == "second"


@pytest.mark.parametrize("seed", range(5))
def test_ten_extends_at_once_leave_one_row_at_the_latest_deadline(
    together: Together, seed: int
) -> None:
    start = threading.Barrier(10)
    numbers = list(range(10))
    random.Random(seed).shuffle(numbers)

    def extend(number: int) -> int | None:
        start.wait(PATIENCE)
        return publish(number, "extend", FUTURE + timedelta(minutes=number))

    running = [together.start(extend, number) for number in numbers]
    ids = {future.result(PATIENCE) for future in running}

    stored = OutboxMessage.objects.get()
    assert ids == {stored.pk}
    assert stored.next_attempt_at == FUTURE + timedelta(minutes=9)
    assert stored_payload(stored.pk) == 9


def test_ten_publishes_at_once_insert_one_row(together: Together) -> None:
    start = threading.Barrier(10)

    def ignore() -> int | None:
        start.wait(PATIENCE)
        return publish()

    ids = together.run([ignore] * 10)

    assert ids.count(None) == 9
    assert OutboxMessage.objects.get().pk in ids


def test_a_timer_is_either_cancelled_or_claimed_and_never_both(together: Together) -> None:
    # D09
    rounds = 200
    start = threading.Barrier(3)
    end = threading.Barrier(3)

    def each_round(act: object) -> list[bool]:
        outcomes = []
        for _ in range(rounds):
            start.wait(PATIENCE)
            outcomes.append(bool(act()))  # type: ignore[operator]
            end.wait(PATIENCE)
        return outcomes

    def cancel() -> bool:
        return outbox.cancel_timer(queue="orders", timer_id="t")

    cancelling = together.start(each_round, cancel)
    claiming = together.start(each_round, claimed_ids)
    for _ in range(rounds):
        publish()
        start.wait(PATIENCE)
        end.wait(PATIENCE)
        OutboxMessage.objects.all().delete()

    pairs = list(zip(cancelling.result(PATIENCE), claiming.result(PATIENCE), strict=True))
    assert [cancelled != claimed for cancelled, claimed in pairs] == [True] * rounds
