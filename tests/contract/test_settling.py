"""Settling: terminal writes match the lease, in batches that hold nobody up."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from django_outbox import outbox, signals
from django_outbox.messages import Again, Lease
from django_outbox.models import DeadLetter, OutboxMessage
from django_outbox.store import Cursor, messages
from django_outbox.store.messages import Lane
from django_outbox.worker import settling
from django_outbox.worker.delivery import Delivery
from tests.support import (
    Gate,
    committed,
    drain,
    message_row,
    publish,
    publish_many,
    received,
    running,
    session,
    steal,
    wait_for,
    wait_until,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def lost_records(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        {name: getattr(record, name) for name in ("levelname", "event", "phase", "ids", "count")}
        for record in caplog.records
        if getattr(record, "event", None) == "lease_lost"
    ]


def complete(message: outbox.Message[Any]) -> None:
    pass


def fail(message: outbox.Message[Any]) -> None:
    raise ValueError("too late")


def reject(message: outbox.Message[Any]) -> None:
    raise outbox.Reject("too late")


@pytest.mark.parametrize(
    ("phase", "end", "atomic"),
    [
        ("complete", complete, False),
        ("complete", complete, True),
        ("retry", fail, False),
        ("retry", fail, True),
        ("bury", reject, False),
        ("bury", reject, True),
    ],
)
def test_a_terminal_write_with_a_lost_lease_writes_nothing_and_says_so_once(
    *,
    phase: str,
    end: Callable[[outbox.Message[Any]], None],
    atomic: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokens = []

    @outbox.handler("orders", atomic=atomic)
    def handle(message: outbox.Message[Any]) -> None:
        tokens.append(steal(message.id))
        end(message)

    id_ = publish()
    with received(signals.lease_lost) as signalled:
        drain()

    row = message_row(id_)
    assert row.lease_token == tokens[0]
    assert (row.leased_by, row.deliveries_count, row.attempts_count) == ("thief", 1, 0)
    assert row.last_error is None
    assert not DeadLetter.objects.exists()
    assert lost_records(caplog) == [
        {"levelname": "WARNING", "event": "lease_lost", "phase": phase, "ids": [id_], "count": 1}
    ]
    assert [(call["message"].id, call["phase"]) for call in signalled] == [(id_, phase)]


def test_a_message_that_is_gone_is_a_lost_lease_and_the_worker_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # I07
    done: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        done.append(message.payload)
        if message.payload == 1:
            OutboxMessage.objects.filter(pk=message.id).delete()

    id_ = publish(1)
    publish(2)
    drain()

    assert done == [1, 2]
    assert not OutboxMessage.objects.exists()
    assert [(lost["phase"], lost["ids"]) for lost in lost_records(caplog)] == [("complete", [id_])]


def test_a_lease_that_has_run_out_still_settles_if_nobody_has_claimed_the_message() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with session() as other:
            other.execute(
                "UPDATE django_outbox_message"
                " SET lease_expires_at = clock_timestamp() - interval '1 second'"
            )

    publish()
    drain(max_messages=1)

    assert not OutboxMessage.objects.exists()


def test_an_idle_queue_settles_at_once() -> None:
    outbox.handler("orders")(complete)

    with running():
        for n in range(3):
            publish(n)
            wait_until(lambda: not OutboxMessage.objects.exists(), within=1)


def test_one_refused_settlement_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox.handler("orders")(complete)
    bad, *_ = publish_many([1, 2, 3])
    with session() as other:
        other.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
            " BEGIN RAISE check_violation USING MESSAGE = 'not this one'; END $$"
        )
        other.execute(
            "CREATE TRIGGER refuse BEFORE DELETE ON django_outbox_message FOR EACH ROW"
            f" WHEN (OLD.id = {bad}) EXECUTE FUNCTION refuse()"
        )
        try:
            drain(concurrency=3, exit_code=1)
        finally:
            other.execute("DROP TRIGGER refuse ON django_outbox_message")
            other.execute("DROP FUNCTION refuse")

    assert [row.id for row in OutboxMessage.objects.all()] == [bad]
    assert message_row(bad).lease_token is not None  # it comes back when its lease ends
    assert any(record.levelname == "ERROR" for record in caplog.records)


def test_a_row_that_a_publisher_has_locked_is_settled_when_the_lock_is_gone() -> None:
    """An uncommitted change of the row delays its settlement, and only its."""
    outbox.handler("orders")(complete)
    gate = Gate()

    @outbox.handler("locked")
    def wait(message: outbox.Message[Any]) -> None:
        gate.wait()

    locked = publish(queue="locked", timer_id="t")
    with running(concurrency=2), session() as other:
        wait_for(gate.reached)
        with other.transaction():
            other.execute("SELECT FROM django_outbox_message WHERE id = %s FOR UPDATE", [locked])
            gate.opened.set()
            publish()
            wait_until(lambda: list(OutboxMessage.objects.values_list("id", flat=True)) == [locked])
        wait_until(lambda: not OutboxMessage.objects.exists())


def test_a_cancelled_look_at_what_was_lost_is_repeated_and_the_worker_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def cancelled_once(cursor: Cursor, leases: list[Lease]) -> set[int]:
        looks.append(len(leases))
        if len(looks) == 1:
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return still_held(cursor, leases)

    still_held = messages.still_held
    monkeypatch.setattr(messages, "still_held", cancelled_once)
    monkeypatch.setattr(settling, "REFUSED_PAUSE", 0.05)

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == 1:
            steal(message.id)

    id_ = publish(1)
    publish(2)
    drain()

    assert looks == [1, 1]
    assert list(OutboxMessage.objects.values_list("id", flat=True)) == [id_]
    assert [lost["ids"] for lost in lost_records(caplog)] == [[id_]]


def test_each_of_many_gets_its_own_outcome_in_whatever_order_they_ended() -> None:
    ids = publish_many(["a", "b", "c"])
    with connection.cursor() as cursor:
        claimed = messages.claim(cursor, [Lane("orders", 60.0)], limit=3, worker_id="w")
        leases = [claimed[1].lease, claimed[2].lease, claimed[0].lease]
        failures = [Again(delay=0.0, exception=ValueError(), error=text) for text in "bca"]

        assert messages.retry(cursor, leases, failures) == set(ids)

    assert [message_row(id_).last_error for id_ in ids] == ["a", "b", "c"]


def test_a_settled_message_is_freed_at_once_not_left_to_the_garbage_collector() -> None:
    def held() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, outbox.Message | Delivery)]

    outbox.handler("orders")(complete)
    publish_many(["a"] * 20)
    of_others = held()
    gc.disable()
    try:
        drain()
        left = [one for one in held() if not any(one is other for other in of_others)]
    finally:
        gc.enable()

    assert left == []
