"""What holds of the tables holds of the fake: claims, leases, retries, burial, responses.

Timers have `test_timers` and `test_cancel_timer` for the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.dispatch import Signal

from django_outbox import outbox, signals
from django_outbox.messages import Claimed
from tests.support import received

from .box import Box

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def fail(message: outbox.Message[Any]) -> None:
    raise ValueError("no stock")


# Publishing


def test_a_message_is_what_was_published(box: Box) -> None:
    id_ = box.publish(
        {"n": 1, "at": LONG_AGO}, headers={"tenant": "acme"}, correlation_id="c-1", expires_in=60
    )

    (message,) = box.messages()
    assert message.id == id_
    assert isinstance(message.message_id, UUID)
    assert message.queue == "orders"
    assert message.payload == {"n": 1, "at": "2000-01-01T00:00:00Z"}
    assert message.body == b'{"n":1,"at":"2000-01-01T00:00:00Z"}'
    assert message.headers == {"tenant": "acme", "content-type": "application/json"}
    assert message.correlation_id == "c-1"
    assert message.timer_id is None
    assert (message.attempt, message.deliveries_count) == (1, 0)
    assert message.expires_at == message.next_attempt_at + timedelta(seconds=60)


def test_bytes_stay_as_they_are(box: Box) -> None:
    box.publish(b"\x00\xff")

    (message,) = box.messages()
    assert message.payload == message.body == b"\x00\xff"
    assert message.headers == {"content-type": "application/octet-stream"}


def test_many_messages_get_their_ids_in_the_order_given(box: Box) -> None:
    ids = outbox.publish_many(["a", "b", "c"], queue="orders", headers={"tenant": "acme"})

    assert ids == sorted(ids)
    assert [(m.id, m.payload) for m in box.messages()] == list(zip(ids, "abc", strict=True))
    assert {m.headers["tenant"] for m in box.messages()} == {"acme"}
    assert len({m.correlation_id for m in box.messages()}) == 3
    assert outbox.publish_many([], queue="orders") == []


def test_no_id_is_given_twice(box: Box) -> None:
    first = box.publish()
    (claimed,) = box.claim()
    box.complete(claimed)

    assert box.publish() not in (None, first)


def test_the_async_twins_publish_alike(box: Box) -> None:
    async def work() -> list[int | None]:
        id_ = await outbox.apublish("a", queue="orders")
        return [id_, *await outbox.apublish_many(["b", "c"], queue="orders")]

    ids = async_to_sync(work)()

    assert [(m.id, m.payload) for m in box.messages()] == list(zip(ids, "abc", strict=True))


@pytest.mark.parametrize(
    ("payload", "options", "error"),
    [
        ({}, {"queue": ""}, outbox.InvalidName),
        ({}, {"queue": "q" * 256}, outbox.InvalidName),
        ({}, {"queue": "a\x00b"}, outbox.InvalidName),
        ({}, {"queue": "__x"}, outbox.ReservedName),
        ({}, {"activate_in": 1, "activate_at": LONG_AGO}, ValueError),
        ({}, {"activate_at": datetime(2000, 1, 1)}, ValueError),  # noqa: DTZ001
        ({}, {"expires_in": 0}, ValueError),
        ({}, {"max_attempts": 0}, ValueError),
        ({}, {"headers": {"n": 1}}, TypeError),
        ({}, {"headers": {"a": "b\x00"}}, ValueError),
        ({}, {"headers": {"content-type": "text/plain"}}, ValueError),
        ({"a": [float("nan")]}, {}, outbox.PayloadError),
        ("x" * 1_048_577, {}, outbox.PayloadTooLarge),
    ],
)
def test_a_bad_argument_is_refused_before_anything_is_stored(
    box: Box, payload: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        box.publish(payload, **options)
    with pytest.raises(error):
        outbox.publish_many([payload], **{"queue": "orders", **options})

    assert box.messages() == []
    assert box.publish() is not None


# Claiming


def test_claims_go_by_deadline_and_then_by_id(box: Box) -> None:
    for payload, seconds in [("c", 1), ("a", 3), ("b", 2), ("b again", 2)]:
        box.publish(payload, activate_at=LONG_AGO - timedelta(seconds=seconds))
    box.publish("later", activate_in=HOUR)

    assert [m.payload for m in box.messages()] == ["a", "b", "b again", "c", "later"]
    assert [c.body for c in box.claim(limit=2)] == [b'"a"', b'"b"']
    assert [c.body for c in box.claim(limit=10)] == [b'"b again"', b'"c"']
    assert box.claim() == []


def test_a_claim_takes_its_queues_in_the_order_given(box: Box) -> None:
    for queue in ("bulk", "urgent", "other"):
        for n in range(2):
            box.publish(n, queue=queue)

    assert [c.queue for c in box.claim("urgent", "bulk", limit=3)] == ["urgent", "urgent", "bulk"]


def test_messages_are_delivered_in_the_order_of_their_claims(box: Box) -> None:
    got: list[Any] = []

    @outbox.handler("orders", "refunds")
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)

    box.publish("3", queue="refunds", activate_at=LONG_AGO + HOUR)
    box.publish("1", queue="refunds", activate_at=LONG_AGO)
    box.publish("2", queue="orders", activate_at=LONG_AGO)

    assert box.drain() == 3
    assert got == ["1", "2", "3"]


def test_a_message_is_never_delivered_early(box: Box) -> None:
    outbox.handler("orders")(lambda message: None)
    box.publish(activate_in=HOUR)

    assert box.drain() == 0
    assert box.claim() == []


# Leases


def test_each_claim_takes_a_fresh_token_and_counts_a_delivery(box: Box) -> None:
    id_ = box.publish()
    (first,) = box.claim(lease_ttl=-1)
    (second,) = box.claim(lease_ttl=-1)

    assert first.id == second.id == id_
    assert first.lease.token != second.lease.token
    assert (first.deliveries_count, second.deliveries_count) == (1, 2)
    assert (first.attempts_count, second.attempts_count) == (0, 0)


def test_a_leased_message_is_not_claimed_and_not_delivered(box: Box) -> None:
    outbox.handler("orders")(lambda message: None)
    box.publish()
    box.claim()

    assert box.claim() == []
    assert box.drain(advance=timedelta(minutes=2)) == 0


@pytest.mark.parametrize("verb", ["complete", "fail", "bury", "release", "renew"])
@pytest.mark.parametrize("lost_to", ["another claim", "a completion"])
def test_a_stale_token_settles_nothing(box: Box, verb: str, lost_to: str) -> None:
    def settle(claimed: Claimed) -> bool:
        match verb:
            case "bury":
                return box.bury(claimed, "rejected")
            case "renew":
                return box.renew(claimed, ttl=60)
        settled: bool = getattr(box, verb)(claimed)
        return settled

    id_ = box.publish()
    (stale,) = box.claim(lease_ttl=-1)
    (current,) = box.claim()
    if lost_to == "a completion":
        box.complete(current)
        assert settle(stale) is False
        assert box.messages() == []
    else:
        before = box.columns(id_)
        assert settle(stale) is False
        assert box.columns(id_) == before
        assert box.complete(current) is True
    assert box.letters() == []


def test_a_lease_that_has_run_out_still_settles_until_a_claim_takes_it(box: Box) -> None:
    box.publish()
    (claimed,) = box.claim(lease_ttl=-1)

    assert box.complete(claimed) is True
    assert box.messages() == []


def test_a_renewed_lease_lasts(box: Box) -> None:
    box.publish()
    (claimed,) = box.claim(lease_ttl=-1)

    assert box.renew(claimed, ttl=60) is True
    assert box.claim() == []
    assert box.renew(claimed, ttl=-1) is True
    (again,) = box.claim()
    assert again.id == claimed.id


def test_a_heartbeat_renews_and_says_when_the_lease_is_lost(box: Box) -> None:
    answers: list[Any] = []

    @outbox.handler("orders", lease_ttl=0.1)
    def handle(message: outbox.Message[Any]) -> None:
        answers.append(message.heartbeat())
        while not (taken := box.claim()):  # until the lease has run out
            pass
        answers.append(message.heartbeat())
        leases.extend(taken)

    leases: list[Claimed] = []
    id_ = box.publish()
    with received(signals.lease_lost) as lost:
        assert box.drain() == 1

    assert answers == [True, False]
    assert [call["message"].id for call in lost] == [id_]
    assert box.message(id_).attempt == 1
    assert box.complete(leases[0]) is True


@pytest.mark.parametrize("refund", [True, False])
def test_a_released_message_is_claimable_at_once(box: Box, *, refund: bool) -> None:
    id_ = box.publish()
    (claimed,) = box.claim()

    assert box.release(claimed, refund=refund) is True
    assert box.message(id_).deliveries_count == (0 if refund else 1)
    (again,) = box.claim()
    assert again.id == id_
    assert again.attempts_count == 0


def test_a_message_released_with_a_delay_waits_for_it(box: Box) -> None:
    box.publish()
    (claimed,) = box.claim()
    box.release(claimed, refund=False, delay=3600)

    assert box.claim() == []
    assert len(box.claim(ahead=3601)) == 1


# Retries


def test_a_failed_message_is_due_again_after_its_delay(box: Box) -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        if message.attempt == 1:
            raise ValueError("no stock")
        got.append((message.attempt, message.deliveries_count))

    got: list[tuple[int, int]] = []
    id_ = box.publish()

    assert box.drain() == 1
    message = box.message(id_)
    assert (message.attempt, message.deliveries_count) == (2, 1)
    assert message.next_attempt_at - message.created_at > timedelta(minutes=59)
    assert box.drain(advance=timedelta(minutes=58)) == 0
    assert box.drain(advance=timedelta(minutes=61)) == 1
    assert got == [(2, 2)]
    assert box.messages() == []


def test_a_message_tells_why_it_failed_last(box: Box) -> None:
    outbox.handler("orders", retry=outbox.ConstantRetry(3600))(fail)
    id_ = box.publish(max_attempts=7)
    assert box.message(id_).last_error is None
    assert box.message(id_).max_attempts == 7

    box.drain()
    error = box.message(id_).last_error
    assert error is not None
    assert error.startswith("ValueError: no stock")


def test_a_handler_chooses_its_delay_with_retry(box: Box) -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(1))
    def handle(message: outbox.Message[Any]) -> None:
        if message.attempt == 1:
            raise outbox.Retry(delay=HOUR)

    box.publish()

    assert box.drain() == 1
    assert box.drain(advance=timedelta(minutes=59)) == 0
    assert box.drain(advance=timedelta(minutes=61)) == 1


def test_max_attempts_of_the_message_overrides_the_strategys(box: Box) -> None:
    outbox.handler("orders", retry=outbox.ConstantRetry(0, max_attempts=5))(fail)
    box.publish(max_attempts=2)

    assert box.drain() == 2
    (letter,) = box.letters()
    assert letter.attempts_count == 2


def test_sys_exit_in_a_handler_is_a_failed_attempt(box: Box) -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        raise SystemExit(3)

    id_ = box.publish()

    assert box.drain() == 1
    assert box.message(id_).attempt == 2


# Burial


def test_a_letter_tells_the_messages_story(box: Box) -> None:
    outbox.handler("orders", retry=outbox.ConstantRetry(0, max_attempts=2))(fail)
    id_ = box.publish({"n": 1}, headers={"tenant": "acme"}, correlation_id="c-1", timer_id="t-1")
    live = box.message(id_)

    assert box.drain() == 2
    assert box.messages() == []
    (letter,) = box.letters()
    assert letter.failure_reason == "retry_terminal"
    assert letter.original_id == id_
    assert letter.message_id == live.message_id
    assert letter.queue == "orders"
    assert bytes(letter.payload) == b'{"n":1}'
    assert letter.headers == live.headers
    assert (letter.correlation_id, letter.timer_id) == ("c-1", "t-1")
    assert letter.created_at == live.created_at
    assert letter.first_attempt_at is not None
    assert letter.last_attempt_at is not None
    assert live.created_at <= letter.first_attempt_at < letter.last_attempt_at <= letter.failed_at
    assert (letter.attempts_count, letter.deliveries_count) == (2, 2)
    assert letter.exception_class == "ValueError"
    assert letter.last_exception is not None
    assert letter.last_exception.startswith("ValueError: no stock")
    assert len(letter.fingerprint) == 32


def test_what_is_rejected_is_buried_at_once(box: Box) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        raise outbox.Reject("not ours")

    box.publish()

    assert box.drain() == 1
    (letter,) = box.letters()
    assert (letter.failure_reason, letter.attempts_count) == ("rejected", 1)
    assert letter.last_exception is not None
    assert "not ours" in letter.last_exception


def test_what_has_expired_is_buried_and_not_handled(box: Box) -> None:
    got: list[Any] = []
    outbox.handler("orders")(lambda message: got.append(message.payload))
    box.publish("stale", activate_at=LONG_AGO, expires_in=1)
    box.publish("fresh", expires_in=3600)

    assert box.drain() == 1
    assert got == ["fresh"]
    (letter,) = box.letters()
    assert (letter.failure_reason, letter.attempts_count) == ("expired", 0)
    assert letter.first_attempt_at is None
    assert letter.exception_class is None
    assert letter.deliveries_count == 1


def test_what_expires_between_retries_keeps_its_last_error(box: Box) -> None:
    outbox.handler("orders", retry=outbox.ConstantRetry(3600))(fail)
    box.publish(expires_in=60)

    assert box.drain() == 1
    assert box.drain(advance=2 * HOUR) == 0
    (letter,) = box.letters()
    assert (letter.failure_reason, letter.attempts_count) == ("expired", 1)
    assert letter.last_exception is not None
    assert letter.last_exception.startswith("ValueError: no stock")


def test_what_was_delivered_too_often_is_buried_and_not_handled(box: Box) -> None:
    got: list[int] = []
    outbox.handler("orders", max_deliveries=2)(lambda message: got.append(message.id))
    box.publish()
    for _ in range(2):
        box.claim(lease_ttl=-1)  # a worker that ended in the middle of it

    assert box.drain() == 0
    assert got == []
    (letter,) = box.letters()
    assert letter.failure_reason == "max_deliveries"
    assert (letter.attempts_count, letter.deliveries_count) == (0, 3)


@dataclass
class OrderPlaced:
    order_id: int


def test_a_payload_that_does_not_fit_is_buried_as_invalid(box: Box) -> None:
    got: list[OrderPlaced] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[OrderPlaced]) -> None:
        got.append(message.payload)

    box.publish({"order_id": "seven"})
    box.publish({"order_id": "7"})
    box.drain()

    assert got == [OrderPlaced(7)]
    (letter,) = box.letters()
    assert letter.failure_reason == "invalid_payload"
    assert bytes(letter.payload) == b'{"order_id":"seven"}'


# What handlers publish


def test_a_response_is_published_and_inherits_the_correlation_id(box: Box) -> None:
    got: list[outbox.Message[Any]] = []
    outbox.handler("invoices")(got.append)

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> list[outbox.OutboxResponse]:
        return [
            outbox.OutboxResponse(1, queue="invoices"),
            outbox.OutboxResponse(2, queue="labels", activate_in=HOUR, max_attempts=3),
        ]

    box.publish(correlation_id="checkout-7", headers={"traceparent": "00-a-b-01"})

    assert box.drain() == 2
    (invoice,) = got
    assert (invoice.payload, invoice.correlation_id) == (1, "checkout-7")
    assert invoice.headers["traceparent"] == "00-a-b-01"
    (label,) = box.messages()
    assert (label.queue, label.payload, label.correlation_id) == ("labels", 2, "checkout-7")


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
def test_a_response_that_cannot_be_published_is_a_failed_attempt(box: Box, *, atomic: bool) -> None:
    @outbox.handler("orders", atomic=atomic, retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> list[outbox.OutboxResponse]:
        return [
            outbox.OutboxResponse(1, queue="labels"),
            outbox.OutboxResponse(2, queue="__private"),
        ]

    id_ = box.publish()

    assert box.drain() == 1
    (message,) = box.messages()  # the good response has not stayed either
    assert (message.id, message.attempt) == (id_, 2)


def test_an_atomic_handler_that_fails_publishes_and_cancels_nothing(box: Box) -> None:
    @outbox.handler("orders", atomic=True, retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        outbox.publish("never", queue="labels")
        assert box.cancel()
        assert box.timer("never", "replace", timer_id="other", activate_in=1) == moved
        raise ValueError("no stock")

    id_ = box.publish(activate_at=LONG_AGO)
    cancelled = box.timer("kept", activate_in=HOUR)
    moved = box.timer("old", timer_id="other", activate_in=2 * HOUR)
    kept = [box.columns(cancelled), box.columns(moved)]

    assert box.drain("orders") == 1
    assert [box.columns(cancelled), box.columns(moved)] == kept
    assert {message.id for message in box.messages()} == {id_, cancelled, moved}
    assert box.message(id_).attempt == 2


def test_an_atomic_handler_settles_with_what_it_publishes(box: Box) -> None:
    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        outbox.publish("done", queue="labels")

    box.publish()

    assert box.drain() == 1
    assert [(m.queue, m.payload) for m in box.messages()] == [("labels", "done")]


def test_async_handlers_run(box: Box) -> None:
    @outbox.handler("orders")
    async def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        await outbox.apublish("inside", queue="labels")
        return outbox.OutboxResponse("returned", queue="labels")

    box.publish()

    assert box.drain() == 1
    assert [message.payload for message in box.messages()] == ["inside", "returned"]


# Signals


@pytest.mark.parametrize(
    ("payload", "signal"),
    [
        ("done", signals.message_completed),
        ("again", signals.message_retried),
        ("never", signals.message_buried),
    ],
)
def test_each_outcome_is_signalled(box: Box, payload: str, signal: Signal) -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        match message.payload:
            case "again":
                raise ValueError("no stock")
            case "never":
                raise outbox.Reject("not ours")

    id_ = box.publish(payload)
    with received(signal) as calls:
        box.drain()

    (call,) = calls
    assert call["message"].id == id_
    assert call["message"].payload == payload
    assert call["sender"] is handle
