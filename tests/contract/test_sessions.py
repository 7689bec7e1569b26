"""Sessions: what a handler leaves on its connection does not reach the next message."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import DatabaseError, DataError, IntegrityError, connection, connections, transaction
from pytest_django import DjangoDbBlocker

from django_outbox import outbox, signals
from django_outbox.models import OutboxMessage
from tests.support import (
    committed,
    drain,
    message_row,
    publish,
    publish_many,
    received,
    running,
    session,
    wait_until,
)
from tests.testapp.models import Order

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def test_a_swallowed_database_error_in_an_atomic_handler_is_a_failed_attempt() -> None:
    # J07
    done: list[Any] = []

    @outbox.handler("orders", atomic=True, retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "bad":
            try:
                Order.objects.create(id=1, name="first")
                Order.objects.create(id=1, name="twice")
            except IntegrityError:
                pass
        done.append(message.payload)

    bad = publish("bad")
    publish("good")
    drain()

    assert done == ["bad", "good"]
    assert message_row(bad).attempts_count == 1
    assert not Order.objects.exists()
    assert OutboxMessage.objects.count() == 1


def leave_autocommit_off() -> None:
    connection.set_autocommit(False)
    Order.objects.create(name="uncommitted")


def leave_an_atomic_block_open() -> None:
    transaction.atomic().__enter__()
    Order.objects.create(name="uncommitted")


def leave_a_search_path() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET search_path TO pg_catalog")


def leave_a_role() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE pg_monitor")


def leave_an_advisory_lock() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(42)")


@pytest.mark.parametrize(
    "leave",
    [
        leave_autocommit_off,
        leave_an_atomic_block_open,
        leave_a_search_path,
        leave_a_role,
        leave_an_advisory_lock,
    ],
)
def test_the_next_message_starts_with_a_clean_session(leave: Callable[[], None]) -> None:
    # J07
    found: list[tuple[Any, ...]] = []

    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "dirty":
            leave()
            return
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('search_path'), current_user = session_user,"
                " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database ="
                " (SELECT oid FROM pg_database WHERE datname = current_database()))"
            )
            found.append((*cursor.fetchone(), connection.get_autocommit()))

    publish("dirty")
    publish("clean")
    drain()

    assert found == [('"$user", public', True, 0, True)]
    assert not Order.objects.exists()


@pytest.mark.parametrize("leave", [leave_autocommit_off, leave_an_atomic_block_open])
def test_a_handler_that_leaves_a_transaction_open_has_failed(leave: Callable[[], None]) -> None:
    # J07: what it wrote is rolled back, so the message must not count as done
    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        leave()

    id_ = publish()
    drain()

    assert message_row(id_).attempts_count == 1
    assert not Order.objects.exists()


def test_an_advisory_lock_of_a_handler_is_its_own_to_release() -> None:
    # B17
    held: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(42)")
            with transaction.atomic():
                outbox.publish(1, queue="invoices")
                message.ack()
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42"
            )
            held.append(cursor.fetchone()[0])
            cursor.execute("SELECT pg_advisory_unlock(42)")

    publish()
    drain()

    assert held == [1]


# Lost sessions


def terminate_own_session() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    with session() as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def close_own_session() -> None:
    with connection.cursor() as cursor:
        connection.connection.close()
        cursor.execute("SELECT 1")


def write_while_read_only() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        cursor.execute("CREATE TABLE forbidden (id int)")


def outlive_the_transaction_timeout() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL transaction_timeout = '50ms'")
        cursor.execute("SELECT pg_sleep(10)")


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    "lose",
    [
        terminate_own_session,
        close_own_session,
        write_while_read_only,
        outlive_the_transaction_timeout,
    ],
)
def test_a_lost_session_charges_no_attempt_and_the_delivery_counts(
    *, lose: Any, atomic: bool
) -> None:
    # F05
    if lose is outlive_the_transaction_timeout:
        with session() as other:
            if other.info.server_version < 170000:
                pytest.skip("PostgreSQL has this timeout from 17 on")
    runs: list[tuple[int, int]] = []

    @outbox.handler("orders", atomic=atomic)
    def handle(message: outbox.Message[Any]) -> None:
        runs.append((message.attempt, message.deliveries_count))
        if message.deliveries_count == 1:
            with connection.cursor() as cursor:
                if lose is write_while_read_only and atomic:
                    cursor.execute("SET TRANSACTION READ ONLY")
            lose()

    publish()
    with received(signals.message_released) as released, running():
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert runs == [(1, 1), (1, 2)]
    assert len(released) == 1
    assert isinstance(released[0]["exception"], Exception)


@pytest.mark.parametrize("max_age", [0, 60, None])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_session_killed_between_messages_harms_the_next_ones_not_at_all(
    concurrency: int, max_age: int | None
) -> None:
    # F05
    handled: list[tuple[Any, int]] = []
    pids: set[int] = set()

    @outbox.handler("orders", retry=outbox.ConstantRetry(0))
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.add(cursor.fetchone()[0])
        handled.append((message.payload, message.attempt))

    before = connection.settings_dict["CONN_MAX_AGE"]
    connection.settings_dict["CONN_MAX_AGE"] = max_age
    try:
        with running(concurrency=concurrency):
            for n in range(concurrency * 2):
                publish(n)
                wait_until(lambda: not OutboxMessage.objects.exists())
            with session() as other:
                for pid in pids:
                    other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
            publish_many(["after"] * concurrency * 2)
            wait_until(lambda: not OutboxMessage.objects.exists())
    finally:
        connection.settings_dict["CONN_MAX_AGE"] = before

    assert [attempt for _, attempt in handled] == [1] * concurrency * 4


@pytest.fixture
def latecomer(monkeypatch: pytest.MonkeyPatch, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Give the alias of the same database for a role of this name, which does not exist yet."""
    default = connections.databases["default"]
    options = {**default["OPTIONS"], "assume_role": "outbox_latecomer"}
    monkeypatch.setitem(connections.databases, "latecomer", {**default, "OPTIONS": options})
    with django_db_blocker.unblock():
        yield "outbox_latecomer"
    with session() as other:
        other.execute("DROP ROLE IF EXISTS outbox_latecomer")


def test_a_session_that_could_not_take_its_role_is_not_used_without_it(latecomer: str) -> None:
    users: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        try:
            with connections["latecomer"].cursor() as cursor:
                cursor.execute("SELECT current_user")
                users.append(cursor.fetchone()[0])
        except DataError:
            users.append(None)
            with session() as other:
                other.execute(f"CREATE ROLE {latecomer}")

    publish_many([1, 2])
    with running(concurrency=1):
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert users == [None, latecomer]


def test_an_operational_error_of_another_system_is_an_ordinary_failure() -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        raise ConnectionResetError("the payment provider hung up")

    id_ = publish()
    drain()

    assert message_row(id_).attempts_count == 1


def test_the_statement_timeout_of_a_handler_is_an_ordinary_failure() -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(3600), atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 10")
            cursor.execute("SELECT pg_sleep(5)")

    id_ = publish()
    drain()

    row = message_row(id_)
    assert row.attempts_count == 1
    assert "statement timeout" in (row.last_error or "")


def test_connections_that_a_handler_puts_away_are_let_go() -> None:
    put_away: list[weakref.ref[Any]] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        connection.ensure_connection()
        put_away.append(weakref.ref(connections["default"]))
        del connections["default"]

    publish_many(list(range(20)))
    with running(concurrency=1):
        wait_until(lambda: not OutboxMessage.objects.exists())
        gc.collect()
        left = [ref for ref in put_away if ref() is not None]

    assert len(put_away) == 20
    assert len(left) <= 1


def test_connections_that_a_handler_makes_are_its_own_affair() -> None:
    pids: set[int] = set()
    made: list[weakref.ref[Any]] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.add(cursor.fetchone()[0])
        other = connections.create_connection("default")
        with other.cursor() as cursor:
            cursor.execute("SET statement_timeout = '1min'")
        other.close()
        made.append(weakref.ref(other))

    publish_many(list(range(10)))
    with running(concurrency=1):
        wait_until(lambda: not OutboxMessage.objects.exists())
        gc.collect()
        left = [ref for ref in made if ref() is not None]

    assert len(pids) == 1
    assert left == []


@pytest.mark.parametrize("comment", ["/* sorted by hand */ ", ";/*/", "-- it's\n"])
def test_a_statement_with_many_comments_holds_nobody_up(comment: str) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor, suppress(DatabaseError):
            cursor.execute(comment * 100_000 + "SELECT 1")

    publish()
    drain()

    assert not OutboxMessage.objects.exists()


def test_a_handler_thread_uses_one_connection_for_message_after_message() -> None:
    pids: list[int] = []
    lock = threading.Lock()

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            with lock:
                pids.append(cursor.fetchone()[0])

    publish_many(list(range(100)))
    drain(concurrency=2)

    assert len(pids) == 100
    assert 1 <= len(set(pids)) <= 2


def test_a_connection_that_has_reached_its_age_is_replaced() -> None:
    # F07
    pids: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    def backends() -> int:
        with session() as other:
            row = other.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", [pids]
            ).fetchone()
        assert row is not None
        return int(row[0])

    before = connection.settings_dict["CONN_MAX_AGE"]
    connection.settings_dict["CONN_MAX_AGE"] = 1
    try:
        with running():
            publish()
            wait_until(lambda: not OutboxMessage.objects.exists())
            time.sleep(1.1)  # the connection grows old
            publish()
            wait_until(lambda: not OutboxMessage.objects.exists())
            assert len(set(pids)) == 2
            assert backends() == 1
    finally:
        connection.settings_dict["CONN_MAX_AGE"] = before


def test_an_idle_thread_gives_its_connection_back() -> None:
    # F07
    pids: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    def is_closed() -> bool:
        with session() as other:
            row = other.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pids[0]]
            ).fetchone()
        return row == (0,)

    assert connection.settings_dict["CONN_MAX_AGE"] == 0
    with running():
        publish()
        wait_until(lambda: not OutboxMessage.objects.exists())
        wait_until(is_closed, within=3)
