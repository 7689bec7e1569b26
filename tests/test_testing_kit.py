"""The testing kit in a pytest-django test, on the test's own connection and in its transaction."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import DataError, connection, transaction
from django.db.transaction import TransactionManagementError

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage
from django_outbox.store.messages import Lane
from django_outbox.store.storage import storage_for
from django_outbox.testing import assert_published, drain, messages, published
from tests.testapp.models import Order

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("registry")]

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _the_test_keeps_its_transaction() -> Iterator[None]:
    """Whatever the handlers did: the transaction is as deep as before, and takes statements."""
    depth = len(connection.savepoint_ids)
    yield
    assert len(connection.savepoint_ids) == depth
    assert connection.in_atomic_block
    OutboxMessage.objects.count()


def publish(payload: Any = None, queue: str = "orders", **options: Any) -> int | None:
    return outbox.publish(payload, queue=queue, **options)


def order(name: str) -> Order:
    return Order.objects.create(name=name)


def order_names() -> list[str]:
    return sorted(Order.objects.values_list("name", flat=True))


def divide_by_zero() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid: int = cursor.fetchone()[0]
        return pid


# drain


def test_drain_delivers_what_is_due_and_what_that_makes_due() -> None:
    got: list[str] = []

    @outbox.handler("orders")
    def sell(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        got.append(message.queue)
        return outbox.OutboxResponse(message.payload, queue="invoices")

    @outbox.handler("invoices")
    def invoice(message: outbox.Message[Any]) -> None:
        got.append(message.queue)
        publish(message.payload, queue="labels")

    @outbox.handler("labels")
    def label(message: outbox.Message[Any]) -> None:
        got.append(message.queue)

    publish({"n": 1})

    assert drain() == 3
    assert got == ["orders", "invoices", "labels"]
    assert published() == []
    assert drain() == 0


def test_drain_runs_on_the_connection_and_in_the_transaction_of_the_test() -> None:
    backends: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        backends.append(backend())
        Order.objects.filter(pk=message.payload).update(name="sold")

    sold = order("new")
    publish(sold.pk)

    assert drain() == 1
    assert backends == [backend()]
    assert order_names() == ["sold"]


def test_drain_leaves_what_has_no_handler() -> None:
    outbox.handler("orders")(lambda message: None)
    publish("known")
    publish("unknown", queue="nobodys")

    assert drain() == 1
    assert [message.payload for message in published()] == ["unknown"]


def test_drain_without_any_handler_delivers_nothing() -> None:
    publish()

    assert drain() == 0
    assert len(published()) == 1


def test_drain_serves_the_queues_it_is_given_and_no_other() -> None:
    got: list[str] = []

    @outbox.handler("orders", "refunds", "labels")
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse | None:
        got.append(message.queue)
        if message.queue == "orders":
            return outbox.OutboxResponse(None, queue="labels")
        return None

    for queue in ("labels", "orders", "refunds"):
        publish(queue=queue)

    assert drain("orders", "refunds") == 2
    assert got == ["orders", "refunds"]
    assert [message.queue for message in published()] == ["labels", "labels"]


@pytest.mark.parametrize("queues", [["oders"], ["orders", "oders"], [""]])
def test_a_queue_without_a_handler_is_a_lookup_error_that_names_those_there_are(
    queues: list[str],
) -> None:
    outbox.handler("orders", "refunds")(lambda message: None)
    publish()

    with pytest.raises(LookupError, match=r"orders, refunds") as caught:
        drain(*queues)
    assert repr(queues[-1]) in str(caught.value)
    assert len(published()) == 1


def test_drain_says_so_when_there_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_DELIVERIES", 20)

    @outbox.handler("orders")
    def again(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        return outbox.OutboxResponse(None, queue="orders")

    publish()
    with pytest.raises(RuntimeError, match="no end"):
        drain()


@pytest.mark.django_db(databases=["default", "orders"])
def test_drain_works_on_the_database_it_is_given() -> None:
    got: list[Any] = []
    outbox.handler("orders")(lambda message: got.append(message.payload))
    publish("here")
    publish("there", using="orders")

    assert drain(using="orders") == 1
    assert got == ["there"]
    assert published(using="orders") == []
    assert_published("orders", payload="here")


# advance


def test_advance_reaches_the_deadlines_that_lie_before_it_in_their_order() -> None:
    got: list[str] = []
    outbox.handler("orders")(lambda message: got.append(message.payload))
    publish("in 2 h", activate_in=2 * HOUR)
    publish("in 1 h", activate_in=HOUR)
    publish("in 3 h", timer_id="t", activate_in=3 * HOUR)
    publish("now")

    assert drain(advance=timedelta(minutes=150)) == 3
    assert got == ["now", "in 1 h", "in 2 h"]
    assert drain() == 0
    assert_published("orders", payload="in 3 h", timer_id="t")


def test_advance_touches_no_clock() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        order("sold")
        return outbox.OutboxResponse(None, queue="labels", activate_in=HOUR)

    publish(activate_in=24 * HOUR)
    before = datetime.now(UTC)

    assert drain(advance=25 * HOUR) == 1
    (label,) = published()
    assert label.created_at - before < timedelta(minutes=5)
    assert label.next_attempt_at - before < timedelta(minutes=65)


def test_advance_reaches_retries() -> None:
    attempts: list[int] = []

    @outbox.handler("orders", retry=outbox.ConstantRetry(60))
    def handle(message: outbox.Message[Any]) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise ValueError("no stock")

    publish()

    assert drain() == 1
    assert drain(advance=timedelta(seconds=55)) == 0
    assert drain(advance=timedelta(seconds=65)) == 2
    assert attempts == [1, 2, 3]


def test_advance_reaches_expiries() -> None:
    got: list[str] = []
    outbox.handler("orders")(lambda message: got.append(message.payload))
    publish("short", expires_in=60)
    publish("long", expires_in=7200)

    assert drain(advance=HOUR) == 1
    assert got == ["long"]
    letter = DeadLetter.objects.get()
    assert (bytes(letter.payload), letter.failure_reason) == (b'"short"', "expired")


# Handlers that fail


def test_a_plain_handler_that_fails_keeps_what_it_wrote() -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        order("kept")
        raise ValueError("no stock")

    publish()

    assert drain() == 1
    assert order_names() == ["kept"]
    (message,) = published()
    assert message.attempt == 2


def test_an_atomic_handler_that_fails_loses_what_it_wrote() -> None:
    @outbox.handler("orders", atomic=True, retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        order("lost")
        publish(queue="labels")
        raise ValueError("no stock")

    order("kept")
    publish()

    assert drain() == 1
    assert order_names() == ["kept"]
    (message,) = published()
    assert (message.queue, message.attempt) == ("orders", 2)


def test_an_atomic_handler_writes_publishes_and_settles() -> None:
    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        order("sold")
        publish(queue="labels")

    publish()

    assert drain() == 1
    assert order_names() == ["sold"]
    assert_published("orders", count=0)
    assert_published("labels")


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
def test_a_database_error_is_a_failed_attempt_and_the_test_goes_on(*, atomic: bool) -> None:
    @outbox.handler("orders", atomic=atomic, retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "bad":
            divide_by_zero()
        order(message.payload)

    order("the test's")
    bad = publish("bad")
    publish("good")

    assert drain() == 2
    assert order_names() == ["good", "the test's"]
    (message,) = published()
    assert (message.id, message.attempt) == (bad, 2)
    stored = OutboxMessage.objects.get()
    assert stored.last_error is not None
    assert "division by zero" in stored.last_error


def test_a_swallowed_database_error_harms_neither_the_test_nor_the_next_message() -> None:
    # J07
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "bad":
            with pytest.raises(DataError):
                divide_by_zero()
            return
        order(message.payload)

    publish("bad")
    publish("good")

    assert drain() == 2
    assert order_names() == ["good"]
    assert published() == []


def test_a_database_error_inside_the_handlers_own_block_can_be_handled() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        order("before")
        with pytest.raises(DataError), transaction.atomic():
            divide_by_zero()
        order("after")

    publish()

    assert drain() == 1
    assert order_names() == ["after", "before"]
    assert published() == []


def test_a_transaction_left_open_is_a_failed_attempt_and_is_rolled_back() -> None:
    # J07
    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        transaction.atomic().__enter__()
        order("lost")

    order("kept")
    publish()

    assert drain() == 1
    assert order_names() == ["kept"]
    (message,) = published()
    assert message.attempt == 2


# ack


def test_an_ack_removes_the_message_with_the_handlers_block() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            order("sold")
            message.ack()
        assert not OutboxMessage.objects.exists()

    publish()

    assert drain() == 1
    assert order_names() == ["sold"]
    assert published() == []
    assert not DeadLetter.objects.exists()


def test_what_follows_an_ack_does_not_bring_the_message_back() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            order("sold")
            message.ack()
        raise ValueError("too late")

    publish()

    assert drain() == 1
    assert order_names() == ["sold"]
    assert published() == []


def test_a_database_error_after_an_ack_undoes_both_where_a_worker_would_have_committed() -> None:
    """The one thing that a test's own transaction cannot tell; the docstring of drain says it."""

    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            order("sold")
            message.ack()
        divide_by_zero()

    publish()

    assert drain() == 1
    assert order_names() == []
    assert [message.attempt for message in published()] == [2]


def test_an_ack_that_is_rolled_back_is_none() -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            order("lost")
            message.ack()
            raise ValueError("no stock")

    publish()

    assert drain() == 1
    assert order_names() == []
    (message,) = published()
    assert message.attempt == 2


def test_an_ack_outside_the_handlers_own_block_is_refused() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with pytest.raises(TransactionManagementError, match=r"transaction\.atomic"):
            message.ack()
        refused.append(message.id)

    refused: list[int] = []
    id_ = publish()

    assert drain() == 1
    assert refused == [id_]


# async


def test_an_async_handler_runs_in_the_transaction_of_the_test() -> None:
    @outbox.handler("orders")
    async def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        sold = await Order.objects.aget(pk=message.payload)
        sold.name = "sold"
        await sold.asave()
        await outbox.apublish("inside", queue="labels")
        backends.append(await sync_to_async(backend)())
        return outbox.OutboxResponse("returned", queue="labels")

    backends: list[int] = []
    publish(order("new").pk)

    assert drain() == 1
    assert backends == [backend()]
    assert order_names() == ["sold"]
    assert [message.payload for message in published("labels")] == ["inside", "returned"]


def test_an_atomic_async_handler_that_fails_loses_what_it_wrote() -> None:
    @outbox.handler("orders", atomic=True, retry=outbox.ConstantRetry(3600))
    async def handle(message: outbox.Message[Any]) -> None:
        await Order.objects.acreate(name="lost")
        raise ValueError("no stock")

    publish()

    assert drain() == 1
    assert order_names() == []


# published


def test_published_gives_the_live_messages_in_the_order_of_their_claims() -> None:
    outbox.handler("orders")(lambda message: None)
    publish("later", activate_in=HOUR)
    publish("other", queue="refunds", activate_at=LONG_AGO)
    publish("now")

    assert [message.payload for message in published()] == ["other", "now", "later"]
    assert [message.payload for message in published("orders")] == ["now", "later"]
    assert published("nothing") == []
    drain("orders")
    assert [message.payload for message in published()] == ["other", "later"]


def test_published_gives_messages_with_all_their_handler_would_see() -> None:
    id_ = publish(
        {"total": Decimal("10.10")},
        headers={"tenant": "acme"},
        correlation_id="c-1",
        timer_id="t",
        activate_at=LONG_AGO,
        expires_in=60,
    )
    stored = OutboxMessage.objects.get()

    (message,) = published("orders")
    assert isinstance(message, outbox.Message)
    assert message.id == id_
    assert message.message_id == stored.message_id
    assert message.queue == "orders"
    assert message.payload == {"total": "10.10"}
    assert message.body == b'{"total":"10.10"}'
    assert message.headers == {"tenant": "acme", "content-type": "application/json"}
    assert message.correlation_id == "c-1"
    assert message.timer_id == "t"
    assert (message.attempt, message.deliveries_count) == (1, 0)
    assert message.created_at == stored.created_at
    assert message.next_attempt_at == LONG_AGO
    assert message.expires_at == LONG_AGO + timedelta(seconds=60)
    assert "10.10" not in repr(message)


def test_published_shows_leased_messages_too() -> None:
    publish("held")
    storage_for("default").claim([Lane("orders", 60.0)], limit=1, worker_id="w", ahead=0.0)

    assert [message.deliveries_count for message in published()] == [1]


def test_what_cannot_be_decoded_is_shown_as_bytes() -> None:
    publish({})
    OutboxMessage.objects.update(payload=b"{")

    (message,) = published()
    assert message.payload == b"{"


def test_a_message_that_is_only_looked_at_has_no_lease() -> None:
    publish()
    (message,) = published()

    with pytest.raises(RuntimeError, match="not being delivered"):
        message.heartbeat()


# assert_published


def test_assert_published_passes_for_what_is_there() -> None:
    publish({"n": 1}, headers={"tenant": "acme", "v": "1"}, timer_id="t")

    assert_published("orders")
    assert_published("orders", payload={"n": 1})
    assert_published("orders", headers={"tenant": "acme"})
    assert_published("orders", timer_id="t")
    assert_published("orders", count=1)
    assert_published(
        "orders", payload={"n": 1}, headers={"tenant": "acme", "v": "1"}, timer_id="t", count=1
    )
    assert_published("refunds", count=0)
    assert_published("orders", payload={"n": 2}, count=0)


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("refunds", {}),
        ("orders", {"payload": {"n": 2}}),
        ("orders", {"payload": None}),
        ("orders", {"headers": {"tenant": "other"}}),
        ("orders", {"headers": {"tenant": "acme", "missing": "1"}}),
        ("orders", {"timer_id": "T"}),
        ("orders", {"timer_id": None}),
        ("orders", {"count": 0}),
        ("orders", {"count": 2}),
        ("orders", {"payload": {"n": 1}, "timer_id": "T"}),
    ],
    ids=str,
)
def test_assert_published_fails_for_what_is_not(queue: str, expected: dict[str, Any]) -> None:
    publish({"n": 1}, headers={"tenant": "acme"}, timer_id="t")

    with pytest.raises(AssertionError):
        assert_published(queue, **expected)


def test_assert_published_says_what_was_looked_for_and_what_is_there() -> None:
    publish({"n": 1})
    [message] = published("orders")
    there = f"There are:\n  {{'n': 1}} headers={message.headers!r}"

    with pytest.raises(AssertionError) as caught:
        assert_published("orders", payload={"n": 2}, headers={"tenant": "acme"}, timer_id=None)

    assert str(caught.value) == (
        "0 live message(s) of 'orders' match payload={'n': 2} headers={'tenant': 'acme'} "
        f"timer_id=None, and not 1. {there}"
    )
    with pytest.raises(AssertionError) as caught:
        assert_published("orders", count=2)
    assert str(caught.value) == f"1 live message(s) of 'orders' match, and not 2. {there}"


def test_assert_published_tells_a_timer_from_a_plain_message() -> None:
    publish("plain")

    assert_published("orders", timer_id=None)
    with pytest.raises(AssertionError):
        assert_published("orders", timer_id="t")


def test_assert_published_counts_what_matches() -> None:
    outbox.publish_many(["a", "b", "a"], queue="orders")

    assert_published("orders", count=3)
    assert_published("orders", payload="a", count=2)
    assert_published("orders", payload="b")
    with pytest.raises(AssertionError, match="3"):
        assert_published("orders")


UUID_GIVEN = UUID("0d8f5b7e-8a4c-4f1d-9a53-5c8b7a0f4a11")


@pytest.mark.parametrize(
    "payload",
    [
        {"id": UUID_GIVEN, "at": LONG_AGO, "total": Decimal("10.10")},
        ("a", "tuple"),
        {1: "a"},
        None,
        b"\x00\xff",
        "text",
        [],
    ],
    ids=repr,
)
def test_assert_published_compares_a_payload_as_it_is_stored(payload: Any) -> None:
    publish(payload)

    assert_published("orders", payload=payload)
    assert_published("orders", payload=uuid4(), count=0)


def test_assert_published_shows_what_is_there_when_it_fails() -> None:
    publish({"n": 1}, headers={"tenant": "acme"}, timer_id="t-1")
    publish({"n": 2}, activate_in=HOUR)
    publish({"secret": "elsewhere"}, queue="refunds")

    with pytest.raises(AssertionError) as caught:
        assert_published("orders", payload={"n": 3})
    text = str(caught.value)
    for shown in ("'orders'", "{'n': 1}", "'tenant': 'acme'", "'t-1'", "{'n': 2}"):
        assert shown in text
    assert "elsewhere" not in text


def test_assert_published_says_that_nothing_is_there() -> None:
    with pytest.raises(AssertionError, match="none"):
        assert_published("orders")
