"""Whatever is wrong with the arguments is said before any SQL, and the transaction stays usable."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .helpers import without_sql

pytestmark = pytest.mark.django_db

LONE = "\ud800"
NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001
EAST = timezone(timedelta(hours=14))
WEST = timezone(timedelta(hours=-12))

BAD_NAMES: list[tuple[str, type[Exception]]] = [
    ("", outbox.InvalidName),
    ("q" * 256, outbox.InvalidName),
    ("a\x00b", outbox.InvalidName),
    (f"a{LONE}b", outbox.InvalidName),
    ("__", outbox.ReservedName),
    ("__outbox:mine", outbox.ReservedName),
]

# What publish and publish_many have in common.
BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"activate_in": timedelta(1), "activate_at": NEW_YEAR}, ValueError),
    ({"activate_in": timedelta(0), "activate_at": NEW_YEAR}, ValueError),
    ({"activate_at": NAIVE}, ValueError),
    ({"activate_at": datetime.max.replace(tzinfo=WEST)}, ValueError),
    ({"activate_at": datetime.min.replace(tzinfo=EAST)}, ValueError),
    ({"activate_in": timedelta.max}, ValueError),
    ({"activate_in": timedelta.min}, ValueError),
    ({"activate_in": timedelta(days=-365 * 3000)}, ValueError),
    ({"activate_in": 10**12}, ValueError),
    ({"activate_in": 10**400}, ValueError),
    ({"activate_in": float("nan")}, ValueError),
    ({"activate_in": float("inf")}, ValueError),
    ({"max_attempts": 0}, ValueError),
    ({"max_attempts": -1}, ValueError),
    ({"max_attempts": 1_000_001}, ValueError),
    ({"expires_in": 0}, ValueError),
    ({"expires_in": -1}, ValueError),
    ({"expires_in": timedelta(0)}, ValueError),
    ({"expires_in": timedelta(microseconds=-1)}, ValueError),
    ({"expires_in": timedelta.max}, ValueError),
    ({"expires_in": 1, "activate_at": datetime.max.replace(tzinfo=UTC)}, ValueError),
    ({"headers": {"a\x00b": "x"}}, ValueError),
    ({"headers": {"a": "x\x00y"}}, ValueError),
    ({"headers": {f"a{LONE}": "x"}}, ValueError),
    ({"headers": {"a": LONE}}, ValueError),
    ({"headers": {"a": 1}}, TypeError),
    ({"headers": {1: "a"}}, TypeError),
    ({"headers": {"a": None}}, TypeError),
    ({"headers": {"a": b"x"}}, TypeError),
    ({"headers": [("a", "x")]}, TypeError),
    ({"headers": {"content-type": "text/plain"}}, ValueError),
    ({"headers": {"Content-Type": "application/json"}}, ValueError),
]

BAD_TIMERS: list[dict[str, Any]] = [
    {"timer_id": ""},
    {"timer_id": "t" * 256},
    {"timer_id": "a\x00b"},
    {"timer_id": f"a{LONE}b"},
    {"timer_id": "t", "timer_conflict": "overwrite"},
    {"timer_id": "t", "timer_conflict": None},
    {"timer_conflict": "overwrite"},
    {"timer_conflict": "extend"},
    {"timer_conflict": "replace"},
]

Call = Callable[..., Any]


def publish(**options: Any) -> Any:
    return outbox.publish({}, **{"queue": "orders", **options})


def publish_many(**options: Any) -> Any:
    return outbox.publish_many([{}], **{"queue": "orders", **options})


def publish_none(**options: Any) -> Any:
    return outbox.publish_many([], **{"queue": "orders", **options})


def cancel_timer(**options: Any) -> Any:
    return outbox.cancel_timer(**{"queue": "orders", "timer_id": "t", **options})


def the_transaction_is_usable() -> bool:
    return outbox.publish({}, queue="orders") is not None and OutboxMessage.objects.count() == 1


def refuse(call: Call, options: dict[str, Any], error: type[Exception]) -> None:
    with without_sql(), pytest.raises(error):
        call(**options)
    assert the_transaction_is_usable()


@pytest.mark.parametrize("call", [publish, publish_many, publish_none, cancel_timer])
@pytest.mark.parametrize(("queue", "error"), BAD_NAMES)
def test_a_queue_that_cannot_be_named_is_refused(
    queue: str, error: type[Exception], call: Call
) -> None:
    refuse(call, {"queue": queue}, error)


@pytest.mark.parametrize(("queue", "error"), BAD_NAMES)
def test_a_publisher_to_a_queue_that_cannot_be_named_is_refused(
    queue: str, error: type[Exception]
) -> None:
    refuse(outbox.publisher, {"queue": queue}, error)


@pytest.mark.parametrize("call", [publish, publish_many])
@pytest.mark.parametrize(("options", "error"), BAD_OPTIONS)
def test_a_bad_option_is_refused(
    options: dict[str, Any], error: type[Exception], call: Call
) -> None:
    # D11
    refuse(call, options, error)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"activate_at": NAIVE}, ValueError),
        ({"max_attempts": 0}, ValueError),
        ({"expires_in": 0}, ValueError),
        ({"headers": {"a": 1}}, TypeError),
    ],
)
def test_a_bad_option_is_refused_even_when_there_is_nothing_to_publish(
    options: dict[str, Any], error: type[Exception]
) -> None:
    refuse(publish_none, options, error)


@pytest.mark.parametrize("options", BAD_TIMERS)
def test_a_bad_timer_is_refused(options: dict[str, Any]) -> None:
    refuse(publish, options, ValueError)


@pytest.mark.parametrize("timer_id", ["", "t" * 256, "a\x00b", f"a{LONE}b"])
def test_cancelling_a_bad_timer_is_refused(timer_id: str) -> None:
    refuse(cancel_timer, {"timer_id": timer_id}, ValueError)


@pytest.mark.parametrize("correlation_id", ["a\x00b", LONE, "c" * 256])
def test_a_correlation_id_that_cannot_be_stored_is_refused(correlation_id: str) -> None:
    refuse(publish, {"correlation_id": correlation_id}, ValueError)


@pytest.mark.parametrize("option", ["timer_id", "timer_conflict", "correlation_id"])
def test_many_messages_share_no_timer_and_no_correlation_id(option: str) -> None:
    refuse(publish_many, {option: "ignore"}, TypeError)


@pytest.mark.parametrize("headers", [{"a": 1}, {"a": "\x00"}, {"content-type": "text/plain"}])
def test_a_publishers_bad_headers_are_refused(headers: dict[str, Any]) -> None:
    def call() -> None:
        outbox.publisher("orders", headers=headers).publish({})

    refuse(call, {}, (TypeError, ValueError))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        outbox.InvalidName,
        outbox.ReservedName,
        outbox.PayloadError,
        outbox.PayloadTooLarge,
    ],
)
def test_errors_about_values_are_outbox_errors_and_value_errors(error: type[Exception]) -> None:
    assert issubclass(error, outbox.OutboxError)
    assert issubclass(error, ValueError)


def test_an_error_about_a_long_name_does_not_repeat_all_of_it() -> None:
    with pytest.raises(outbox.InvalidName) as caught:
        publish(queue="q" * 100_000)

    assert "100000" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_message_about_a_lone_surrogate_can_be_printed() -> None:
    with pytest.raises(outbox.InvalidName) as caught:
        publish(queue=LONE)

    assert str(caught.value).encode()
