"""Timers in PostgreSQL: at the same time in several sessions, and fired by a real worker.

That they notify only when they are due stands in `test_notify`.
"""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import DataError, InternalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from tests.support import Gate, make_due, running, wait_for, wait_until

from .conftest import Drain
from .helpers import (
    PATIENCE,
    Together,
    backend_pid,
    claim,
    committed,
    database_clock,
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


def columns(id_: int | None) -> dict[str, Any]:
    stored = vars(row(id_))
    return {name: stored[name] for name in stored if name != "_state"}


def claimed_ids() -> list[int]:
    return [claimed.id for claimed in claim("orders")]


@pytest.mark.parametrize("conflict", ["extend", "replace"])
def test_an_uncommitted_extend_keeps_a_due_row_from_being_claimed(
    together: Together, conflict: outbox.TimerConflict
) -> None:
    id_ = publish("old")
    with transaction.atomic():
        assert publish("new", conflict, FUTURE) == id_
        assert together.start(claimed_ids).result(PATIENCE) == []

    assert claimed_ids() == []
    assert row(id_).next_attempt_at == FUTURE


def test_rolling_back_lets_a_due_timer_be_claimed_again(together: Together) -> None:
    id_ = publish("old")
    with transaction.atomic():
        publish("new", "extend", FUTURE)
        transaction.set_rollback(True)

    assert together.start(claimed_ids).result(PATIENCE) == [id_]
    assert stored_payload(id_) == "old"


@pytest.mark.parametrize("conflict", ["extend", "replace"])
def test_an_extend_waits_on_an_uncommitted_claim_and_returns_none(
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
def test_an_extend_that_waited_on_a_claim_that_rolls_back_takes_effect(
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
def test_ten_concurrent_extends_in_random_order_leave_one_row_at_the_latest_deadline(
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


@pytest.mark.parametrize("conflict", ["extend", "replace"])
@pytest.mark.parametrize("savepoint", [False, True], ids=["transaction", "savepoint"])
def test_rolling_back_leaves_the_timer_as_it_was(
    conflict: outbox.TimerConflict, *, savepoint: bool
) -> None:
    id_ = publish("old", activate_at=FUTURE)
    before = columns(id_)
    with transaction.atomic():
        with transaction.atomic():
            assert publish("new", conflict, FUTURE + timedelta(1)) == id_
            assert row(id_).next_attempt_at == FUTURE + timedelta(1)
            transaction.set_rollback(savepoint)
        transaction.set_rollback(not savepoint)

    assert columns(id_) == before


@pytest.mark.parametrize("conflict", ["ignore", "extend", "replace"])
@pytest.mark.parametrize("deadline", [None, FUTURE, FUTURE + timedelta(1)])
def test_an_extend_is_exactly_one_statement(
    conflict: outbox.TimerConflict, deadline: datetime | None
) -> None:
    publish("old", activate_at=FUTURE)
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        outbox.publish(
            "new", queue="orders", timer_id="t", timer_conflict=conflict, activate_at=deadline
        )

    (query,) = queries
    assert "ON CONFLICT" in query["sql"]


def test_an_extend_on_a_broken_transaction_is_djangos_own_error() -> None:
    publish("old", activate_at=FUTURE)
    with transaction.atomic():
        with pytest.raises(DataError), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        with pytest.raises(InternalError, match="aborted"):
            outbox.publish("new", queue="orders", timer_id="t", timer_conflict="extend")
        transaction.set_rollback(True)


# Fired by a real worker


def test_end_to_end_the_timer_fires_once_with_the_latest_payload(drain: Drain) -> None:
    fired: list[tuple[Any, int]] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        fired.append((message.payload, message.id))

    id_ = publish("first", activate_at=FUTURE)
    for n in range(1, 4):
        assert publish(f"ping {n}", "extend", FUTURE + timedelta(n)) == id_
        drain()
    assert fired == []
    assert id_ is not None
    make_due(id_)
    drain()
    drain()

    assert fired == [("ping 3", id_)]
    assert not OutboxMessage.objects.exists()


@pytest.mark.usefixtures("registry")
def test_a_ping_that_misses_a_running_expiry_is_followed_by_one_that_arms_a_new_timer() -> None:
    gate = Gate()
    fired: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        fired.append(message.payload)
        gate.wait()

    expired = publish("last ping")
    with running():
        wait_for(gate.reached)
        missed = publish("missed", "extend", FUTURE)
        gate.opened.set()
        wait_until(lambda: not OutboxMessage.objects.exists())
        armed = publish("next ping", "extend", FUTURE)

    assert missed is None
    assert fired == ["last ping"]
    assert armed not in (None, expired)
    stored = OutboxMessage.objects.get()
    assert (stored.pk, stored.next_attempt_at) == (armed, FUTURE)
    assert stored_payload(armed) == "next ping"


@pytest.mark.usefixtures("registry")
def test_an_idle_worker_fires_a_timer_at_its_deadline_and_not_at_the_next_poll(
    settings: LazySettings,
) -> None:
    settings.OUTBOX = {"POLL_INTERVAL": 30}
    fired = threading.Event()
    moments: list[datetime] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        moments.append(database_clock())
        fired.set()

    id_ = publish("soon", activate_at=database_clock() + timedelta(seconds=1))
    deadline = row(id_).next_attempt_at
    with running():
        wait_for(fired, within=PATIENCE)  # a third of the time to the next poll

    assert moments[0] >= deadline


@pytest.mark.usefixtures("registry")
def test_a_worker_that_slept_towards_a_deadline_goes_by_the_extended_one(
    settings: LazySettings,
) -> None:
    settings.OUTBOX = {"POLL_INTERVAL": 30}
    fired = threading.Event()
    got: list[tuple[Any, datetime]] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        got.append((message.payload, database_clock()))
        fired.set()

    id_ = publish("old", activate_at=database_clock() + timedelta(seconds=0.5))
    with running():
        deadline = database_clock() + timedelta(seconds=1)
        assert publish("new", "extend", deadline) == id_
        wait_for(fired)

    ((payload, moment),) = got
    assert payload == "new"
    assert moment >= deadline
