"""What the database refuses: locks, isolation, privileges and burials that it does not allow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from psycopg import sql
from pytest_django import DjangoDbBlocker

from django_outbox import handlers, outbox
from django_outbox.management.commands import outbox_worker
from django_outbox.models import DeadLetter, OutboxMessage
from django_outbox.worker import claimer
from tests.support import (
    PATIENCE,
    Gate,
    committed,
    drain,
    message_row,
    publish,
    publish_many,
    running,
    session,
    wait_for,
    wait_until,
    worker,
)
from tests.testapp.models import Order

pytestmark = [committed, pytest.mark.usefixtures("registry")]

HOUR = outbox.ConstantRetry(3600)


@contextmanager
def default_of_the_database(name: str, value: str) -> Iterator[None]:
    """Have the sessions that begin in the block begin with this setting."""
    database = sql.Identifier(connection.settings_dict["NAME"])
    with session() as other:
        set_it = sql.SQL("ALTER DATABASE {} SET {} = {}")
        other.execute(set_it.format(database, sql.Identifier(name), sql.Literal(value)))
        connection.close()
        try:
            yield
        finally:
            reset = sql.SQL("ALTER DATABASE {} RESET {}")
            other.execute(reset.format(database, sql.Identifier(name)))
            connection.close()


@contextmanager
def refused(row: str, errcode: str, *, event: str = "INSERT") -> Iterator[None]:
    """Have the database refuse what the trigger's condition matches while the block runs."""
    table = "django_outbox_dead_letter" if event == "INSERT" else "django_outbox_message"
    with session() as other:
        other.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = '{errcode}'; END $$"
        )
        other.execute(
            f"CREATE TRIGGER refuse BEFORE {event} ON {table} FOR EACH ROW WHEN ({row})"
            " EXECUTE FUNCTION refuse()"
        )
        try:
            yield
        finally:
            other.execute(f"DROP TRIGGER refuse ON {table}")
            other.execute("DROP FUNCTION refuse")


# A row that is passed over


def test_a_message_that_a_trigger_passes_over_fails_its_transaction() -> None:
    with session() as other:
        other.execute(
            "CREATE FUNCTION pass_over() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN RETURN CASE WHEN NEW.queue <> ''kept out'' THEN NEW END; END'"
        )
        other.execute(
            "CREATE TRIGGER pass_over BEFORE INSERT ON django_outbox_message"
            " FOR EACH ROW EXECUTE FUNCTION pass_over()"
        )
        try:
            with pytest.raises(outbox.NotStored, match="has not stored the message; a trigger"):
                publish(queue="kept out")
            with pytest.raises(outbox.NotStored, match="has stored 0 of 2 messages; a trigger"):
                publish_many([1, 2], queue="kept out")
        finally:
            other.execute("DROP FUNCTION pass_over CASCADE")

    assert not OutboxMessage.objects.exists()


# A row that cannot be leased


@pytest.mark.parametrize("errcode", ["P0001", "22023", "23514"])
def test_a_row_that_cannot_be_leased_is_named_and_holds_up_only_what_is_behind_it(
    errcode: str, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[Any] = []

    @outbox.handler("orders", "refunds")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    before = publish_many(["before"] * 3)
    refused_one = publish("refused")
    after = publish("after")
    publish_many(["refund"] * 3, queue="refunds")
    with refused(f"OLD.id = {refused_one}", errcode, event="UPDATE"):
        drain(exit_code=1)

    assert sorted(handled) == ["before"] * len(before) + ["refund"] * 3
    assert sorted(OutboxMessage.objects.values_list("id", flat=True)) == [refused_one, after]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.event for record in errors] == ["claim_refused"]  # type: ignore[attr-defined]
    assert "'orders' is left alone" in errors[0].getMessage()
    assert f"most likely {refused_one}: not this one" in errors[0].getMessage()


def test_a_queue_that_was_left_alone_is_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimer, "REFUSED_PAUSE", 0.1)
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    id_ = publish("refused")
    with ExitStack() as stack:
        with refused(f"OLD.id = {id_}", "P0001", event="UPDATE"):
            worker = stack.enter_context(running())
            wait_until(lambda: worker._claims._claimer.refused)
            publish("behind")
        wait_until(lambda: handled == ["refused", "behind"])


# Locks


def test_a_locked_table_is_waited_for_however_short_the_lock_timeout() -> None:
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    with default_of_the_database("lock_timeout", "100ms"), running(), session() as other:
        publish("before")
        wait_until(lambda: handled == ["before"])
        with other.transaction():
            other.execute("SET LOCAL lock_timeout = '10s'")
            other.execute("LOCK TABLE django_outbox_message IN ACCESS EXCLUSIVE MODE")
            time.sleep(0.8)  # several lock timeouts
        publish("after")
        wait_until(lambda: handled == ["before", "after"])


def test_a_row_that_an_uncommitted_extend_locks_does_not_slow_other_settlements() -> None:
    gate = Gate()

    @outbox.handler("locked")
    def wait(message: outbox.Message[Any]) -> None:
        gate.wait()

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None: ...

    timer = publish(queue="locked", timer_id="t")
    extended = threading.Event()
    done = threading.Event()

    def extend() -> None:
        # The lease is left to its worker, but the row stays locked until the commit.
        with transaction.atomic():
            outbox.publish({}, queue="locked", timer_id="t", timer_conflict="extend", activate_in=9)
            extended.set()
            wait_for(done)
        connections.close_all()

    with running(concurrency=2):
        wait_for(gate.reached)
        publisher = threading.Thread(target=extend)
        publisher.start()
        try:
            wait_for(extended)
            gate.opened.set()
            for n in range(20):
                publish(n)
            wait_until(
                lambda: list(OutboxMessage.objects.values_list("id", flat=True)) == [timer],
                within=3,
            )
        finally:
            done.set()
            publisher.join()
        wait_until(lambda: not OutboxMessage.objects.exists())


# Isolation


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_atomic_handler_outlives_renewals_under_any_default_isolation(level: str) -> None:
    attempts: list[int] = []

    @outbox.handler("orders", atomic=True, lease_ttl=0.6, retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.create(name="booked")
        attempts.append(message.attempt)
        time.sleep(0.7)  # several renewals

    with default_of_the_database("default_transaction_isolation", level):
        publish()
        drain()

    assert attempts == [1]
    assert Order.objects.count() == 1
    assert not OutboxMessage.objects.exists()


@pytest.fixture
def manual(monkeypatch: pytest.MonkeyPatch, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Give the alias of the same database for a project that commits by itself."""
    database = {**connections.databases["default"], "AUTOCOMMIT": False}
    monkeypatch.setitem(connections.databases, "manual", database)
    with django_db_blocker.unblock():
        yield "manual"


def test_a_project_without_autocommit_is_served_all_the_same(manual: str) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.using(manual).create(name=str(message.payload))

    publish_many(["a", "b", "c"])
    with running(using=manual):
        wait_until(lambda: not OutboxMessage.objects.exists())
        with session() as other:
            row = other.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
            ).fetchone()

    assert sorted(order.name for order in Order.objects.all()) == ["a", "b", "c"]
    assert row == (0,)


# Burials


@pytest.mark.parametrize(
    "errcode",
    ["P0001", "23514", "53100", "XX000", "42501"],
    ids=["raised", "a constraint", "disk full", "internal error", "no privilege"],
)
def test_a_burial_that_is_refused_holds_up_nothing_else(
    errcode: str, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[Any] = []

    @outbox.handler("poisoned")
    def reject(message: outbox.Message[Any]) -> None:
        raise outbox.Reject("no")

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    with refused("true", errcode):
        bad = publish(queue="poisoned")
        with running(exit_code=1, shutdown_timeout=0.5):
            wait_until(lambda: "refused" in caplog.text)
            publish_many(list(range(20)))
            wait_until(lambda: len(handled) == 20, within=5)
            wait_until(
                lambda: list(OutboxMessage.objects.values_list("id", flat=True)) == [bad], within=5
            )

    assert message_row(bad).lease_token is not None
    assert not DeadLetter.objects.exists()
    assert len(caplog.records) < 50


def test_a_burial_refused_for_a_while_is_done_when_it_can_be(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_outbox.worker.settling.REFUSED_PAUSE", 0.2)

    @outbox.handler("orders")
    def reject(message: outbox.Message[Any]) -> None:
        raise outbox.Reject("no")

    with running():
        with refused("true", "53100"):
            publish()
            wait_until(lambda: "refused" in caplog.text)
        wait_until(DeadLetter.objects.exists)

    assert not OutboxMessage.objects.exists()


def test_a_full_disk_is_not_told_of_each_message(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_outbox.worker.settling.REFUSED_PAUSE", 0.2)
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    publish_many(list(range(300)))
    with running(concurrency=1):
        with refused("true", "53100", event="DELETE"):
            wait_until(lambda: len(handled) == 300)
            wait_until(lambda: " messages was refused, so that is tried again" in caplog.text)
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert len(handled) == 300
    assert len(caplog.records) < 250


def test_a_row_that_a_trigger_keeps_is_spoken_of_and_settled_when_it_can_be(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_outbox.worker.settling.MISSED_FOR", 0.5)
    calls: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        calls.append(message.payload)

    with session() as other:
        other.execute(
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
        )
        other.execute(
            "CREATE TRIGGER keep BEFORE DELETE ON django_outbox_message"
            " FOR EACH ROW EXECUTE FUNCTION keep()"
        )
        id_ = publish(1)
        with running():
            try:
                wait_until(
                    lambda: "a trigger, rule or policy keeps them as they are" in caplog.text
                )
            finally:
                other.execute("DROP FUNCTION keep CASCADE")
            wait_until(lambda: not OutboxMessage.objects.exists())

    assert calls == [1]
    assert f"For 0.5 s messages [{id_}] could not be settled" in caplog.text


# Privileges


@pytest.fixture
def clerk(monkeypatch: pytest.MonkeyPatch, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Give the alias of the same database for a role that has few privileges."""
    default = connections.databases["default"]
    options = {**default["OPTIONS"], "assume_role": "outbox_clerk"}
    monkeypatch.setitem(connections.databases, "clerk", {**default, "OPTIONS": options})
    with session() as other:
        other.execute("CREATE ROLE outbox_clerk")
        other.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO outbox_clerk")
        other.execute(
            "GRANT UPDATE, DELETE, INSERT ON django_outbox_message, django_outbox_dead_letter"
            " TO outbox_clerk"
        )
        with django_db_blocker.unblock():
            yield "clerk"
        connections["clerk"].close()
        del connections["clerk"]
        other.execute("DROP OWNED BY outbox_clerk")
        other.execute("DROP ROLE outbox_clerk")


def revoke(privilege: str) -> None:
    """Take a privilege on messages away from the clerk."""
    with session() as other:
        other.execute(f"REVOKE {privilege} ON django_outbox_message FROM outbox_clerk")


def test_a_worker_whose_privilege_is_revoked_stops_in_good_order(clerk: str) -> None:
    gate = Gate()
    started: list[Any] = []
    errors: list[BaseException] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        started.append(message.payload)
        if message.payload == "slow":
            gate.wait()

    # The quick ones teach the worker that it can claim ahead; then one gets stuck.
    *_, slow, behind = publish_many(["quick"] * 50 + ["slow", "behind"])
    refused_worker = worker(using=clerk, shutdown_timeout=5)

    def run() -> None:
        try:
            refused_worker.run()
        except psycopg.Error as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for(gate.reached)
        wait_until(lambda: OutboxMessage.objects.count() == 2)
        wait_until(lambda: message_row(behind).leased_by == "tester")
        revoke("UPDATE")
        publish_many(["never"] * 5)  # what it cannot claim
        wait_until(lambda: refused_worker._stop_requested)
        gate.opened.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    finally:
        gate.opened.set()
        refused_worker.stop()
        thread.join(PATIENCE)

    assert [type(error) for error in errors] == [psycopg.errors.InsufficientPrivilege]
    assert started == ["quick"] * 50 + ["slow"]
    assert not OutboxMessage.objects.filter(pk=slow).exists()


def test_the_command_ends_with_one_line_when_a_statement_is_refused(
    clerk: str, registry: handlers.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None: ...

    monkeypatch.setattr(outbox_worker, "registry", registry)
    publish()
    revoke("UPDATE")

    with pytest.raises(CommandError, match="refused a statement") as refusal:
        call_command("outbox_worker", "--no-reload", "--database", clerk, verbosity=0)

    assert refusal.value.returncode == 1
    assert "\n" not in str(refusal.value)
    assert "privileges" in str(refusal.value)
