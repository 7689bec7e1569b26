"""Burying: when a message becomes a dead letter, and what the letter says."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pydantic
import pytest
from django.core.exceptions import ImproperlyConfigured
from typing_extensions import TypedDict

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage
from tests.support import (
    committed,
    drain,
    expire_lease,
    letter_of,
    make_due,
    message_row,
    publish,
    publish_many,
    session,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def fail(message: outbox.Message[Any]) -> None:
    raise ValueError("no stock")


def test_a_message_out_of_attempts_becomes_a_letter_that_tells_its_story() -> None:
    outbox.handler("orders", retry=outbox.ConstantRetry(3600, max_attempts=2))(fail)
    id_ = publish({"n": 1}, headers={"tenant": "acme"}, correlation_id="c-1", timer_id="t-1")
    live = message_row(id_)
    drain()
    first_attempt_at = message_row(id_).first_attempt_at
    make_due(id_)

    drain()

    letter = letter_of(id_)
    assert letter.failure_reason == "retry_terminal"
    assert letter.message_id == live.message_id
    assert letter.queue == "orders"
    assert bytes(letter.payload) == b'{"n":1}'
    assert letter.headers == live.headers
    assert (letter.correlation_id, letter.timer_id) == ("c-1", "t-1")
    assert letter.created_at == live.created_at
    assert letter.first_attempt_at == first_attempt_at
    assert letter.last_attempt_at is not None
    assert letter.first_attempt_at is not None
    assert letter.last_attempt_at > letter.first_attempt_at
    assert letter.failed_at - letter.last_attempt_at < timedelta(seconds=1)
    assert (letter.attempts_count, letter.deliveries_count) == (2, 2)
    assert letter.exception_class == "ValueError"
    assert letter.last_exception is not None
    assert letter.last_exception.startswith("ValueError: no stock")
    assert "Traceback" in letter.last_exception
    assert letter.fingerprint != ""


def test_the_burying_failure_counts_even_if_it_is_the_first() -> None:
    outbox.handler("orders", retry=outbox.NoRetry())(fail)
    id_ = publish()

    drain()

    letter = letter_of(id_)
    assert (letter.failure_reason, letter.attempts_count) == ("retry_terminal", 1)
    assert letter.first_attempt_at is not None
    assert letter.last_attempt_at is not None
    assert letter.last_attempt_at - letter.first_attempt_at < timedelta(milliseconds=10)


def test_letters_of_one_cause_share_a_fingerprint() -> None:
    @outbox.handler("orders", "refunds", retry=outbox.NoRetry())
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "other":
            raise KeyError(message.id)
        raise ValueError(f"no stock for {message.id}")

    first, second, other = publish_many(["same", "same", "other"])
    elsewhere = publish("same", queue="refunds")
    drain()

    prints = {id_: letter_of(id_).fingerprint for id_ in (first, second, other, elsewhere)}
    assert prints[first] == prints[second]
    assert len(set(prints.values())) == 3


def test_a_buried_timer_can_be_set_again() -> None:
    # D07
    outbox.handler("orders", retry=outbox.NoRetry())(fail)
    id_ = publish(timer_id="t")
    drain()
    letter_of(id_)

    assert publish(timer_id="t") != id_


# Without running the handler


def test_what_has_expired_is_buried_and_not_handled() -> None:
    ran: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        ran.append(message.id)

    stale = publish(expires_in=60)
    fresh = publish(expires_in=60)
    with session() as other:
        other.execute(
            "UPDATE django_outbox_message SET expires_at = clock_timestamp() WHERE id = %s",
            [stale],
        )
    drain()

    assert ran == [fresh]
    letter = letter_of(stale)
    assert (letter.failure_reason, letter.attempts_count) == ("expired", 0)
    assert letter.first_attempt_at is None


def test_a_message_that_expires_between_retries_keeps_its_last_error() -> None:
    outbox.handler("orders", retry=outbox.ConstantRetry(3600))(fail)
    id_ = publish(expires_in=60)
    drain()
    with session() as other:
        other.execute("UPDATE django_outbox_message SET expires_at = clock_timestamp()")
    make_due(id_)

    drain()

    letter = letter_of(id_)
    assert (letter.failure_reason, letter.attempts_count) == ("expired", 1)
    assert letter.last_exception is not None
    assert letter.last_exception.startswith("ValueError: no stock")


def test_what_was_delivered_too_often_is_buried_and_not_handled() -> None:
    ran: list[int] = []

    @outbox.handler("orders", max_deliveries=3)
    def handle(message: outbox.Message[Any]) -> None:
        ran.append(message.deliveries_count)

    last, beyond = publish_many([1, 2])
    OutboxMessage.objects.filter(pk=last).update(deliveries_count=2)
    OutboxMessage.objects.filter(pk=beyond).update(deliveries_count=3)
    drain()

    assert ran == [3]
    letter = letter_of(beyond)
    assert (letter.failure_reason, letter.attempts_count) == ("max_deliveries", 0)


def test_a_message_whose_worker_always_dies_ends_at_max_deliveries() -> None:
    # C07: every delivery loses its lease, so no attempt is ever recorded
    runs: list[int] = []

    @outbox.handler("orders", max_deliveries=4)
    def handle(message: outbox.Message[Any]) -> None:
        runs.append(message.deliveries_count)
        with session() as other:
            other.execute(
                "UPDATE django_outbox_message SET lease_token = gen_random_uuid() WHERE id = %s",
                [message.id],
            )

    id_ = publish()
    for _ in range(5):
        drain()
        if OutboxMessage.objects.exists():
            expire_lease(id_)

    assert runs == [1, 2, 3, 4]
    assert letter_of(id_).failure_reason == "max_deliveries"


# Typed payloads


@dataclasses.dataclass
class Item:
    sku: str
    amount: int


class Placed(TypedDict):
    order_id: int
    items: list[Item]


class Shipped(pydantic.BaseModel):
    order_id: int
    carrier: str = "post"


@pytest.mark.parametrize(
    ("type_", "payload", "expected"),
    [
        (Item, {"sku": "a", "amount": 2}, Item("a", 2)),
        (
            Placed,
            {"order_id": 7, "items": [{"sku": "a", "amount": 2}]},
            {"order_id": 7, "items": [Item("a", 2)]},
        ),
        (Shipped, {"order_id": 7}, Shipped(order_id=7)),
        (Shipped, Shipped(order_id=7, carrier="bike"), Shipped(order_id=7, carrier="bike")),
        (Item, {"sku": "a", "amount": "2"}, Item("a", 2)),  # the default mode converts
        (int, 5, 5),
        (bytes, b"\x00\xff", b"\x00\xff"),
    ],
    ids=["dataclass", "TypedDict", "model", "model published", "converted", "int", "bytes"],
)
def test_a_payload_is_decoded_to_the_type_the_handler_names(
    type_: Any, payload: Any, expected: Any
) -> None:
    got: list[Any] = []

    def handle(message: Any) -> None:
        got.append(message.payload)

    handle.__annotations__["message"] = outbox.Message[type_]
    outbox.handler("orders")(handle)
    publish(payload)
    drain()

    assert got == [expected]
    assert type(got[0]) is type(expected)


def test_a_payload_that_does_not_fit_is_buried_at_once() -> None:
    ran: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Shipped]) -> None:
        ran.append(message.payload)

    id_ = publish({"order_id": "SECRET-XYZ"})
    good = publish({"order_id": 7})
    drain()

    assert ran == [Shipped(order_id=7)]
    assert not OutboxMessage.objects.filter(pk=good).exists()
    letter = letter_of(id_)
    assert letter.failure_reason == "invalid_payload"
    assert letter.last_exception is not None
    assert "order_id" in letter.last_exception
    assert "SECRET-XYZ" not in letter.last_exception


def test_a_typed_handler_without_pydantic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "django_outbox.typed_payloads", None)

    def handle(message: outbox.Message[Item]) -> None:
        pass

    with pytest.raises(ImproperlyConfigured, match="pydantic"):
        outbox.handler("orders")(handle)


@pytest.mark.parametrize(
    "columns",
    [
        {"payload": b"{not json"},
        {"payload": b"\xff\xfe"},
        {"payload": b"[" * 100_000},
        {"payload": b"NaN"},
        {"headers": []},
        {"headers": {"content-type": 5}},
        {"headers": None},
    ],
    ids=["no json", "no utf-8", "deep", "NaN", "a list", "a number", "null"],
)
def test_a_row_that_cannot_be_read_holds_up_no_other(columns: dict[str, Any]) -> None:
    # H05
    done: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        done.append(message.payload)

    bad, *good = publish_many(list(range(21)))
    if columns.get("headers", 0) is None:
        with session() as other:
            other.execute(
                "UPDATE django_outbox_message SET headers = 'null'::jsonb WHERE id = %s", [bad]
            )
    else:
        OutboxMessage.objects.filter(pk=bad).update(**columns)
    drain()

    assert done == list(range(1, len(good) + 1))
    assert letter_of(bad).failure_reason == "invalid_payload"


# The one statement


def test_a_letter_that_cannot_be_inserted_leaves_the_message_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox.handler("orders", retry=outbox.NoRetry())(fail)
    id_ = publish()
    with session() as other:
        other.execute(
            "ALTER TABLE django_outbox_dead_letter ADD CONSTRAINT none CHECK (queue <> 'orders')"
        )
        try:
            drain(exit_code=1)
        finally:
            other.execute("ALTER TABLE django_outbox_dead_letter DROP CONSTRAINT none")

    assert not DeadLetter.objects.exists()
    assert message_row(id_).lease_token is not None  # until its lease ends
    assert any(record.levelname == "ERROR" for record in caplog.records)

    expire_lease(id_)
    drain()
    assert letter_of(id_).failure_reason == "retry_terminal"


def test_a_settlement_that_the_database_refuses_logs_no_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # L03: the detail of a violated constraint quotes the row
    outbox.handler("orders", retry=outbox.NoRetry())(fail)
    publish("SECRET-XYZ", headers={"authorization": "SECRET-ABC"})
    with session() as other:
        other.execute(
            "ALTER TABLE django_outbox_dead_letter ADD CONSTRAINT none CHECK (queue <> 'orders')"
        )
        try:
            drain(exit_code=1)
        finally:
            other.execute("ALTER TABLE django_outbox_dead_letter DROP CONSTRAINT none")

    assert "refused" in caplog.text
    assert "SECRET" not in caplog.text
    assert b"SECRET".hex() not in caplog.text


def test_a_dead_letter_stays_as_it_is() -> None:
    # C09
    outbox.handler("orders", retry=outbox.NoRetry())(fail)
    id_ = publish()
    drain()
    DeadLetter.objects.update(failed_at="2000-01-01T00:00Z", created_at="2000-01-01T00:00Z")
    before = DeadLetter.objects.values().get()

    for _ in range(10):
        drain()

    assert DeadLetter.objects.values().get() == before
    assert letter_of(id_).failure_reason == "retry_terminal"


def test_a_replayed_letter_has_a_fresh_budget_and_the_same_message_id() -> None:
    # C11
    runs: list[int] = []
    fixed = False

    @outbox.handler("orders", retry=outbox.ConstantRetry(0, max_attempts=3))
    def handle(message: outbox.Message[Any]) -> None:
        runs.append(message.attempt)
        if not fixed:
            raise ValueError("no stock")

    message_id = message_row(publish()).message_id
    drain()
    assert DeadLetter.objects.all().replay().replayed == 1
    drain()
    letter = DeadLetter.objects.get()
    assert (letter.message_id, letter.attempts_count) == (message_id, 3)
    fixed = True
    assert DeadLetter.objects.all().replay().replayed == 1
    drain()

    assert runs == [1, 2, 3, 1, 2, 3, 1]
    assert not OutboxMessage.objects.exists()
    assert not DeadLetter.objects.exists()


def test_a_letter_that_a_trigger_passes_over_costs_no_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox.handler("orders", retry=outbox.NoRetry())(fail)
    with session() as own:
        own.execute(
            "CREATE FUNCTION drop_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
        )
        own.execute(
            "CREATE TRIGGER drop_it BEFORE INSERT ON django_outbox_dead_letter"
            " FOR EACH ROW EXECUTE FUNCTION drop_it()"
        )
        try:
            id_ = publish()
            drain(exit_code=1)
        finally:
            own.execute("DROP FUNCTION drop_it CASCADE")

    assert message_row(id_).attempts_count == 0
    assert "has no dead letter: a trigger, rule or policy keeps it out" in caplog.text


NAMES = ("place", "reason", "attempted", "error", "exception_class", "fingerprint", "now")


def test_a_column_that_a_site_has_added_is_in_no_burials_way() -> None:
    outbox.handler("orders", retry=outbox.NoRetry())(fail)
    columns = ", ".join(f"ADD COLUMN {name} integer DEFAULT 1" for name in NAMES)
    with session() as own:
        own.execute(f"ALTER TABLE django_outbox_message {columns}")
    try:
        id_ = publish()
        drain()
    finally:
        with session() as own:
            columns = ", ".join(f"DROP COLUMN {name}" for name in NAMES)
            own.execute(f"ALTER TABLE django_outbox_message {columns}")

    assert letter_of(id_).failure_reason == "retry_terminal"
