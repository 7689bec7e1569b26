"""Pulling one message at a time: `run_once`, and the private outboxes of `named`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_outbox import handlers, outbox
from django_outbox.models import DeadLetter, OutboxMessage

from .helpers import committed, database_clock, row

pytestmark = pytest.mark.django_db


def fail(message: outbox.Message[Any]) -> None:
    raise ValueError(f"no stock at attempt {message.attempt}")


@contextmanager
def at_most_statements(most: int) -> Iterator[None]:
    """Let the block run no more statements than so many, and fail rather than go on."""
    left = iter(range(most))

    def count(execute: Any, *args: Any) -> Any:
        assert next(left, None) is not None, f"more than {most} statements"
        return execute(*args)

    with connection.execute_wrapper(count):
        yield


def make_due(id_: int) -> None:
    OutboxMessage.objects.filter(pk=id_).update(next_attempt_at=database_clock())


def test_a_named_message_gets_five_attempts_and_a_lease_of_a_minute() -> None:
    id_ = outbox.named("mail").enqueue({"to": "ann"})
    leases: list[timedelta] = []

    def look(message: outbox.Message[Any]) -> None:
        expires_at = row(message.id).lease_expires_at
        assert expires_at is not None
        leases.append(expires_at - database_clock())

    assert row(id_).max_attempts == 5
    assert row(id_).queue == "__outbox:mail"
    assert outbox.named("mail").run_once("puller", look) is True
    assert timedelta(seconds=59) < leases[0] <= timedelta(seconds=60)


def test_max_attempts_overrides_the_five() -> None:
    assert row(outbox.named("mail").enqueue(1, max_attempts=2)).max_attempts == 2


def test_what_returns_is_done_and_an_empty_outbox_says_false() -> None:
    outbox.named("mail").enqueue("hello")
    got: list[Any] = []

    assert outbox.named("mail").run_once("puller", lambda m: got.append(m.payload)) is True
    assert outbox.named("mail").run_once("puller", lambda m: got.append(m.payload)) is False

    assert got == ["hello"]
    assert not OutboxMessage.objects.exists()


def test_pauses_double_from_five_seconds_without_jitter_and_the_fifth_failure_buries() -> None:
    id_ = outbox.named("mail").enqueue(1)
    pauses = []
    for _ in range(4):
        assert outbox.named("mail").run_once("puller", fail) is True
        stored = row(id_)
        assert stored.last_attempt_at is not None
        pauses.append(stored.next_attempt_at - stored.last_attempt_at)
        make_due(id_)

    assert outbox.named("mail").run_once("puller", fail) is True

    assert pauses == [timedelta(seconds=s) for s in (5, 10, 20, 40)]
    letter = DeadLetter.objects.get(original_id=id_)
    assert letter.failure_reason == "retry_terminal"
    assert letter.attempts_count == 5
    assert (letter.last_exception or "").startswith("ValueError: no stock at attempt 5")


def test_the_message_can_renew_its_lease_in_the_delivery() -> None:
    id_ = outbox.named("mail").enqueue(1)
    renewed: list[bool] = []

    def slow(message: outbox.Message[Any]) -> None:
        OutboxMessage.objects.filter(pk=id_).update(
            lease_expires_at=database_clock() + timedelta(seconds=1)
        )
        renewed.append(message.heartbeat())
        expires_at = row(id_).lease_expires_at
        assert expires_at is not None
        assert expires_at > database_clock() + timedelta(seconds=59)

    assert outbox.named("mail").run_once("puller", slow) is True
    assert renewed == [True]


def test_the_backing_queue_is_reached_by_nothing_else() -> None:
    for reach in (
        lambda: outbox.publish(1, queue="__outbox:mail"),
        lambda: outbox.publish_many([1], queue="__outbox:mail"),
        lambda: outbox.schedule("s", "@every 5m", queue="__outbox:mail"),
        lambda: outbox.run_once("__outbox:mail", fail),
        lambda: outbox.handler("__outbox:mail"),
    ):
        with pytest.raises(outbox.ReservedName):
            reach()


@pytest.mark.parametrize(
    ("delivery", "worker_id", "says"),
    [
        (5, None, "delivery must be a callable that takes the message.* of type int"),
        (None, "puller", "delivery must be a callable that takes the message.* of type NoneType"),
        (fail, 5, "worker_id must be a str; it is of type int"),
    ],
)
def test_what_cannot_deliver_is_refused_though_nothing_is_due(
    delivery: Any, worker_id: Any, says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        outbox.run_once("orders", delivery, worker_id=worker_id)
    with pytest.raises(TypeError, match=says):
        outbox.named("mail").run_once(worker_id, delivery)


@pytest.mark.parametrize("name", ["", "x" * 241, "a\x00b"])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(outbox.InvalidName):
        outbox.named(name)


def test_a_reserved_name_is_refused_and_the_longest_is_not() -> None:
    with pytest.raises(outbox.ReservedName):
        outbox.named("__mail")
    assert outbox.named("x" * 240).enqueue(1)


def test_two_names_are_two_outboxes() -> None:
    outbox.named("mail").enqueue(1)

    assert outbox.named("sms").run_once("puller", fail) is False


@committed
def test_enqueue_needs_a_transaction() -> None:
    with pytest.raises(outbox.TransactionRequired):
        outbox.named("mail").enqueue(1)


def test_run_once_goes_by_the_strategy_of_the_queues_handler(
    registry: handlers.Registry,
) -> None:
    outbox.handler("orders", retry=outbox.ConstantRetry(90))(fail)
    id_ = outbox.publish(1, queue="orders")
    assert id_ is not None

    assert outbox.run_once("orders", fail) is True

    stored = row(id_)
    assert stored.last_attempt_at is not None
    assert stored.next_attempt_at - stored.last_attempt_at == timedelta(seconds=90)


def test_run_once_buries_what_has_expired_and_goes_on_to_the_next() -> None:
    expired = outbox.publish("old", queue="orders", expires_in=timedelta(hours=1))
    assert expired is not None
    OutboxMessage.objects.filter(pk=expired).update(expires_at=database_clock())
    outbox.publish("new", queue="orders")
    got: list[Any] = []

    assert outbox.run_once("orders", lambda m: got.append(m.payload)) is True

    assert got == ["new"]
    assert DeadLetter.objects.get().failure_reason == "expired"


def test_run_once_passes_over_a_row_that_a_trigger_keeps_from_being_leased() -> None:
    id_ = outbox.publish(1, queue="orders")
    assert id_ is not None
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            "CREATE TRIGGER keep BEFORE UPDATE ON django_outbox_message"
            " FOR EACH ROW EXECUTE FUNCTION keep()"
        )

    with at_most_statements(10):
        assert outbox.run_once("orders", lambda m: None) is False

    assert row(id_).lease_token is None


@committed
def test_inside_a_block_that_rolls_back_nothing_was_delivered() -> None:
    with transaction.atomic():
        id_ = outbox.publish(1, queue="orders")
    with transaction.atomic():
        assert outbox.run_once("orders", lambda m: None) is True
        transaction.set_rollback(True)

    assert row(id_).deliveries_count == 0
    assert outbox.run_once("orders", lambda m: None) is True
    assert not OutboxMessage.objects.exists()
