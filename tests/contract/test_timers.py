"""A timer is unique per queue and id while it lives; what a second publish does to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .conftest import Drain
from .helpers import claim, committed, complete, fail, row, stored_payload

pytestmark = pytest.mark.django_db

EARLIER = datetime(2100, 1, 1, tzinfo=UTC)
STORED = datetime(2100, 1, 2, tzinfo=UTC)
LATER = datetime(2100, 1, 3, tzinfo=UTC)

CONFLICTS = ["ignore", "extend", "replace"]


def publish(payload: Any, conflict: Any = "ignore", **options: Any) -> int | None:
    return outbox.publish(payload, queue="orders", timer_id="t", timer_conflict=conflict, **options)


def columns(id_: int | None) -> dict[str, Any]:
    stored = vars(row(id_))
    return {name: stored[name] for name in stored if name != "_state"}


def failed_once(**options: Any) -> int:
    """Return the id of a timer that waits for its second attempt, an hour from now."""
    id_ = publish("old", **options)
    (claimed,) = claim("orders")
    fail(claimed, delay=3600)
    assert claimed.id == id_
    return claimed.id


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_a_timer_that_is_missing_is_inserted(conflict: str) -> None:
    id_ = publish("new", conflict, activate_at=STORED, headers={"tenant": "acme"})

    stored = row(id_)
    assert stored.timer_id == "t"
    assert stored.next_attempt_at == STORED
    assert stored.headers == {"tenant": "acme", "content-type": "application/json"}
    assert stored_payload(id_) == "new"


def test_of_several_publishes_the_first_wins_and_the_others_are_told() -> None:
    # D03
    first = publish({"n": 1}, activate_at=STORED)
    answers = [publish({"n": n}, activate_at=LATER) for n in range(2, 7)]

    assert answers == [None] * 5
    assert OutboxMessage.objects.get().pk == first
    assert stored_payload(first) == {"n": 1}


@pytest.mark.parametrize("deadline", [EARLIER, STORED, LATER])
def test_ignore_leaves_a_pending_timer_as_it_was(deadline: datetime) -> None:
    id_ = publish("old", activate_at=STORED)
    before = columns(id_)

    assert publish("new", "ignore", activate_at=deadline, headers={"a": "b"}) is None
    assert columns(id_) == before


def test_ignore_leaves_a_timer_between_retries_as_it_was() -> None:
    id_ = failed_once()
    before = columns(id_)

    assert publish("new", "ignore", activate_at=LATER) is None
    assert columns(id_) == before


def test_extend_moves_a_pending_timer_to_a_later_deadline_with_the_new_content() -> None:
    id_ = publish("old", activate_at=STORED, headers={"v": "1"}, max_attempts=2, expires_in=60)

    assert (
        publish(
            "new", "extend", activate_at=LATER, headers={"v": "2"}, max_attempts=7, expires_in=90
        )
        == id_
    )
    stored = row(id_)
    assert stored.next_attempt_at == LATER
    assert stored_payload(id_) == "new"
    assert stored.headers == {"v": "2", "content-type": "application/json"}
    assert stored.max_attempts == 7
    assert stored.expires_at == LATER + timedelta(seconds=90)


@pytest.mark.parametrize("deadline", [EARLIER, STORED])
def test_extend_keeps_deadline_and_content_when_the_request_is_not_strictly_later(
    deadline: datetime,
) -> None:
    id_ = publish("old", activate_at=STORED, headers={"v": "1"}, max_attempts=2, expires_in=60)
    before = columns(id_)

    answer = publish(
        "new", "extend", activate_at=deadline, headers={"v": "2"}, max_attempts=7, expires_in=90
    )
    assert answer == id_
    assert columns(id_) == before


def test_extend_makes_a_fresh_start_of_a_timer_between_retries_when_it_moves_it() -> None:
    id_ = failed_once()

    assert publish("new", "extend", activate_at=LATER) == id_
    stored = row(id_)
    assert stored.next_attempt_at == LATER
    assert stored_payload(id_) == "new"
    assert stored.attempts_count == 0
    assert stored.first_attempt_at is None
    assert stored.last_attempt_at is None
    assert stored.last_error is None


def test_extend_leaves_a_timer_between_retries_alone_when_it_is_due_later_anyway() -> None:
    id_ = failed_once()
    before = columns(id_)

    assert publish("new", "extend", activate_in=60) == id_
    assert columns(id_) == before
    assert before["attempts_count"] == 1
    assert before["last_error"] == "it broke"


@pytest.mark.parametrize("deadline", [EARLIER, STORED, LATER])
def test_replace_gives_a_pending_timer_the_requested_deadline_and_content(
    deadline: datetime,
) -> None:
    id_ = publish("old", activate_at=STORED, headers={"v": "1"}, max_attempts=2, expires_in=60)

    assert publish("new", "replace", activate_at=deadline, headers={"v": "2"}) == id_
    stored = row(id_)
    assert stored.next_attempt_at == deadline
    assert stored_payload(id_) == "new"
    assert stored.headers == {"v": "2", "content-type": "application/json"}
    assert stored.max_attempts is None
    assert stored.expires_at is None


def test_replace_makes_a_fresh_start_of_a_timer_between_retries() -> None:
    id_ = failed_once()

    assert publish("new", "replace", activate_in=1) == id_
    stored = row(id_)
    assert stored.attempts_count == 0
    assert stored.first_attempt_at is None
    assert stored.last_attempt_at is None
    assert stored.last_error is None


@pytest.mark.parametrize("conflict", ["extend", "replace"])
def test_a_moved_timer_keeps_its_identity_and_its_deliveries(conflict: str) -> None:
    id_ = failed_once()
    before = columns(id_)

    assert publish("new", conflict, activate_at=LATER) == id_
    after = columns(id_)
    for name in ("id", "message_id", "created_at", "deliveries_count"):
        assert after[name] == before[name], name
    assert after["deliveries_count"] == 1


@pytest.mark.parametrize("conflict", CONFLICTS)
@pytest.mark.parametrize("lease_ttl", [60, 0], ids=["leased", "lease run out"])
def test_a_leased_timer_is_left_to_its_worker(conflict: str, lease_ttl: int) -> None:
    id_ = publish("old")
    (claimed,) = claim("orders", lease_ttl=lease_ttl)
    before = columns(id_)

    assert publish("new", conflict, activate_at=LATER) is None
    assert publish("new", conflict, activate_at=datetime(2000, 1, 1, tzinfo=UTC)) is None
    assert columns(id_) == before
    complete(claimed)


def test_a_claim_takes_a_timer_whose_lease_has_run_out() -> None:
    publish("old")
    (first,) = claim("orders", lease_ttl=0)
    (second,) = claim("orders")

    assert second.id == first.id
    assert second.lease_token != first.lease_token
    assert second.deliveries_count == 2


def test_a_timer_that_is_pinged_on_does_not_expire() -> None:
    id_ = publish("ping", activate_in=1, expires_in=10)
    for hours in range(1, 6):
        publish("ping", "extend", activate_in=timedelta(hours=hours), expires_in=10)

    stored = row(id_)
    assert stored.expires_at == stored.next_attempt_at + timedelta(seconds=10)


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_the_same_timer_on_another_queue_is_independent(conflict: Any) -> None:
    first = outbox.publish("a", queue="orders", timer_id="t", activate_at=STORED)
    second = outbox.publish(
        "b", queue="refunds", timer_id="t", timer_conflict=conflict, activate_at=LATER
    )

    assert first != second
    assert row(first).next_attempt_at == STORED
    assert row(second).next_attempt_at == LATER
    assert outbox.cancel_timer(queue="refunds", timer_id="t")
    assert OutboxMessage.objects.get().pk == first


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_there_is_no_select_before_the_insert(conflict: Any) -> None:
    publish("old", activate_at=STORED)
    with CaptureQueriesContext(connection) as queries:
        publish("new", conflict, activate_at=LATER)

    assert len(queries) == 1
    assert "ON CONFLICT" in queries[0]["sql"]


@pytest.mark.parametrize("conflict", ["extend", "replace"])
def test_a_rolled_back_publish_leaves_the_timer_as_it_was(conflict: str) -> None:
    id_ = publish("old", activate_at=STORED)
    before = columns(id_)
    with transaction.atomic():
        assert publish("new", conflict, activate_at=LATER) == id_
        assert row(id_).next_attempt_at == LATER
        transaction.set_rollback(True)

    assert columns(id_) == before


@committed
def test_a_timer_is_free_again_once_it_is_delivered_cancelled_or_buried(drain: Drain) -> None:
    # D07
    outcomes: list[str] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        outcomes.append(message.payload)
        if message.payload == "bury":
            raise outbox.Reject("no")

    def publish_now(payload: str) -> int | None:
        with transaction.atomic():
            return publish(payload)

    delivered = publish_now("deliver")
    drain()
    buried = publish_now("bury")
    drain()
    cancelled = publish_now("cancel")
    assert outbox.cancel_timer(queue="orders", timer_id="t")
    last = publish_now("deliver again")
    drain()

    ids = [delivered, buried, cancelled, last]
    assert None not in ids
    assert len(set(ids)) == 4
    assert outcomes == ["deliver", "bury", "deliver again"]


@committed
@pytest.mark.parametrize("conflict", CONFLICTS)
def test_a_handler_cannot_change_the_timer_it_runs_for(drain: Drain, conflict: Any) -> None:
    # D05
    seen: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with transaction.atomic():
            seen.append(publish("new", conflict, activate_at=LATER))
        seen.append(message.payload)

    with transaction.atomic():
        publish("old")
    drain()

    assert seen == [None, "old"]
    assert not OutboxMessage.objects.exists()
