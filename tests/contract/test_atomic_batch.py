"""Atomic handlers in batches: many share a transaction, and one that fails, fails alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, transaction
from django.db.backends.signals import connection_created
from psycopg import IsolationLevel

from django_outbox import outbox, signals
from django_outbox.models import DeadLetter, OutboxMessage
from django_outbox.store import storage
from django_outbox.worker import attempts
from django_outbox.worker.loop import Worker
from tests.support import (
    Gate,
    committed,
    drain,
    letter_of,
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
from tests.testapp.models import Order

pytestmark = [committed, pytest.mark.usefixtures("registry")]

HOUR = outbox.ConstantRetry(3600, max_attempts=2)
TEN = [str(n) for n in range(10)]
NINE = [name for name in TEN if name != "5"]


def _transaction() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT txid_current()")
        number: int = cursor.fetchone()[0]
        return number


def _booked() -> list[str]:
    return sorted(Order.objects.values_list("name", flat=True))


def _work(*, batch: int = 10) -> None:
    drain("orders", batch_size=batch)


@pytest.fixture
def checked_at_commit() -> Iterator[None]:
    """Let no two orders have the same name once a transaction commits."""
    with session() as other:
        other.execute(
            "ALTER TABLE testapp_order ADD CONSTRAINT one_of_a_name UNIQUE (name)"
            " DEFERRABLE INITIALLY DEFERRED"
        )
        yield
        other.execute("ALTER TABLE testapp_order DROP CONSTRAINT one_of_a_name")


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "10"])
def test_the_number_is_a_positive_whole_one(number: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="atomic_batch must be a positive whole number"):
        outbox.handler("orders", atomic=True, atomic_batch=number)


def test_the_number_needs_an_atomic_handler() -> None:
    with pytest.raises(ImproperlyConfigured, match="it needs atomic=True"):
        outbox.handler("orders", atomic_batch=10)


def test_so_many_messages_share_a_transaction() -> None:
    seen: list[int] = []

    @outbox.handler("orders", atomic=True, atomic_batch=5)
    def handle(message: outbox.Message[Any]) -> None:
        seen.append(_transaction())
        Order.objects.create(name=message.payload)

    publish_many(TEN)
    with received(signals.message_completed) as completed:
        _work()

    assert max(map(seen.count, seen)) == 5  # how many a claim takes is up to the worker
    assert _booked() == TEN
    assert len(completed) == 10
    assert not OutboxMessage.objects.exists()


def test_without_the_option_each_has_its_own() -> None:
    seen: list[int] = []

    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        seen.append(_transaction())

    publish_many(TEN)
    _work()

    assert len(set(seen)) == 10


@pytest.mark.parametrize("error", [ValueError("no"), outbox.Retry(delay=3600), SystemExit(1)])
def test_one_that_fails_is_tried_again_and_the_others_commit(error: BaseException) -> None:
    calls: list[str] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        calls.append(message.payload)
        Order.objects.create(name=message.payload)
        outbox.publish(message.payload, queue="invoices")
        if message.payload == "5":
            raise error
        return outbox.OutboxResponse(message.payload, queue="labels")

    ids = publish_many(TEN)
    _work()

    assert calls == TEN
    assert _booked() == NINE
    row = message_row(ids[5])
    assert (row.attempts_count, row.deliveries_count, row.lease_token) == (1, 1, None)
    for queue in ("invoices", "labels"):
        rows = OutboxMessage.objects.filter(queue=queue).order_by("id")
        assert [bytes(row.payload).decode().strip('"') for row in rows] == NINE


def test_rejected_unreadable_and_expired_ones_are_buried_and_the_others_commit() -> None:
    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name=message.payload)
        if message.payload == "5":
            raise outbox.Reject("no")

    ids = publish_many(TEN)
    with session() as other:
        other.execute("UPDATE django_outbox_message SET payload = '{' WHERE id = %s", [ids[6]])
        other.execute(
            "UPDATE django_outbox_message SET deliveries_count = 20 WHERE id = %s", [ids[7]]
        )
    _work()

    reasons = dict(DeadLetter.objects.values_list("original_id", "failure_reason"))
    assert reasons == {ids[5]: "rejected", ids[6]: "invalid_payload", ids[7]: "max_deliveries"}
    assert _booked() == ["0", "1", "2", "3", "4", "8", "9"]


def test_a_swallowed_database_error_is_the_failure_of_its_own_message_alone() -> None:
    @outbox.handler("orders", atomic=True, atomic_batch=10, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name=message.payload)
        if message.payload == "5":
            with suppress(DatabaseError):
                Order.objects.create(name="too long" * 100)

    ids = publish_many(TEN)
    _work()

    assert _booked() == NINE
    assert message_row(ids[5]).attempts_count == 1


def test_a_rollback_that_was_asked_for_does_not_look_done() -> None:
    @outbox.handler("orders", atomic=True, atomic_batch=10, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name=message.payload)
        if message.payload == "5":
            transaction.set_rollback(True)

    ids = publish_many(TEN)
    _work()

    assert _booked() == NINE
    assert message_row(ids[5]).attempts_count == 1


def test_a_transaction_left_open_is_the_failure_of_its_own_message_alone() -> None:
    @outbox.handler("orders", atomic=True, atomic_batch=10, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name=message.payload)
        if message.payload == "5":
            transaction.atomic().__enter__()

    ids = publish_many(TEN)
    _work()

    assert _booked() == NINE
    row = message_row(ids[5])
    assert row.attempts_count == 1
    assert "TransactionLeftOpen" in (row.last_error or "")


@pytest.mark.usefixtures("checked_at_commit")
def test_what_fails_at_the_commit_is_found_by_running_each_by_itself() -> None:
    calls: list[str] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        calls.append(message.payload)
        Order.objects.create(name="taken" if message.payload == "5" else message.payload)

    Order.objects.create(name="taken")
    ids = publish_many(TEN)
    _work()

    assert calls[:10] == TEN
    assert calls.count("5") == 2
    assert max(map(calls.count, calls)) == 2
    assert _booked() == [*NINE, "taken"]
    assert message_row(ids[5]).attempts_count == 1
    assert message_row(ids[5]).deliveries_count == 1


def test_one_whose_lease_was_lost_before_is_left_to_its_new_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fence_if_free = storage.fence_if_free

    def fence_after_a_theft(alias: str, lease: Any) -> bool:
        if lease.id == ids[1]:  # the first may have been alone
            steal(ids[5])
        return fence_if_free(alias, lease)

    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name=message.payload)

    ids = publish_many(TEN)
    monkeypatch.setattr(storage, "fence_if_free", fence_after_a_theft)
    with received(signals.lease_lost) as lost:
        _work()

    assert _booked() == NINE
    assert message_row(ids[5]).leased_by == "thief"
    assert len(lost) == 1


def test_one_that_vanishes_midway_undoes_the_batch_and_is_lost_alone() -> None:
    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name=message.payload)
        if message.payload == "5":
            OutboxMessage.objects.filter(pk=message.id).delete()

    ids = publish_many(TEN)
    with received(signals.lease_lost) as lost:
        _work()

    assert _booked() == NINE
    assert [row.id for row in OutboxMessage.objects.all()] == [ids[5]]
    assert len(lost) == 1


def test_a_session_that_ends_midway_charges_no_attempt_and_effects_happen_once() -> None:
    attempts: list[int] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        attempts.append(message.attempt)
        Order.objects.create(name=message.payload)
        if message.payload == "5" and message.deliveries_count == 1:
            with session() as other, connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                other.execute("SELECT pg_terminate_backend(%s, 5000)", [cursor.fetchone()[0]])
            Order.objects.create(name="never")

    publish_many(TEN)
    _work()

    assert _booked() == TEN
    assert set(attempts) == {1}
    assert not OutboxMessage.objects.exists()
    assert not DeadLetter.objects.exists()


def test_ack_and_heartbeat_work_inside() -> None:
    beats: list[bool] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        beats.append(message.heartbeat())
        Order.objects.create(name=message.payload)
        if message.payload == "5":
            message.ack()

    publish_many(TEN)
    _work()

    assert beats == [True] * 10
    assert _booked() == TEN
    assert not OutboxMessage.objects.exists()


def test_an_async_handler_writes_in_the_shared_transaction() -> None:
    @outbox.handler("orders", atomic=True, atomic_batch=10, retry=HOUR)
    async def handle(message: outbox.Message[Any]) -> None:
        await Order.objects.acreate(name=message.payload)
        if message.payload == "5":
            raise ValueError("no")

    ids = publish_many(TEN)
    _work()

    assert _booked() == NINE
    assert message_row(ids[5]).attempts_count == 1


def test_on_commit_hooks_run_for_those_that_commit_though_one_raises() -> None:
    told: list[str] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        def tell() -> None:
            if message.payload == "2":
                raise ValueError("no")
            told.append(message.payload)

        transaction.on_commit(tell)
        if message.payload == "5":
            raise ValueError("no")

    publish_many(TEN)
    _work()

    assert told == [name for name in NINE if name != "2"]
    assert OutboxMessage.objects.count() == 1


def test_session_state_does_not_reach_the_next_message() -> None:
    zones: list[str] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW application_name")
            zones.append(cursor.fetchone()[0])
            cursor.execute("SET application_name = 'soiled'")

    publish_many(TEN[:3])
    _work()

    assert len(zones) == 3
    assert "soiled" not in zones


def test_a_batch_costs_one_statement_beside_its_savepoints() -> None:
    statements: list[str] = []

    def count(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        statements.append(str(sql).split()[0])
        return execute(sql, params, many, context)

    def watch(connection: Any, **kwargs: Any) -> None:
        connection.execute_wrappers.append(count)

    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        pass

    publish_many(TEN)
    connection_created.connect(watch)
    try:
        _work()
    finally:
        connection_created.disconnect(watch)

    # Savepoints pass by the wrappers of statements on some versions of Django.
    own = [verb for verb in statements if verb not in ("SAVEPOINT", "RELEASE", "SHOW")]
    assert own in (["DELETE"], ["DELETE", "DELETE"])  # the first may be alone


def test_the_rows_of_a_batch_are_not_locked_until_it_ends() -> None:
    # A publisher that extends a timer must not wait for it, and leases are renewed meanwhile.
    free: list[int] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        lock = "SELECT id FROM django_outbox_message WHERE id = %s FOR UPDATE NOWAIT"
        with session() as other, other.transaction():
            free.extend(other.execute(lock, [message.id]).fetchone() or [])

    ids = publish_many(TEN)
    _work()

    assert sorted(free) == sorted(ids)


def test_an_ack_before_a_rolled_back_block_keeps_the_batch_whole() -> None:
    calls: list[str] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        calls.append(message.payload)
        Order.objects.create(name=message.payload)
        with transaction.atomic():
            message.ack()
        with suppress(ZeroDivisionError), transaction.atomic():
            transaction.on_commit(lambda: None)
            _ = 1 / 0

    publish_many(TEN)
    _work()

    assert _booked() == TEN
    assert sorted(calls) == sorted(TEN)  # each of them once


def test_what_is_set_for_a_transaction_does_not_reach_the_next_message() -> None:
    seen: list[str] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('app.tenant', true)")
            seen.append(cursor.fetchone()[0] or "")
            cursor.execute("SET LOCAL app.tenant = 'acme'")

    publish_many(TEN)
    _work()

    assert seen == [""] * 10


@contextmanager
def stuck_in(payload: str, calls: list[str]) -> Iterator[tuple[Worker, list[int]]]:
    """Run a worker whose handler is stuck in this message of the ten in its batch, and give both.

    The handler goes on at the end of the block.
    """
    gate = Gate()

    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        calls.append(message.payload)
        Order.objects.create(name=message.payload)
        if message.payload == payload:
            gate.wait()

    ids = publish_many(TEN)
    with running(batch_size=10) as worker:
        wait_for(gate.reached)
        try:
            yield worker, ids
        finally:
            gate.opened.set()


def _free(ids: list[int]) -> list[int]:
    """Return those that are free with no delivery counted."""
    rows = OutboxMessage.objects.filter(pk__in=ids, deliveries_count=0, lease_token=None)
    return list(rows.order_by("id").values_list("id", flat=True))


def test_a_stop_releases_those_of_a_batch_that_have_not_started_at_once() -> None:
    calls: list[str] = []

    with stuck_in("5", calls) as (worker, ids):
        worker.stop()
        wait_until(lambda: _free(ids) == ids[6:])

    assert calls == TEN[:6]
    assert _booked() == TEN[:6]
    assert _free(ids) == ids[6:]


def test_those_of_a_batch_that_wait_behind_a_slow_one_are_handed_back() -> None:
    calls: list[str] = []

    with stuck_in("5", calls) as (_, ids):
        wait_until(lambda: _free(ids) == ids[6:])
        assert calls == TEN[:6]


def test_one_message_that_waits_is_delivered_by_itself() -> None:
    @outbox.handler("orders", atomic=True, atomic_batch=10, retry=outbox.NoRetry())
    def handle(message: outbox.Message[Any]) -> None:
        raise ValueError("no")

    id_ = publish()
    _work()

    assert letter_of(id_).attempts_count == 1


def test_no_message_joins_a_transaction_that_has_gone_on_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "LONGEST_BATCH", 0.2)
    seen: list[int] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10)
    def handle(message: outbox.Message[Any]) -> None:
        seen.append(_transaction())
        time.sleep(0.25)

    publish_many(TEN[:4])
    _work()

    assert len(set(seen)) == 4


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_batch_holds_under_stricter_isolation(
    level: IsolationLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    @outbox.handler("orders", atomic=True, atomic_batch=10, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        calls.append(message.payload)
        Order.objects.create(name=message.payload)
        if message.payload == "5":
            raise ValueError("no")

    publish_many(TEN)
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", level)
    _work()

    assert _booked() == NINE
    assert sorted(calls) == TEN
    assert OutboxMessage.objects.get().attempts_count == 1
