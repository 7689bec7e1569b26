"""A timer is unique per queue and id while it lives; what a second publish does to it.

On the tables and on the fake. What only several sessions can show is in
`test_timers_on_postgresql`, and when PostgreSQL notifies in `test_notify`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_outbox import outbox

from .box import Box

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
EARLIER = datetime(2100, 1, 1, tzinfo=UTC)
STORED = datetime(2100, 1, 2, tzinfo=UTC)
LATER = datetime(2100, 1, 3, tzinfo=UTC)

CONFLICTS = ["ignore", "extend", "replace"]
MOVES = ["extend", "replace"]
AT_ONCE = 200 * 365 * 86400
"""Seconds ahead from which everything here is due."""


def failed_once(box: Box) -> int:
    """Return the id of a timer that waits for its second attempt, an hour from now."""
    id_ = box.timer("old")
    (claimed,) = box.claim()
    assert box.fail(claimed, delay=3600)
    assert claimed.id == id_
    return claimed.id


# Missing


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_a_missing_timer_is_inserted(box: Box, conflict: str) -> None:
    id_ = box.timer("new", conflict, activate_at=STORED, headers={"tenant": "acme"})

    (message,) = box.messages()
    assert message.id == id_
    assert message.timer_id == "t"
    assert message.next_attempt_at == STORED
    assert message.headers == {"tenant": "acme", "content-type": "application/json"}
    assert message.payload == "new"


def test_a_timer_is_free_again_once_it_is_delivered_buried_or_cancelled(box: Box) -> None:
    # D07
    outcomes: list[str] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        outcomes.append(message.payload)
        if message.payload == "bury":
            raise outbox.Reject("no")

    delivered = box.timer("deliver")
    box.drain()
    buried = box.timer("bury")
    box.drain()
    cancelled = box.timer("cancel")
    assert box.cancel() is True
    last = box.timer("deliver again")
    box.drain()

    ids = [delivered, buried, cancelled, last]
    assert None not in ids
    assert len(set(ids)) == 4
    assert outcomes == ["deliver", "bury", "deliver again"]


# ignore


@pytest.mark.parametrize("options", [{}, {"timer_conflict": "ignore"}], ids=["default", "explicit"])
@pytest.mark.parametrize("deadline", [EARLIER, STORED, LATER])
def test_an_explicit_ignore_behaves_as_before(
    box: Box, options: dict[str, str], deadline: datetime
) -> None:
    id_ = box.timer("old", activate_at=STORED)
    before = box.columns(id_)

    assert box.publish("new", timer_id="t", activate_at=deadline, **options) is None
    assert box.columns(id_) == before
    assert len(box.messages()) == 1


def test_of_several_publishes_the_first_wins_and_the_others_are_told(box: Box) -> None:
    # D03
    first = box.timer({"n": 1}, activate_at=STORED)
    answers = [box.timer({"n": n}, activate_at=LATER) for n in range(2, 7)]

    assert answers == [None] * 5
    (message,) = box.messages()
    assert message.id == first
    assert message.payload == {"n": 1}


def test_ignore_leaves_a_timer_between_retries_as_it_was(box: Box) -> None:
    id_ = failed_once(box)
    before = box.columns(id_)

    assert box.timer("new", "ignore", activate_at=LATER) is None
    assert box.columns(id_) == before


# extend


def test_a_pending_timer_is_extended_in_place(box: Box) -> None:
    id_ = box.timer("old", activate_at=STORED, headers={"v": "1"}, max_attempts=2, expires_in=60)

    answer = box.timer(
        "new", "extend", activate_at=LATER, headers={"v": "2"}, max_attempts=7, expires_in=90
    )
    assert answer == id_
    (message,) = box.messages()
    assert message.id == id_
    assert message.next_attempt_at == LATER
    assert message.payload == "new"
    assert message.headers == {"v": "2", "content-type": "application/json"}
    assert message.expires_at == LATER + timedelta(seconds=90)
    (claimed,) = box.claim(ahead=AT_ONCE)
    assert claimed.max_attempts == 7


def test_extending_takes_options_that_are_not_given_away(box: Box) -> None:
    id_ = box.timer("old", activate_at=STORED, max_attempts=2, expires_in=60)

    assert box.timer("new", "extend", activate_at=LATER) == id_
    assert box.message(id_).expires_at is None
    (claimed,) = box.claim(ahead=AT_ONCE)
    assert claimed.max_attempts is None
    assert claimed.expired is False


@pytest.mark.parametrize("deadline", [LONG_AGO, EARLIER, STORED])
def test_the_deadline_never_moves_earlier(box: Box, deadline: datetime) -> None:
    id_ = box.timer("old", activate_at=STORED, headers={"v": "1"}, max_attempts=2, expires_in=60)
    before = box.columns(id_)

    answer = box.timer(
        "new", "extend", activate_at=deadline, headers={"v": "2"}, max_attempts=7, expires_in=90
    )
    assert answer == id_
    assert box.columns(id_) == before
    assert box.message(id_).next_attempt_at == STORED


def test_a_timer_that_is_due_already_can_be_extended_too(box: Box) -> None:
    id_ = box.timer("old", activate_at=LONG_AGO)

    assert box.timer("new", "extend", activate_at=STORED) == id_
    assert box.claim() == []
    assert box.message(id_).next_attempt_at == STORED


def test_extending_resets_the_retry_history(box: Box) -> None:
    id_ = failed_once(box)

    assert box.timer("new", "extend", activate_at=LATER) == id_
    assert box.message(id_).next_attempt_at == LATER
    assert box.message(id_).attempt == 1
    assert box.message(id_).last_error is None
    (claimed,) = box.claim(ahead=AT_ONCE)
    assert claimed.attempts_count == 0
    assert claimed.failing_for is None
    box.bury(claimed, "expired", attempted=False)
    (letter,) = box.letters()
    assert letter.first_attempt_at is None
    assert letter.last_attempt_at is None
    assert letter.last_exception is None


def test_extending_leaves_the_retry_history_of_a_timer_it_does_not_move(box: Box) -> None:
    id_ = failed_once(box)
    before = box.columns(id_)

    assert box.timer("new", "extend", activate_in=60) == id_
    assert box.columns(id_) == before
    (claimed,) = box.claim(ahead=3601)
    assert claimed.attempts_count == 1
    assert claimed.failing_for is not None
    box.bury(claimed, "expired", attempted=False)
    (letter,) = box.letters()
    assert letter.last_exception == "it broke"


def test_a_timer_that_is_pinged_on_does_not_expire(box: Box) -> None:
    id_ = box.timer("ping", activate_in=1, expires_in=10)
    for hours in range(1, 6):
        box.timer("ping", "extend", activate_in=timedelta(hours=hours), expires_in=10)

    message = box.message(id_)
    assert message.expires_at == message.next_attempt_at + timedelta(seconds=10)
    (claimed,) = box.claim(ahead=5 * 3600)
    assert claimed.expired is False


# replace


@pytest.mark.parametrize(
    "deadline", [LONG_AGO, EARLIER, STORED, LATER], ids=["past", "earlier", "same", "later"]
)
def test_replace_takes_the_requested_deadline_and_content(box: Box, deadline: datetime) -> None:
    id_ = box.timer("old", activate_at=STORED, headers={"v": "1"}, max_attempts=2, expires_in=60)

    assert box.timer("new", "replace", activate_at=deadline, headers={"v": "2"}) == id_
    (message,) = box.messages()
    assert message.id == id_
    assert message.next_attempt_at == deadline
    assert message.payload == "new"
    assert message.headers == {"v": "2", "content-type": "application/json"}
    assert message.expires_at is None
    (claimed,) = box.claim(ahead=AT_ONCE)
    assert claimed.max_attempts is None


def test_replacing_resets_the_retry_history(box: Box) -> None:
    id_ = failed_once(box)

    assert box.timer("new", "replace", activate_in=-1) == id_
    (claimed,) = box.claim()
    assert claimed.attempts_count == 0
    assert claimed.failing_for is None
    box.bury(claimed, "expired", attempted=False)
    (letter,) = box.letters()
    assert letter.last_attempt_at is None
    assert letter.last_exception is None


# extend and replace


@pytest.mark.parametrize("conflict", MOVES)
def test_a_moved_timer_keeps_its_identity_and_its_deliveries(box: Box, conflict: str) -> None:
    id_ = failed_once(box)
    before = box.columns(id_)

    assert box.timer("new", conflict, activate_at=LATER) == id_
    after = box.columns(id_)
    for name in ("id", "message_id", "created_at", "deliveries_count"):
        assert after[name] == before[name], name
    assert after["deliveries_count"] == 1


@pytest.mark.parametrize("conflict", CONFLICTS)
@pytest.mark.parametrize("lease_ttl", [60, -1], ids=["leased", "lease run out"])
def test_a_leased_timer_is_left_to_its_worker_and_the_call_returns_none(
    box: Box, conflict: str, lease_ttl: int
) -> None:
    id_ = box.timer("old")
    (claimed,) = box.claim(lease_ttl=lease_ttl)
    before = box.columns(id_)

    assert box.timer("new", conflict, activate_at=LATER) is None
    assert box.timer("new", conflict, activate_at=LONG_AGO) is None
    assert box.columns(id_) == before
    assert box.complete(claimed)
    assert box.messages() == []


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_a_handler_cannot_change_the_timer_it_runs_for(box: Box, conflict: str) -> None:
    # D05
    seen: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        seen.append(box.timer("new", conflict, activate_at=LATER))
        seen.append(message.payload)

    box.timer("old")

    assert box.drain() == 1
    assert seen == [None, "old"]
    assert box.messages() == []


def test_a_ping_that_misses_a_running_expiry_is_followed_by_one_that_arms_a_new_timer(
    box: Box,
) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        assert box.timer("missed", "extend", activate_at=LATER) is None

    expired = box.timer("last")
    assert box.drain() == 1

    armed = box.timer("next", "extend", activate_at=LATER)
    assert armed is not None
    assert armed != expired
    (message,) = box.messages()
    assert (message.id, message.payload, message.attempt) == (armed, "next", 1)


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_the_same_timer_id_on_another_queue_is_independent(box: Box, conflict: str) -> None:
    first = box.timer("a", queue="orders", activate_at=STORED)
    second = box.timer("b", conflict, queue="refunds", activate_at=LATER)

    assert first != second
    assert box.message(first).next_attempt_at == STORED
    assert box.message(first).payload == "a"
    assert box.message(second).next_attempt_at == LATER
    assert box.cancel(queue="refunds") is True
    assert [message.id for message in box.messages()] == [first]


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_timer_ids_are_compared_letter_by_letter(box: Box, conflict: str) -> None:
    ids = {
        box.timer(None, conflict, timer_id=timer_id, activate_at=STORED)
        for timer_id in ("t", "T", "t ", "t\u00e9", "te\u0301", "1", "01")
    }

    assert None not in ids
    assert len(ids) == 7


def test_messages_without_a_timer_id_never_conflict(box: Box) -> None:
    assert len({box.publish(), box.publish(), box.timer()}) == 3


# Seconds and durations


def test_a_delay_is_a_timedelta_or_seconds_and_nothing_else(box: Box) -> None:
    # D13
    by_duration = box.message(box.timer(activate_in=timedelta(hours=3)))
    by_seconds = box.message(box.timer(None, "replace", activate_in=10800))

    apart = by_seconds.next_attempt_at - by_duration.next_attempt_at
    assert timedelta() <= apart < timedelta(seconds=10)
    with pytest.raises(TypeError):
        box.timer(activate_inn=5)


def test_the_far_end_of_the_calendar_is_stored_and_what_lies_beyond_is_refused(box: Box) -> None:
    # D11
    end = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    id_ = box.timer("far", activate_at=end)

    assert box.message(id_).next_attempt_at == end
    for absurd in (10**12, timedelta.max):
        with pytest.raises(ValueError, match="activate_in"):
            box.timer("beyond", "replace", activate_in=absurd)
    assert box.timer("past", "replace", activate_in=-5) == id_
    assert [claimed.id for claimed in box.claim()] == [id_]


# Through every door


def test_a_publisher_forwards_the_conflict(box: Box) -> None:
    orders = outbox.publisher("orders", headers={"tenant": "acme"})
    id_ = orders.publish("old", timer_id="t", activate_at=STORED)

    assert orders.publish("new", timer_id="t", activate_at=LATER) is None
    assert orders.publish("new", timer_id="t", timer_conflict="extend", activate_at=LATER) == id_
    assert box.message(id_).next_attempt_at == LATER
    assert box.message(id_).headers["tenant"] == "acme"
    assert (
        orders.publish("newest", timer_id="t", timer_conflict="replace", activate_at=EARLIER) == id_
    )
    assert box.message(id_).payload == "newest"
    assert outbox.publisher("refunds").cancel_timer(timer_id="t") is False
    assert orders.cancel_timer(timer_id="t") is True


@pytest.mark.parametrize("conflict", CONFLICTS)
@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
def test_a_response_forwards_the_conflict(box: Box, conflict: Any, *, atomic: bool) -> None:
    @outbox.handler("pings", atomic=atomic)
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        return outbox.OutboxResponse(
            message.payload,
            queue="orders",
            timer_id="t",
            timer_conflict=conflict,
            activate_at=LATER,
        )

    id_ = box.timer("old", activate_at=STORED)
    box.publish("new", queue="pings")
    assert box.drain() == 1

    (message,) = box.messages()
    moved = conflict != "ignore"
    assert message.id == id_
    assert message.payload == ("new" if moved else "old")
    assert message.next_attempt_at == (LATER if moved else STORED)


def test_the_async_twins_forward_the_conflict(box: Box) -> None:
    orders = outbox.publisher("orders")

    async def ping() -> list[Any]:
        first = await outbox.apublish("old", queue="orders", timer_id="t", activate_at=STORED)
        move = {"timer_id": "t", "timer_conflict": "extend", "activate_at": LATER}
        second = await outbox.apublish("new", queue="orders", **move)  # type: ignore[arg-type]
        third = await orders.apublish("newer", **move)  # type: ignore[arg-type]
        return [second == first, third == first]

    assert async_to_sync(ping)() == [True, True]
    (message,) = box.messages()
    assert (message.payload, message.next_attempt_at) == ("new", LATER)
    assert async_to_sync(outbox.acancel_timer)(queue="orders", timer_id="t") is True
    assert async_to_sync(orders.acancel_timer)(timer_id="t") is False
    assert box.messages() == []


@pytest.mark.parametrize(
    "options",
    [
        {"timer_id": ""},
        {"timer_id": "t" * 256},
        {"timer_id": "a\x00b"},
        {"timer_id": "a\ud800b"},
        {"timer_id": "t", "timer_conflict": "overwrite"},
        {"timer_id": "t", "timer_conflict": None},
        {"timer_conflict": "extend"},
        {"timer_conflict": "replace"},
    ],
    ids=str,
)
def test_a_bad_timer_is_refused_before_anything_is_stored(
    box: Box, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="timer_"):
        box.publish({}, **options)
    with pytest.raises(ValueError, match="timer_"):
        outbox.publisher("orders").publish({}, **options)

    assert box.messages() == []
    assert box.publish({}) is not None
