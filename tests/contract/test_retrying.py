"""Retrying: what is a failed attempt, when the next one is due, what is kept of the error."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from django.conf import LazySettings

from django_outbox import outbox, signals
from django_outbox.models import OutboxMessage
from tests.support import (
    committed,
    drain,
    letter_of,
    make_due,
    message_row,
    publish,
    publish_many,
    running,
    session,
    wait_until,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]

HOUR = outbox.ConstantRetry(3600)


def raising(error: BaseException) -> Callable[[outbox.Message[Any]], None]:
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload != "good":
            raise error

    return handle


def delay_of(row: OutboxMessage) -> float:
    """Return the seconds from the last attempt to the next."""
    assert row.last_attempt_at is not None
    return (row.next_attempt_at - row.last_attempt_at).total_seconds()


def test_a_failure_counts_is_dated_and_kept_and_the_message_is_free_again() -> None:
    outbox.handler("orders", retry=HOUR)(raising(ValueError("no stock")))
    id_ = publish()

    drain()

    row = message_row(id_)
    assert row.attempts_count == 1
    assert row.deliveries_count == 1
    assert row.first_attempt_at is not None
    assert row.first_attempt_at is not None
    assert row.last_attempt_at is not None
    assert row.last_attempt_at - row.first_attempt_at < timedelta(milliseconds=10)
    assert delay_of(row) == pytest.approx(3600, abs=0.01)
    assert row.last_error is not None
    assert row.last_error.startswith("ValueError: no stock")
    assert (row.lease_token, row.lease_expires_at, row.leased_by) == (None, None, None)


def test_the_second_failure_keeps_the_time_of_the_first() -> None:
    outbox.handler("orders", retry=HOUR)(raising(ValueError("no stock")))
    id_ = publish()
    drain()
    first = message_row(id_)
    make_due(id_)

    drain()

    second = message_row(id_)
    assert second.attempts_count == 2
    assert second.first_attempt_at == first.first_attempt_at
    assert second.last_attempt_at is not None
    assert first.last_attempt_at is not None
    assert second.last_attempt_at > first.last_attempt_at


def test_a_failed_message_is_tried_again_when_it_is_due() -> None:
    attempts: list[int] = []

    @outbox.handler("orders", retry=outbox.ConstantRetry(0.2))
    def handle(message: outbox.Message[Any]) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise ValueError("not yet")

    with running():
        publish()
        wait_until(lambda: not OutboxMessage.objects.exists(), within=5)

    assert attempts == [1, 2, 3]


def test_draining_does_not_wait_for_later_retries() -> None:
    attempts: list[int] = []

    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        attempts.append(message.attempt)
        raise ValueError("not yet")

    publish()
    drain()

    assert attempts == [1]


# Retry and Reject


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_retry_chooses_the_delay_and_counts(delay: float | timedelta) -> None:
    outbox.handler("orders", retry=HOUR)(raising(outbox.Retry(delay=delay)))
    id_ = publish()

    drain()

    row = message_row(id_)
    assert row.attempts_count == 1
    assert delay_of(row) == pytest.approx(90, abs=0.01)


def test_max_attempts_ends_what_a_handler_retries_by_itself() -> None:
    strategy = outbox.ConstantRetry(3600, max_attempts=2)
    outbox.handler("orders", retry=strategy)(raising(outbox.Retry(delay=0)))
    id_ = publish()

    drain()  # a delay of none is due at once, so both attempts

    letter = letter_of(id_)
    assert (letter.failure_reason, letter.attempts_count) == ("retry_terminal", 2)


def test_reject_buries_at_once_with_its_word() -> None:
    outbox.handler("orders", retry=HOUR)(raising(outbox.Reject("unknown customer")))
    id_ = publish()

    drain()

    letter = letter_of(id_)
    assert (letter.failure_reason, letter.attempts_count) == ("rejected", 1)
    assert letter.last_exception is not None
    assert "unknown customer" in letter.last_exception


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("error", [outbox.Retry(delay=60), outbox.Reject("no")])
def test_retry_and_reject_mean_the_same_in_every_kind_of_handler(
    *, atomic: bool, error: Exception
) -> None:
    @outbox.handler("orders", atomic=atomic)
    async def handle(message: outbox.Message[Any]) -> None:
        raise error

    id_ = publish()
    drain()

    if isinstance(error, outbox.Retry):
        assert delay_of(message_row(id_)) == pytest.approx(60, abs=0.01)
    else:
        assert letter_of(id_).failure_reason == "rejected"


# What is no ordinary exception


def exit_with_one(message: outbox.Message[Any]) -> NoReturn:
    sys.exit(1)


def exit_with_zero(message: outbox.Message[Any]) -> NoReturn:
    sys.exit(0)


async def exit_in_a_coroutine(message: outbox.Message[Any]) -> NoReturn:
    sys.exit(1)


async def interrupt_in_a_coroutine(message: outbox.Message[Any]) -> NoReturn:
    raise KeyboardInterrupt


async def cancelled_coroutine(message: outbox.Message[Any]) -> NoReturn:
    raise asyncio.CancelledError


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    ("handle", "name"),
    [
        (exit_with_one, "SystemExit"),
        (exit_with_zero, "SystemExit"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(GeneratorExit()), "GeneratorExit"),
        (exit_in_a_coroutine, "SystemExit"),
        (interrupt_in_a_coroutine, "KeyboardInterrupt"),
        (cancelled_coroutine, "CancelledError"),
        (raising(StopIteration()), "StopIteration"),
    ],
    ids=[
        "exit 1",
        "exit 0",
        "interrupt",
        "generator exit",
        "async exit",
        "async interrupt",
        "async cancelled",
        "stop iteration",
    ],
)
def test_leaving_by_another_door_is_a_failed_attempt_and_not_the_workers_end(
    *, handle: Callable[[outbox.Message[Any]], Any], name: str, atomic: bool
) -> None:
    # C05
    done: list[Any] = []
    outbox.handler("orders", retry=HOUR, atomic=atomic)(handle)

    @outbox.handler("others")
    def go_on(message: outbox.Message[Any]) -> None:
        done.append(message.payload)

    id_ = publish("bad")
    publish("next", queue="others")
    drain()

    row = message_row(id_)
    assert row.attempts_count == 1
    assert row.last_error is not None
    assert name in row.last_error
    assert done == ["next"]


# The text of the error


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ValueError("bad\x00byte"), "bad\ufffdbyte"),
        (ValueError("bad\ud800surrogate"), "surrogate"),
        (ValueError("é" * 5_000_000), "ValueError: ééé"),
        (Unprintable(), "Unprintable"),
        (ExceptionGroup("several", [ValueError("x" * 9000), Unprintable()]), "several"),
    ],
    ids=["nul", "surrogate", "5 MB", "unprintable", "group"],
)
def test_whatever_the_error_says_it_is_stored_within_bounds(error: Exception, kept: str) -> None:
    # C03
    outbox.handler("orders", retry=outbox.ConstantRetry(3600, max_attempts=2))(raising(error))
    id_ = publish("bad")
    good = publish("good")

    drain()

    row = message_row(id_)
    assert row.attempts_count == 1
    assert row.last_error is not None
    assert kept in row.last_error
    assert len(row.last_error) <= 8192
    assert not OutboxMessage.objects.filter(pk=good).exists()

    make_due(id_)
    drain()

    letter = letter_of(id_)
    assert letter.last_exception is not None
    assert kept in letter.last_exception
    assert len(letter.last_exception) <= 8192


def test_a_long_error_keeps_both_its_text_and_where_it_was_raised() -> None:
    outbox.handler("orders", retry=HOUR)(raising(ValueError("x" * 100_000)))
    id_ = publish()

    drain()

    error = message_row(id_).last_error
    assert error is not None
    assert error.startswith("ValueError: xxx")
    assert len(error) == 8192


def class_only(exception: BaseException) -> str | None:
    return type(exception).__name__


def nothing(exception: BaseException) -> str | None:
    return None


def broken(exception: BaseException) -> str | None:
    raise RuntimeError(f"cannot render {exception}")


@pytest.mark.parametrize(
    ("renderer", "kept"),
    [
        (class_only, "ValueError"),
        (f"{__name__}.class_only", "ValueError"),
        (nothing, None),
        (broken, "ValueError"),
    ],
    ids=["callable", "dotted path", "nothing", "broken"],
)
def test_the_renderer_decides_what_is_stored_and_logged_of_an_error(
    renderer: Any, kept: str | None, settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.OUTBOX = {"EXCEPTION_RENDERER": renderer}
    strategy = outbox.ConstantRetry(3600, max_attempts=2)
    outbox.handler("orders", retry=strategy)(raising(ValueError("SECRET-XYZ")))
    id_ = publish()

    drain()
    assert message_row(id_).last_error == kept

    make_due(id_)
    drain()
    assert letter_of(id_).last_exception == kept
    assert "SECRET" not in caplog.text


# Strategies


class Broken:
    def next_delay(self, *, attempt: int, elapsed: float, exception: BaseException) -> float | None:
        raise RuntimeError("strategy broke")


class Nonsense:
    def next_delay(self, *, attempt: int, elapsed: float, exception: BaseException) -> Any:
        return "soon"


class NotANumber:
    def next_delay(self, *, attempt: int, elapsed: float, exception: BaseException) -> float | None:
        return float("nan")


def test_a_broken_strategy_does_not_log_what_the_renderer_keeps_out(
    settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.OUTBOX = {"EXCEPTION_RENDERER": class_only}
    outbox.handler("orders", retry=Broken())(raising(ValueError("SECRET-XYZ")))
    id_ = publish()

    drain()

    assert letter_of(id_).last_exception == "ValueError"
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize("strategy", [Broken(), Nonsense(), NotANumber()])
def test_a_strategy_that_raises_or_answers_nonsense_buries(
    strategy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.handler("orders", retry=strategy)(raising(ValueError("no stock")))
    id_ = publish()

    drain()

    letter = letter_of(id_)
    assert (letter.failure_reason, letter.attempts_count) == ("retry_terminal", 1)
    assert letter.last_exception is not None
    assert letter.last_exception.startswith("ValueError: no stock")
    assert any(record.levelname == "ERROR" for record in caplog.records)


def test_a_strategy_is_asked_with_the_failures_so_far_and_the_time_since_the_first() -> None:
    asked: list[dict[str, Any]] = []

    class Asked:
        def next_delay(
            self, *, attempt: int, elapsed: float, exception: BaseException
        ) -> float | None:
            asked.append({"attempt": attempt, "elapsed": elapsed, "exception": exception})
            return 3600

    error = ValueError("no stock")
    outbox.handler("orders", retry=Asked())(raising(error))
    id_ = publish()
    drain()
    with session() as other:
        other.execute(
            "UPDATE django_outbox_message"
            " SET first_attempt_at = first_attempt_at - interval '500 seconds'"
        )
    make_due(id_)
    drain()

    assert [a["attempt"] for a in asked] == [1, 2]
    assert [a["exception"] for a in asked] == [error, error]
    assert asked[0]["elapsed"] == pytest.approx(0, abs=5)
    assert asked[1]["elapsed"] == pytest.approx(500, abs=5)


def test_max_total_delay_ends_the_retries_when_it_would_be_exceeded() -> None:
    strategy = outbox.ConstantRetry(60, max_total_delay_seconds=100)
    outbox.handler("orders", retry=strategy)(raising(ValueError("no stock")))
    id_ = publish()
    drain()
    assert message_row(id_).attempts_count == 1
    with session() as other:
        other.execute(
            "UPDATE django_outbox_message"
            " SET first_attempt_at = first_attempt_at - interval '50 seconds'"
        )
    make_due(id_)

    drain()

    letter = letter_of(id_)
    assert (letter.failure_reason, letter.attempts_count) == ("retry_terminal", 2)


@pytest.mark.parametrize("attempts", [16, 46, 47, 1100, 10_000])
def test_the_backoff_does_not_overflow_at_high_attempts(attempts: int) -> None:
    # C01
    strategy = outbox.ExponentialRetry(1, 2, 3600, max_attempts=20_000)
    outbox.handler("orders", retry=strategy)(raising(ValueError("no stock")))
    id_ = publish()
    OutboxMessage.objects.filter(pk=id_).update(attempts_count=attempts)

    drain()

    row = message_row(id_)
    assert row.attempts_count == attempts + 1
    assert delay_of(row) == pytest.approx(3600, abs=0.01)


def test_by_default_the_first_retry_comes_after_a_second_more_or_less() -> None:
    outbox.handler("orders")(raising(ValueError("no stock")))
    id_ = publish()

    drain()

    row = message_row(id_)
    assert 0.89 <= delay_of(row) <= 1.11


@pytest.mark.parametrize(("limit", "given"), [(5, 2), (2, 5), (None, 3)])
def test_the_messages_own_max_attempts_overrides_the_strategys(
    limit: int | None, given: int
) -> None:
    runs: list[int] = []

    @outbox.handler("orders", retry=outbox.ConstantRetry(0, max_attempts=limit))
    def handle(message: outbox.Message[Any]) -> None:
        runs.append(message.attempt)
        raise ValueError("no stock")

    id_ = publish(max_attempts=given)
    drain()

    assert runs == list(range(1, given + 1))
    assert letter_of(id_).attempts_count == given


def test_a_poisoned_message_does_not_hog_the_queue() -> None:
    # C13
    order: list[Any] = []

    @outbox.handler("orders", retry=outbox.ConstantRetry(0.1, max_attempts=1000))
    def handle(message: outbox.Message[Any]) -> None:
        order.append(message.payload)
        if message.payload == "poison":
            raise ValueError("poisoned")

    with session() as other:
        other.execute(
            "INSERT INTO django_outbox_message (queue, payload, headers, correlation_id)"
            """ SELECT 'orders', '"good"', '{"content-type": "application/json"}', ''"""
            " FROM generate_series(1, 1000)"
        )
    OutboxMessage.objects.filter(pk=OutboxMessage.objects.order_by("pk")[0].pk).update(
        payload=b'"poison"'
    )
    with running(batch_size=10):
        wait_until(lambda: order.count("good") == 999)

    assert order[:100].count("poison") <= 10


def test_an_idle_worker_tries_again_when_it_is_time_and_not_at_the_next_poll(
    settings: LazySettings,
) -> None:
    settings.OUTBOX = {"POLL_INTERVAL": 60}
    outbox.handler("orders", retry=outbox.ConstantRetry(0.1, max_attempts=3))(
        raising(ValueError("no stock"))
    )

    with running():
        id_ = publish()
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert letter_of(id_).attempts_count == 3


class Held:
    """What a handler has in hand."""


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("retry", [HOUR, outbox.NoRetry()])
def test_what_a_handler_held_when_it_failed_is_let_go_without_the_garbage_collector(
    retry: outbox.RetryStrategy, *, listens: bool
) -> None:
    held: list[weakref.ref[Held]] = []
    told: list[bool] = []

    def tell(**what: Any) -> None:
        told.append(any(ref() for ref in held))

    def book(reply: Held) -> NoReturn:
        try:
            raise KeyError("n")  # noqa: TRY301
        except KeyError as error:
            raise ExceptionGroup("no such order", [error]) from None

    @outbox.handler("orders", retry=retry)
    def handle(message: outbox.Message[Any]) -> None:
        reply = Held()
        held.append(weakref.ref(reply))
        book(reply)

    publish_many([1, 2, 3])
    gc.disable()
    try:
        with ExitStack() as stack:
            if listens:
                for signal in (signals.message_retried, signals.message_buried):
                    signal.connect(tell)
                    stack.callback(signal.disconnect, tell)
            drain()
        assert told == ([True] * 3 if listens else [])
        assert [ref for ref in held if ref() is not None] == []
    finally:
        gc.enable()
    assert len(held) == 3
