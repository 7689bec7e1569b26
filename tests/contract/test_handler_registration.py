"""What cannot be a handler is said when it is registered, not when the first message comes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from typing_extensions import TypedDict

from django_outbox import handlers, outbox

pytestmark = pytest.mark.usefixtures("registry")


@dataclass
class OrderPlaced:
    order_id: int


class OrderDict(TypedDict):
    order_id: int


def handle(message: outbox.Message[Any]) -> None:
    pass


def handle_too(message: outbox.Message[Any]) -> None:
    pass


def handle_placed(message: outbox.Message[OrderPlaced]) -> None:
    pass


def handle_dict(message: outbox.Message[OrderDict]) -> None:
    pass


def generate(message: outbox.Message[Any]) -> Iterator[None]:
    yield


async def generate_later(message: outbox.Message[Any]) -> AsyncIterator[None]:
    yield


def test_a_second_handler_for_a_queue_is_refused_by_both_names(
    registry: handlers.Registry,
) -> None:
    outbox.handler("orders")(handle)
    with pytest.raises(ImproperlyConfigured) as caught:
        outbox.handler("refunds", "orders")(handle_too)

    for name in ("'orders'", f"{__name__}.handle", f"{__name__}.handle_too"):
        assert name in str(caught.value)
    assert list(registry) == ["orders"]


def test_the_same_function_twice_for_a_queue_is_refused() -> None:
    outbox.handler("orders")(handle)
    with pytest.raises(ImproperlyConfigured):
        outbox.handler("orders")(handle)


@pytest.mark.parametrize("function", [generate, generate_later])
def test_a_generator_is_refused(function: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="generator"):
        outbox.handler("orders")(function)


def test_a_decorator_without_a_queue_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="queue"):
        outbox.handler(handle)  # type: ignore[arg-type]
    with pytest.raises(ImproperlyConfigured, match="queue"):
        outbox.handler()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("retry", 5),
        ("retry", outbox.ConstantRetry),
        ("retry", None),
        ("max_deliveries", 0),
        ("max_deliveries", -1),
        ("max_deliveries", 1.5),
        ("max_deliveries", "20"),
        ("max_deliveries", None),
        ("lease_ttl", 0),
        ("lease_ttl", -1),
        ("lease_ttl", float("nan")),
        ("lease_ttl", float("inf")),
        ("lease_ttl", "60"),
        ("lease_ttl", None),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", float("nan")),
        ("timeout", "60"),
        ("atomic", "no"),
        ("atomic", None),
    ],
)
def test_a_bad_option_is_refused_by_its_name(option: str, value: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match=option):
        outbox.handler("orders", **{option: value})(handle)


def test_a_misspelt_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="retries"):
        outbox.handler("orders", retries=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("function", [handle_placed, handle_dict])
def test_a_typed_handler_without_pydantic_is_refused(
    monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    monkeypatch.delitem(sys.modules, "django_outbox.typed_payloads", raising=False)
    with pytest.raises(ImproperlyConfigured, match=r"django-outbox-pg\[pydantic\]"):
        outbox.handler("orders")(function)


def test_an_untyped_handler_needs_no_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    monkeypatch.delitem(sys.modules, "django_outbox.typed_payloads", raising=False)
    assert outbox.handler("orders")(handle) is handle


def test_a_typed_handler_with_pydantic_is_accepted(registry: handlers.Registry) -> None:
    outbox.handler("placed")(handle_placed)
    outbox.handler("dicts")(handle_dict)

    assert list(registry) == ["placed", "dicts"]


def test_a_strategy_of_ones_own_is_accepted() -> None:
    class Stubborn:
        def next_delay(
            self, *, attempt: int, elapsed: float, exception: BaseException
        ) -> float | None:
            return 1.0

    assert outbox.handler("orders", retry=Stubborn())(handle) is handle
