"""Whatever a row, a type, a strategy, a renderer or a receiver does: the worker goes on."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.dispatch import Signal

from django_outbox import outbox, signals
from django_outbox.models import DeadLetter, OutboxMessage
from tests.support import (
    committed,
    drain,
    letter_of,
    message_row,
    publish,
    publish_many,
    received,
    session,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]

HOUR = outbox.ConstantRetry(3600)


class Exiting(Exception):
    """Its text ends the program."""

    def __str__(self) -> str:
        raise SystemExit(3)


def of_no_name() -> Exception:
    """Return an exception whose class does not tell its name."""

    class Nameless(type):
        def __getattribute__(cls, name: str) -> Any:
            if name in ("__qualname__", "__name__", "__module__"):
                raise RuntimeError("no name")
            return super().__getattribute__(name)

    class OfNoName(Exception, metaclass=Nameless):
        pass

    return OfNoName()


class Rootless(Exception):
    """It tells neither where it was raised nor why."""

    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no traceback")

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no cause")

    @property
    def __context__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no context")


class ExitingStrategy:
    """Whoever asks it leaves."""

    def next_delay(self, *, attempt: int, elapsed: float, exception: BaseException) -> float | None:
        sys.exit(3)


@dataclass
class ExitingPayload:
    """Whoever decodes it leaves."""

    n: int

    def __post_init__(self) -> None:
        sys.exit(3)


def exiting_renderer(exception: BaseException) -> str:
    sys.exit(3)


def handle_others() -> list[Any]:
    """Register a handler for the queue `others` and return what it will have got."""
    got: list[Any] = []

    @outbox.handler("others")
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)

    return got


# Leaving by a door that is not the handler's


def test_an_error_whose_text_exits_is_a_failed_attempt() -> None:
    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        raise Exiting

    others = handle_others()
    id_ = publish()
    publish("next", queue="others")
    drain()

    row = message_row(id_)
    assert (row.attempts_count, row.lease_token) == (1, None)
    assert row.last_error is not None
    assert "Exiting" in row.last_error
    assert others == ["next"]


@pytest.fixture
def log_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep records from pytest, which raises what goes wrong when one is formatted."""
    monkeypatch.setattr(logging.getLogger("django_outbox"), "disabled", True)


@pytest.mark.usefixtures("log_to_nobody")
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    ("make", "name"),
    [(of_no_name, "of_no_name.<locals>.OfNoName"), (Rootless, "Rootless")],
)
def test_an_error_that_tells_nothing_of_itself_is_a_failed_attempt(
    make: Callable[[], Exception], name: str, *, atomic: bool
) -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(0, max_attempts=2), atomic=atomic)
    def handle(message: outbox.Message[Any]) -> None:
        raise make()

    others = handle_others()
    id_ = publish()
    publish("next", queue="others")
    drain(concurrency=1)

    letter = letter_of(id_)
    assert letter.attempts_count == 2
    assert letter.exception_class == f"{__name__}.{name}"
    assert others == ["next"]


@pytest.fixture
def log_that_raises() -> Iterator[None]:
    """Have whatever a handler thread logs raise an exception."""

    def refuse(record: logging.LogRecord) -> bool:
        if threading.current_thread().name.startswith("outbox-"):
            raise RuntimeError("no log")
        return True

    logger = logging.getLogger("django_outbox")
    logger.addFilter(refuse)
    yield
    logger.removeFilter(refuse)


@pytest.mark.usefixtures("log_that_raises")
def test_a_log_that_raises_takes_no_thread_along() -> None:

    @outbox.handler("orders", retry=ExitingStrategy())  # which is logged by the thread
    def handle(message: outbox.Message[Any]) -> None:
        raise ValueError("no stock")

    others = handle_others()
    id_ = publish()
    publish("next", queue="others")
    drain(concurrency=1)

    assert others == ["next"]
    assert message_row(id_).lease_token is None


def test_a_strategy_that_exits_buries() -> None:
    @outbox.handler("orders", retry=ExitingStrategy())
    def handle(message: outbox.Message[Any]) -> None:
        raise ValueError("no stock")

    others = handle_others()
    id_ = publish()
    publish("next", queue="others")
    drain()

    assert letter_of(id_).failure_reason == "retry_terminal"
    assert others == ["next"]


def test_a_payload_whose_type_exits_is_a_failed_attempt() -> None:
    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[ExitingPayload]) -> None: ...

    others = handle_others()
    id_ = publish({"n": 1})
    publish("next", queue="others")
    drain()

    row = message_row(id_)
    assert (row.attempts_count, row.lease_token) == (1, None)
    assert others == ["next"]


@pytest.mark.parametrize("reject", [False, True])
def test_a_renderer_that_exits_keeps_its_message_neither_leased_nor_alive(
    settings: LazySettings, *, reject: bool
) -> None:
    settings.OUTBOX = {"EXCEPTION_RENDERER": exiting_renderer}

    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        raise outbox.Reject("secret") if reject else ValueError("secret")

    others = handle_others()
    id_ = publish()
    publish("next", queue="others")
    drain()

    kept = letter_of(id_).last_exception if reject else message_row(id_).last_error
    assert "secret" not in (kept or "")
    assert others == ["next"]


@pytest.mark.parametrize(
    "module", ["import nonsense_that_is_nowhere", "raise SystemExit(3)", "render = 1 / 0", "x ="]
)
def test_a_renderer_that_cannot_be_imported_holds_nothing_up(
    settings: LazySettings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    module: str,
) -> None:
    (tmp_path / "broken_renderer.py").write_text(module + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_renderer", raising=False)
    settings.OUTBOX = {"EXCEPTION_RENDERER": "broken_renderer.render"}

    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        raise outbox.Reject("secret") if message.payload == "reject" else ValueError("secret")

    others = handle_others()
    buried, failed = publish_many(["reject", "fail"])
    publish("next", queue="others")
    drain()

    assert "secret" not in (letter_of(buried).last_exception or "")
    assert "secret" not in (message_row(failed).last_error or "")
    assert "secret" not in caplog.text
    assert others == ["next"]


@pytest.mark.parametrize(
    "signal", [signals.message_completed, signals.message_retried, signals.message_buried]
)
def test_a_receiver_that_exits_harms_nothing(signal: Signal) -> None:
    def leave(**kwargs: Any) -> None:
        sys.exit(3)

    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "retried":
            raise ValueError("no stock")
        if message.payload == "buried":
            raise outbox.Reject("no")

    others = handle_others()
    publish_many(["completed", "retried", "buried"])
    publish("next", queue="others")
    signal.connect(leave)
    try:
        drain()
    finally:
        signal.disconnect(leave)

    assert others == ["next"]
    assert [bytes(row.payload) for row in OutboxMessage.objects.all()] == [b'"retried"']
    assert DeadLetter.objects.count() == 1


@pytest.mark.parametrize(
    ("leave", "failed"),
    [
        (lambda: sys.exit(0), False),
        (lambda: sys.exit(3), True),
        (lambda: None, False),
        (lambda: 1 / 0, True),
    ],
    ids=["exits", "exits with 3", "returns", "raises"],
)
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_in_a_handler_ends_with_its_handler(
    leave: Callable[[], Any], *, failed: bool
) -> None:
    codes: list[int] = []

    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        child = os.fork()
        if child == 0:
            leave()
            return
        deadline = time.monotonic() + 10
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, 9)
                os.waitpid(child, 0)
                raise AssertionError("the child lives on")
            time.sleep(0.01)
        codes.append(os.waitstatus_to_exitcode(ended[1]))

    publish()
    drain()

    (code,) = codes
    assert (code != 0) is failed
    assert not OutboxMessage.objects.exists()


# Rows written by hand


def set_by_hand(id_: int, column: str, value: str) -> None:
    with session() as other:
        other.execute(f"UPDATE django_outbox_message SET {column} = %s WHERE id = %s", [value, id_])


@pytest.mark.parametrize("moment", ["infinity", "-infinity"])
@pytest.mark.parametrize("column", ["first_attempt_at", "last_attempt_at", "created_at"])
def test_a_row_with_an_infinite_moment_is_delivered_and_stops_no_other(
    column: str, moment: str
) -> None:
    got: list[Any] = []

    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)
        if message.payload == "odd":
            raise ValueError("no stock")

    odd, _ = publish_many(["odd", "even"])
    set_by_hand(odd, column, moment)
    drain()

    assert sorted(got) == ["even", "odd"]
    attempts = OutboxMessage.objects.values_list("id", "attempts_count")
    assert list(attempts) == [(odd, 1)]


def test_a_message_parked_at_infinity_stays_there_and_stops_no_other() -> None:
    others = handle_others()
    parked, _ = publish_many(["parked", "due"], queue="others")
    set_by_hand(parked, "next_attempt_at", "infinity")
    drain()

    assert others == ["due"]


def test_a_message_due_since_for_ever_is_delivered_whatever_its_id() -> None:
    others = handle_others()
    first, second = publish_many(["first", "second"], queue="others")
    for id_ in (first, second):
        set_by_hand(id_, "next_attempt_at", "-infinity")
    set_by_hand(second, "id", str(-second))
    drain()

    assert sorted(others) == ["first", "second"]


@pytest.mark.parametrize(
    "headers",
    [
        "[]",
        "null",
        "7",
        '{"a": 1}',
        '{"a": {"b": "c"}}',
        '{"a": 1e5000}',
        '{"a": ' + "[" * 5000 + "]" * 5000 + "}",
    ],
    ids=lambda text: text[:20],
)
def test_headers_that_are_none_are_buried_as_invalid_and_signalled(headers: str) -> None:
    handled: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.id)

    id_ = publish()
    set_by_hand(id_, "headers", headers)
    with received(signals.message_buried) as buried:
        drain()

    # Not read as a letter: its headers cannot be.
    reasons = DeadLetter.objects.values_list("original_id", "failure_reason")
    assert list(reasons) == [(id_, "invalid_payload")]
    assert [(call["reason"], call["message"].id) for call in buried] == [("invalid_payload", id_)]
    assert handled == []


# What a handler raises and returns


def test_a_lost_lease_of_something_else_is_an_ordinary_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @outbox.handler("orders", retry=HOUR)
    def handle(message: outbox.Message[Any]) -> None:
        raise outbox.LeaseLost("that of another message")

    id_ = publish()
    drain()

    row = message_row(id_)
    assert (row.attempts_count, row.lease_token) == (1, None)
    assert "that of another message" in (row.last_error or "")
    assert "lease_lost" not in [getattr(record, "event", None) for record in caplog.records]


RESPONSE = outbox.OutboxResponse({}, queue="others")


MISTAKES: dict[str, Callable[[], Any]] = {
    "a generator": lambda: (one for one in [RESPONSE]),
    "a nested list": lambda: [[RESPONSE]],
    "a dict": lambda: {"others": RESPONSE},
    "with None": lambda: [RESPONSE, None],
    "with text": lambda: [RESPONSE, "done"],
    "with a number": lambda: ([RESPONSE], 1),
}


@pytest.mark.parametrize("atomic", [False, True])
def test_a_response_in_anything_but_a_list_is_a_failed_attempt(*, atomic: bool) -> None:
    @outbox.handler("orders", retry=HOUR, atomic=atomic)
    def handle(message: outbox.Message[Any]) -> Any:
        return MISTAKES[message.payload]()

    ids = publish_many([*MISTAKES])
    drain()

    left = OutboxMessage.objects.order_by("id").values_list("id", "attempts_count")
    assert list(left) == [(id_, 1) for id_ in ids]


NOTHINGS: list[Any] = [None, 7, "text", {"a": 1}, [], (), ["text"], {1, 2}, b""]


def test_any_other_answer_means_nothing() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> Any:
        return NOTHINGS[message.payload]

    publish_many(list(range(len(NOTHINGS))))
    drain()

    assert not OutboxMessage.objects.exists()
