"""The fake outbox. No test here may touch the database, unless it says so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from django_outbox.testing import FakeOutbox, assert_published, drain, published

pytestmark = pytest.mark.usefixtures("registry")

DEADLINE = datetime(2100, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def publish(payload: Any = None, queue: str = "orders", **options: Any) -> int | None:
    return outbox.publish(payload, queue=queue, **options)


def test_the_database_is_out_of_reach_here() -> None:
    with FakeOutbox(), pytest.raises(RuntimeError, match="not allowed"):
        OutboxMessage.objects.count()


def test_the_fake_takes_the_place_of_the_tables() -> None:
    got: list[Any] = []
    outbox.handler("orders")(lambda message: got.append(message.payload))

    with FakeOutbox() as fake:
        id_ = publish({"n": 1}, timer_id="t", headers={"tenant": "acme"})
        assert [message.id for message in fake.messages] == [id_]
        assert fake.drain() == 1
        assert got == [{"n": 1}]
        assert fake.messages == []


def test_the_tools_for_the_tables_work_on_it_too() -> None:
    outbox.handler("orders")(lambda message: None)
    with FakeOutbox() as fake:
        publish({"n": 1}, timer_id="t")

        assert [message.id for message in published()] == [m.id for m in fake.messages]
        assert_published("orders", payload={"n": 1}, timer_id="t")
        with pytest.raises(AssertionError, match="'n': 1"):
            assert_published("orders", payload={"n": 2})
        assert drain() == 1
        assert_published("orders", count=0)


def test_drain_takes_queues_and_refuses_unknown_ones() -> None:
    outbox.handler("orders", "refunds")(lambda message: None)
    with FakeOutbox() as fake:
        publish()
        publish(queue="refunds")

        assert fake.drain("refunds") == 1
        with pytest.raises(LookupError, match="orders, refunds"):
            fake.drain("oders")
        assert [message.queue for message in fake.messages] == ["orders"]


def test_advance_reaches_deadlines() -> None:
    outbox.handler("orders")(lambda message: None)
    with FakeOutbox() as fake:
        publish(timer_id="t", activate_in=HOUR)

        assert fake.drain() == 0
        assert fake.drain(advance=HOUR - timedelta(seconds=5)) == 0
        assert fake.drain(advance=HOUR) == 1


def test_everything_published_is_kept_in_order() -> None:
    outbox.handler("orders")(lambda message: None)
    with FakeOutbox() as fake:
        publish("a", activate_at=DEADLINE)
        outbox.publish_many(["b", "c"], queue="orders")
        fake.drain()

        assert [message.payload for message in fake.published] == ["a", "b", "c"]
        assert fake.published[0].next_attempt_at == DEADLINE


def test_a_skipped_conflict_and_a_refused_argument_are_not_among_the_published() -> None:
    with FakeOutbox() as fake:
        publish("first", timer_id="t")
        publish("skipped", timer_id="t")
        with pytest.raises(outbox.InvalidName):
            publish(queue="")

        assert [message.payload for message in fake.published] == ["first"]


def test_what_was_seen_of_a_message_does_not_change_with_it() -> None:
    with FakeOutbox() as fake:
        publish("old", timer_id="t", activate_at=DEADLINE)
        (before,) = fake.messages
        publish("new", timer_id="t", timer_conflict="extend", activate_at=DEADLINE + HOUR)

        assert (before.payload, before.next_attempt_at) == ("old", DEADLINE)


def test_each_fake_begins_empty_and_the_innermost_one_is_used() -> None:
    with FakeOutbox() as outer:
        publish("outer")
        with FakeOutbox() as inner:
            assert inner.messages == []
            publish("inner")
            assert [message.payload for message in published()] == ["inner"]
        publish("outer again")

    assert [message.payload for message in outer.messages] == ["outer", "outer again"]
    assert [message.payload for message in inner.messages] == ["inner"]


@pytest.mark.django_db
def test_after_the_block_the_tables_are_back() -> None:
    with FakeOutbox() as fake:
        publish("fake")
    with pytest.raises(LookupError), fake:
        fake.drain("a queue without a handler")
    publish("stored")

    assert OutboxMessage.objects.count() == 1
    assert [message.payload for message in published()] == ["stored"]


def test_databases_are_kept_apart() -> None:
    with FakeOutbox() as fake:
        publish("here")
        publish("there", using="orders")

        assert [message.payload for message in fake.messages] == ["here"]
        assert [message.payload for message in published(using="orders")] == ["there"]


def test_threads_get_different_ids() -> None:
    with FakeOutbox() as fake, ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(publish, range(400)))

        assert len(set(ids)) == 400
        assert len(fake.messages) == 400


def test_threads_that_publish_one_timer_insert_it_once() -> None:
    with FakeOutbox() as fake, ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda n: publish(n, timer_id="t"), range(400)))

        assert ids.count(None) == 399
        assert len(fake.messages) == 1


# sync


def test_sync_delivers_inside_publish() -> None:
    got: list[Any] = []
    outbox.handler("orders")(lambda message: got.append((message.id, message.payload)))

    with FakeOutbox(sync=True) as fake:
        id_ = publish("a")
        assert got == [(id_, "a")]
        outbox.publish_many(["b", "c"], queue="orders")
        assert [payload for _, payload in got] == ["a", "b", "c"]
        assert fake.messages == []
        assert fake.drain() == 0


def test_without_sync_nothing_is_delivered_until_drain() -> None:
    got: list[Any] = []
    outbox.handler("orders")(lambda message: got.append(message.payload))

    with FakeOutbox() as fake:
        publish("a")
        assert got == []
        fake.drain()
        assert got == ["a"]


@pytest.mark.parametrize(
    "options",
    [{}, {"timer_id": "t"}, {"timer_id": "t", "timer_conflict": "extend"}],
    ids=["delay", "timer", "extend"],
)
def test_sync_delivers_future_timers_too_and_keeps_their_deadlines(options: Any) -> None:
    got: list[Any] = []
    outbox.handler("orders")(lambda message: got.append(message.payload))

    with FakeOutbox(sync=True) as fake:
        assert publish("a", activate_at=DEADLINE, expires_in=60, **options) is not None

        assert got == ["a"]
        assert fake.messages == []
        (message,) = fake.published
        assert message.next_attempt_at == DEADLINE
        assert message.expires_at == DEADLINE + timedelta(seconds=60)
        assert message.timer_id == options.get("timer_id")


def test_sync_delivers_each_ping_of_a_timer() -> None:
    got: list[Any] = []
    outbox.handler("orders")(lambda message: got.append(message.payload))

    with FakeOutbox(sync=True) as fake:
        for n in range(3):
            publish(n, timer_id="t", timer_conflict="extend", activate_at=DEADLINE + n * HOUR)

        assert got == [0, 1, 2]
        assert [message.next_attempt_at for message in fake.published] == [
            DEADLINE,
            DEADLINE + HOUR,
            DEADLINE + 2 * HOUR,
        ]


def test_sync_leaves_what_has_no_handler() -> None:
    with FakeOutbox(sync=True) as fake:
        publish("a")

        assert [message.payload for message in fake.messages] == ["a"]


def test_sync_delivers_what_a_handler_publishes_and_returns() -> None:
    got: list[tuple[str, str]] = []

    @outbox.handler("orders", atomic=True)
    def sell(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        publish("inside", queue="labels")
        got.append(("orders", message.correlation_id))
        return outbox.OutboxResponse("returned", queue="labels")

    @outbox.handler("labels")
    def label(message: outbox.Message[Any]) -> None:
        got.append((message.payload, message.correlation_id))

    with FakeOutbox(sync=True) as fake:
        publish(correlation_id="c-1")

        assert got == [("inside", "c-1"), ("orders", "c-1"), ("returned", "c-1")]
        assert fake.messages == []


def test_sync_raises_nothing_when_a_handler_fails() -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(60))
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "never":
            raise outbox.Reject("not ours")
        if message.attempt == 1:
            raise ValueError("no stock")

    with FakeOutbox(sync=True) as fake:
        id_ = publish("again")
        publish("never")

        assert [(message.id, message.attempt) for message in fake.messages] == [(id_, 2)]
        assert [letter.failure_reason for letter in fake.dead_letters] == ["rejected"]
        assert fake.drain(advance=timedelta(seconds=61)) == 1
        assert fake.messages == []


def test_a_failure_nested_in_an_atomic_handler_is_its_own() -> None:
    @outbox.handler("orders", atomic=True)
    def sell(message: outbox.Message[Any]) -> None:
        publish("never", queue="labels")
        publish("kept", queue="nobodys")

    @outbox.handler("labels", atomic=True)
    def label(message: outbox.Message[Any]) -> None:
        publish("lost", queue="nobodys")
        raise outbox.Reject("not ours")

    with FakeOutbox(sync=True) as fake:
        publish()

        assert [message.payload for message in fake.messages] == ["kept"]
        assert [letter.queue for letter in fake.dead_letters] == ["labels"]


def test_an_atomic_handler_that_fails_takes_back_what_was_nested_in_it() -> None:
    @outbox.handler("orders", atomic=True, retry=outbox.ConstantRetry(60))
    def sell(message: outbox.Message[Any]) -> None:
        publish("never", queue="labels")
        publish("lost", queue="nobodys")
        raise ValueError("no stock")

    @outbox.handler("labels")
    def label(message: outbox.Message[Any]) -> None:
        raise outbox.Reject("not ours")

    with FakeOutbox(sync=True) as fake:
        id_ = publish()

        assert [(message.id, message.attempt) for message in fake.messages] == [(id_, 2)]
        assert fake.dead_letters == []


def test_a_handler_cannot_change_the_timer_that_sync_runs_it_for() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        assert publish("inner", timer_id="t", timer_conflict="replace") is None
        assert outbox.cancel_timer(queue="orders", timer_id="t") is False

    with FakeOutbox(sync=True) as fake:
        assert publish("outer", timer_id="t") is not None
        assert fake.messages == []
        assert [message.payload for message in fake.published] == ["outer"]
        assert fake.dead_letters == []


def test_sync_runs_async_handlers() -> None:
    got: list[Any] = []

    @outbox.handler("orders")
    async def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)

    with FakeOutbox(sync=True):
        publish("a")

    assert got == ["a"]


# ack and heartbeat


def test_an_ack_stands_whatever_follows_it() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        assert message.heartbeat() is True
        message.ack()
        assert message.heartbeat() is False
        raise ValueError("too late")

    with FakeOutbox() as fake:
        publish()
        assert fake.drain() == 1

        assert fake.messages == []
        assert fake.dead_letters == []


def test_an_ack_in_an_atomic_handler_that_fails_is_taken_back() -> None:
    @outbox.handler("orders", atomic=True, retry=outbox.ConstantRetry(60))
    def handle(message: outbox.Message[Any]) -> None:
        message.ack()
        raise ValueError("no stock")

    with FakeOutbox() as fake:
        publish()
        assert fake.drain() == 1

        assert [message.attempt for message in fake.messages] == [2]


# What it cannot know


def test_it_does_not_see_whether_a_transaction_is_open() -> None:
    with FakeOutbox() as fake:
        publish("in autocommit")

        assert len(fake.messages) == 1


@pytest.mark.django_db
def test_a_rollback_of_the_database_takes_nothing_back() -> None:
    with FakeOutbox() as fake:
        with transaction.atomic():
            publish("kept")
            transaction.set_rollback(True)

        assert [message.payload for message in fake.messages] == ["kept"]
