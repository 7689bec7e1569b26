"""What a handler's function, type and numbers can be, and what the system check says of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.exceptions import ImproperlyConfigured

from django_outbox import outbox

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = pytest.mark.usefixtures("registry")


def reported(id_: str) -> list[CheckMessage]:
    """Run all checks of the project and return those with the id."""
    return [message for message in run_checks() if message.id == id_]


def takes_nothing() -> None: ...


def takes_two(message: outbox.Message[Any], more: int) -> None: ...


def takes_a_keyword(*, message: outbox.Message[Any]) -> None: ...


async def takes_nothing_later() -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        takes_nothing,
        takes_two,
        takes_a_keyword,
        takes_nothing_later,
        lambda: None,
        functools.partial(takes_two),
    ],
)
def test_a_function_that_cannot_be_called_with_a_message_is_refused(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(ImproperlyConfigured, match="message as its only argument"):
        outbox.handler("orders")(function)


class Handling:
    """A class whose instances handle messages."""

    def __init__(self, message: Any = None) -> None: ...

    def __call__(self, message: outbox.Message[Any]) -> None: ...

    def method(self, message: outbox.Message[Any]) -> None: ...


def test_a_class_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="is a class"):
        outbox.handler("orders")(Handling)


@pytest.mark.parametrize("function", [None, 7, "orders"])
def test_what_cannot_be_called_is_refused(function: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="callable"):
        outbox.handler("orders")(function)


@pytest.mark.parametrize(
    "function",
    [
        Handling(),
        Handling().method,
        functools.partial(takes_two, more=1),
        lambda message, more=1: None,
        lambda *args: None,
        [].append,
    ],
)
def test_anything_that_takes_a_message_is_a_handler(function: Any) -> None:
    assert outbox.handler("orders")(function) is function


@pytest.mark.parametrize("lease_ttl", [0.099, 0.05, 1e-9])
def test_a_lease_too_short_to_be_renewed_is_refused(lease_ttl: float) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"lease_ttl .* 0\.1 at the least"):
        outbox.handler("orders", lease_ttl=lease_ttl)


def test_the_shortest_lease_is_a_tenth_of_a_second() -> None:
    outbox.handler("orders", lease_ttl=0.1)(Handling())


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (outbox.ConstantRetry, "delay_seconds"),
        (lambda value: outbox.LinearRetry(value, 1), "initial_delay_seconds"),
        (lambda value: outbox.LinearRetry(1, value), "step_seconds"),
        (outbox.ExponentialRetry, "initial_delay_seconds"),
        (lambda value: outbox.ExponentialRetry(multiplier=value), "multiplier"),
        (lambda value: outbox.ExponentialRetry(max_delay_seconds=value), "max_delay_seconds"),
        (lambda value: outbox.NoRetry(jitter_factor=value), "jitter_factor"),
        (
            lambda value: outbox.ConstantRetry(1, max_total_delay_seconds=value),
            "max_total_delay_seconds",
        ),
        (lambda value: outbox.ConstantRetry(1, max_attempts=value), "max_attempts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("value", ["5", timedelta(seconds=5), True, [5]], ids=repr)
def test_an_argument_of_a_strategy_that_is_no_number_is_a_type_error(
    make: Callable[[Any], Any], named: str, value: Any
) -> None:
    with pytest.raises(TypeError, match=named):
        make(value)


@pytest.mark.parametrize("value", [1.5, 3.0])
def test_attempts_are_whole_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match="max_attempts"):
        outbox.ConstantRetry(1, max_attempts=value)


def test_e004_a_message_of_a_type_that_is_not_there_at_run_time() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Decimal]) -> None: ...

    (error,) = reported("django_outbox.E004")
    assert "Decimal" in error.msg
    assert "test_handler_functions" in error.msg


def test_a_type_that_is_defined_further_down_is_no_error() -> None:
    outbox.handler("orders")(handle_later)

    assert reported("django_outbox.E004") == []


def handle_later(message: outbox.Message[Later]) -> None: ...


Later = dict[str, int]


def test_w002_a_strategy_that_tries_more_often_than_the_message_may_be_delivered() -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(1, max_attempts=21))
    def handle(message: outbox.Message[Any]) -> None: ...

    (warning,) = reported("django_outbox.W002")
    assert "21 attempts" in warning.msg
    assert "max_deliveries=20" in warning.msg


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retry": outbox.ConstantRetry(1, max_attempts=20)},
        {"retry": outbox.ConstantRetry(1)},
        {"retry": outbox.ConstantRetry(1, max_attempts=50), "max_deliveries": 50},
    ],
    ids=str,
)
def test_w002_is_silent_where_the_strategy_has_the_last_word(options: dict[str, Any]) -> None:
    @outbox.handler("orders", **options)
    def handle(message: outbox.Message[Any]) -> None: ...

    assert reported("django_outbox.W002") == []
