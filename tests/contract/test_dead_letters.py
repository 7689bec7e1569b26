"""Dead letters: made messages again by `replay()`, deleted by `discard()`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage

from .conftest import Drain
from .helpers import (
    PATIENCE,
    Listener,
    Together,
    claim,
    committed,
    database_clock,
)

pytestmark = pytest.mark.django_db

MakeLetter = Callable[..., DeadLetter]
MakeLetters = Callable[..., None]
CREATED = datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)


def test_a_replayed_letter_is_a_message_that_starts_anew(make_letter: MakeLetter) -> None:
    letter = make_letter(
        queue="refunds",
        payload=b"\x00raw",
        headers={"content-type": "image/gif", "tenant": "acme"},
        correlation_id="checkout-7",
        timer_id="t",
        created_at=CREATED,
        message_id=UUID(int=7),
    )
    before = database_clock()
    assert DeadLetter.objects.all().replay() == outbox.ReplayResult(replayed=1, skipped=0)
    after = database_clock()

    message = OutboxMessage.objects.get()
    assert message.queue == "refunds"
    assert bytes(message.payload) == b"\x00raw"
    assert message.headers == {"content-type": "image/gif", "tenant": "acme"}
    assert message.correlation_id == "checkout-7"
    assert message.timer_id == "t"
    assert message.message_id == letter.message_id == UUID(int=7)
    assert before <= message.next_attempt_at <= after
    assert message.attempts_count == 0
    assert message.deliveries_count == 0
    assert message.first_attempt_at is None
    assert message.last_attempt_at is None
    assert message.last_error is None
    assert message.expires_at is None
    assert message.lease_token is None
    assert not DeadLetter.objects.exists()
    assert [claimed.id for claimed in claim("refunds")] == [message.pk]


def test_only_the_letters_of_the_queryset_are_replayed(make_letter: MakeLetter) -> None:
    orders, refunds = make_letter(queue="orders"), make_letter(queue="refunds")

    DeadLetter.objects.filter(queue="orders").replay()
    assert DeadLetter.objects.get() == refunds
    assert OutboxMessage.objects.get().message_id == orders.message_id


def test_replaying_again_finds_nothing(make_letter: MakeLetter) -> None:
    make_letter()
    letters = DeadLetter.objects.filter(queue="orders")

    assert letters.replay() == outbox.ReplayResult(replayed=1, skipped=0)
    assert letters.replay() == outbox.ReplayResult(replayed=0, skipped=0)
    assert OutboxMessage.objects.count() == 1


def test_a_letter_whose_timer_lives_again_is_skipped_and_reported(make_letter: MakeLetter) -> None:
    live = outbox.publish({}, queue="orders", timer_id="t", activate_in=60)
    kept = make_letter(timer_id="t")
    make_letter(timer_id="T")
    make_letter(timer_id="t", queue="refunds")
    make_letter()

    assert DeadLetter.objects.all().replay() == outbox.ReplayResult(replayed=3, skipped=1)
    assert DeadLetter.objects.get() == kept
    assert OutboxMessage.objects.filter(queue="orders", timer_id="t").get().pk == live


def test_a_leased_timer_lives_too(make_letter: MakeLetter) -> None:
    outbox.publish({}, queue="orders", timer_id="t")
    assert len(claim("orders")) == 1
    make_letter(timer_id="t")

    assert DeadLetter.objects.all().replay() == outbox.ReplayResult(replayed=0, skipped=1)


def test_of_two_letters_with_one_timer_one_is_replayed(make_letter: MakeLetter) -> None:
    first, second = make_letter(timer_id="t"), make_letter(timer_id="t")

    assert DeadLetter.objects.all().replay() == outbox.ReplayResult(replayed=1, skipped=1)
    assert OutboxMessage.objects.get().message_id == first.message_id
    assert DeadLetter.objects.get() == second


@pytest.mark.parametrize(("per_second", "seconds"), [(10, 0.1), (0.5, 2.0)])
def test_per_second_staggers_the_messages(
    make_letter: MakeLetter, per_second: float, seconds: float
) -> None:
    for _ in range(5):
        make_letter()
    before = database_clock()
    DeadLetter.objects.all().replay(per_second=per_second)
    after = database_clock()

    due = list(OutboxMessage.objects.order_by("id").values_list("next_attempt_at", flat=True))
    for number, moment in enumerate(due):
        wait = timedelta(seconds=number * seconds)
        assert before <= moment - wait <= after


def test_per_second_goes_on_over_the_batches(make_letters: MakeLetters) -> None:
    make_letters(2500)
    before = database_clock()
    result = DeadLetter.objects.all().replay(per_second=10)
    after = database_clock()

    assert result == outbox.ReplayResult(replayed=2500, skipped=0)
    due = OutboxMessage.objects.order_by("id").values_list("next_attempt_at", flat=True)
    assert before <= due[0] <= after
    assert before <= due[2499] - timedelta(seconds=249.9) <= after


def test_skipped_letters_do_not_raise_the_rate(make_letters: MakeLetters) -> None:
    outbox.publish({}, queue="orders", timer_id="t", activate_at=CREATED)
    make_letters(900, timer_id="t")
    make_letters(1100)
    result = DeadLetter.objects.all().replay(per_second=10)

    assert result == outbox.ReplayResult(replayed=1100, skipped=900)
    replayed = OutboxMessage.objects.filter(timer_id=None)
    due = list(replayed.order_by("next_attempt_at").values_list("next_attempt_at", flat=True))
    for first, twelfth in zip(due, due[11:], strict=False):
        assert twelfth - first >= timedelta(seconds=1)


@pytest.mark.parametrize("per_second", [0, -1, float("nan"), 1e-300])
def test_a_rate_that_is_not_positive_is_refused(make_letter: MakeLetter, per_second: float) -> None:
    make_letter()
    with pytest.raises(ValueError, match="per_second"):
        DeadLetter.objects.all().replay(per_second=per_second)

    assert DeadLetter.objects.count() == 1


def test_discard_deletes_the_letters_of_the_queryset_and_counts_them(
    make_letter: MakeLetter,
) -> None:
    make_letter(queue="orders")
    make_letter(queue="orders")
    kept = make_letter(queue="refunds")
    letters = DeadLetter.objects.filter(queue="orders")

    assert letters.discard() == 2
    assert letters.discard() == 0
    assert DeadLetter.objects.get() == kept
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize("act", ["replay", "discard"])
@pytest.mark.parametrize(("count", "statements"), [(1, 4), (1000, 4), (1001, 6)])
def test_the_statements_grow_with_batches_and_not_with_letters(
    make_letters: MakeLetters, act: str, count: int, statements: int
) -> None:
    make_letters(count)
    with CaptureQueriesContext(connection) as queries:
        getattr(DeadLetter.objects.all(), act)()

    assert len(queries) <= statements
    assert not DeadLetter.objects.exists()


def test_letters_buried_while_a_replay_runs_are_left_for_the_next_one(
    make_letter: MakeLetter,
) -> None:
    failing = make_letter()
    result = outbox.ReplayResult()
    for batch in DeadLetter.objects.filter(queue="orders").replay_in_batches():
        result += batch
        assert result.replayed == 1, "it replays what has failed again since it began"
        make_letter(message_id=failing.message_id)

    assert result == outbox.ReplayResult(replayed=1, skipped=0)
    assert DeadLetter.objects.get().message_id == failing.message_id


def test_letters_buried_while_a_discard_runs_are_kept(make_letter: MakeLetter) -> None:
    make_letter()

    def bury_another(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        result = execute(sql, *args)
        if sql.lstrip().startswith("DELETE"):
            make_letter(queue="refunds")
        return result

    with connection.execute_wrapper(bury_another):
        assert DeadLetter.objects.all().discard() == 1

    assert DeadLetter.objects.get().queue == "refunds"


def test_replay_and_discard_obey_filters_over_any_column(make_letter: MakeLetter) -> None:
    make_letter(failure_reason="rejected", exception_class="outbox.Reject")
    old = make_letter(failed_at=CREATED)

    assert DeadLetter.objects.exclude(failure_reason="rejected").replay().replayed == 1
    assert OutboxMessage.objects.get().message_id == old.message_id
    assert DeadLetter.objects.order_by("-failed_at").discard() == 1


@pytest.mark.parametrize("act", ["replay", "discard"])
def test_a_slice_of_letters_is_refused_as_django_refuses_to_delete_one(
    make_letter: MakeLetter, act: str
) -> None:
    make_letter()
    with pytest.raises(TypeError):
        getattr(DeadLetter.objects.all()[:1], act)()

    assert DeadLetter.objects.count() == 1


@committed
def test_a_replay_notifies_each_queue(make_letter: MakeLetter, listener: Listener) -> None:
    for queue in ("orders", "orders", "refunds"):
        make_letter(queue=queue)
    DeadLetter.objects.all().replay()

    assert sorted(listener.heard()) == ["orders", "refunds"]


@committed
def test_a_replay_without_notify_is_silent(
    make_letter: MakeLetter, listener: Listener, settings: LazySettings
) -> None:
    settings.OUTBOX = {"NOTIFY": False}
    make_letter()
    DeadLetter.objects.all().replay()

    assert listener.heard() == []


@committed
@pytest.mark.parametrize("act", ["replay", "discard"])
def test_a_callers_transaction_takes_all_of_it_back(make_letter: MakeLetter, act: str) -> None:
    make_letter()
    with transaction.atomic():
        getattr(DeadLetter.objects.all(), act)()
        assert not DeadLetter.objects.exists()
        transaction.set_rollback(True)

    assert DeadLetter.objects.count() == 1
    assert not OutboxMessage.objects.exists()


@committed
@pytest.mark.parametrize("act", ["replay", "discard"])
def test_what_was_interrupted_has_committed_its_batches_and_can_be_repeated(
    make_letters: MakeLetters, together: Together, act: str
) -> None:
    make_letters(2500)

    def interrupt(execute: Callable[..., Any], *args: Any) -> Any:
        left = together.start(DeadLetter.objects.count).result(PATIENCE)
        if left < 2500:
            raise KeyboardInterrupt
        return execute(*args)

    with pytest.raises(KeyboardInterrupt), connection.execute_wrapper(interrupt):
        getattr(DeadLetter.objects.all(), act)()
    left = DeadLetter.objects.count()
    assert 0 < left < 2500

    again = getattr(DeadLetter.objects.all(), act)()
    assert again == (left if act == "discard" else outbox.ReplayResult(replayed=left, skipped=0))
    assert OutboxMessage.objects.count() == (0 if act == "discard" else 2500)


@committed
def test_two_replays_at_once_make_one_message_of_each_letter(
    make_letter: MakeLetter, together: Together
) -> None:
    for _ in range(50):
        make_letter()
    results = together.run([DeadLetter.objects.all().replay] * 4)

    assert sum(result.replayed for result in results) == 50
    assert [result.skipped for result in results] == [0, 0, 0, 0]
    assert len(set(OutboxMessage.objects.values_list("message_id", flat=True))) == 50
    assert OutboxMessage.objects.count() == 50


@committed
def test_a_letter_that_is_being_discarded_is_not_replayed(
    make_letter: MakeLetter, together: Together
) -> None:
    make_letter()
    with transaction.atomic():
        assert DeadLetter.objects.all().discard() == 1
        replay = together.start(DeadLetter.objects.all().replay)
        assert replay.result(PATIENCE).replayed == 0

    assert not DeadLetter.objects.exists()
    assert not OutboxMessage.objects.exists()


@committed
def test_a_replayed_message_has_a_fresh_budget_of_attempts(drain: Drain) -> None:
    # C11
    fixed = False
    attempts: list[int] = []
    ids: set[UUID] = set()

    @outbox.handler("orders", retry=outbox.ConstantRetry(0, max_attempts=3))
    def handle(message: outbox.Message[Any]) -> None:
        attempts.append(message.attempt)
        ids.add(message.message_id)
        if not fixed:
            raise ValueError("no stock")

    with transaction.atomic():
        outbox.publish({}, queue="orders")
    drain()
    first = DeadLetter.objects.get()
    DeadLetter.objects.all().replay()
    drain()
    second = DeadLetter.objects.get()
    fixed = True
    DeadLetter.objects.all().replay()
    drain()

    assert attempts == [1, 2, 3, 1, 2, 3, 1]
    assert ids == {first.message_id} == {second.message_id}
    assert first.attempts_count == second.attempts_count == 3
    assert "no stock" in (second.last_exception or "")
    assert not DeadLetter.objects.exists()
    assert not OutboxMessage.objects.exists()
