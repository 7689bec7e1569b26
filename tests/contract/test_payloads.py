"""What payloads may hold, how they are stored, and what is refused before any SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pydantic
import pytest
from django.conf import LazySettings
from django.db import connection, transaction
from django.utils.translation import gettext_lazy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage
from tests.testapp.models import Order

from .conftest import Drain
from .helpers import committed, row, stored_payload, without_sql

pytestmark = pytest.mark.django_db

MEBIBYTE = 1024 * 1024


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Basket:
    lines: list[Line]


class Customer(pydantic.BaseModel):
    name: str
    since: date


@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        0,
        -1.5,
        2**63,
        "",
        "text",
        [],
        {},
        [1, "two", None, [True]],
        {"a": {"b": [{"c": None}]}},
        "NUL \x00 inside",
        {"key \x00": "value \x00"},
        "the six characters \\u0000 as text",
        "emoji 😀 and ü and \u2028 and \x7f",
        "x" * 20_000,
        {"text": "ü" * 20_000},
    ],
)
def test_json_values_round_trip(payload: Any) -> None:
    # H01
    id_ = outbox.publish(payload, queue="orders")

    assert stored_payload(id_) == payload
    assert row(id_).headers == {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (UUID("12345678123456781234567812345678"), "12345678-1234-5678-1234-567812345678"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4, 5), "03:04:05"),
        (timedelta(days=1, seconds=2), "P1DT00H00M02S"),
        (Decimal("10.10"), "10.10"),
        (gettext_lazy("a lazy string"), "a lazy string"),
        ((1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}),
        (Line("A-1", Decimal("9.90")), {"sku": "A-1", "price": "9.90"}),
        (
            Basket([Line("A-1", Decimal("9.90"))]),
            {"lines": [{"sku": "A-1", "price": "9.90"}]},
        ),
        (Customer(name="Ada", since=date(2026, 1, 2)), {"name": "Ada", "since": "2026-01-02"}),
        (
            [Customer(name="Ada", since=date(2026, 1, 2))],
            [{"name": "Ada", "since": "2026-01-02"}],
        ),
    ],
)
def test_other_values_are_stored_in_their_documented_form(payload: Any, stored: Any) -> None:
    # H03
    id_ = outbox.publish({"value": payload}, queue="orders")

    assert stored_payload(id_) == {"value": stored}


@pytest.mark.parametrize("payload", [b"", b"\x00\xff\xfe", b"{}", bytes(range(256))])
def test_bytes_are_stored_verbatim(payload: bytes) -> None:
    stored = row(outbox.publish(payload, queue="orders"))

    assert bytes(stored.payload) == payload
    assert stored.headers == {"content-type": "application/octet-stream"}


def test_bytes_may_come_with_a_content_type_of_their_own() -> None:
    stored = row(outbox.publish(b"GIF", queue="orders", headers={"content-type": "image/gif"}))

    assert stored.headers == {"content-type": "image/gif"}


REFUSED: list[tuple[Any, str]] = [
    (float("nan"), "payload"),
    ({"a": [0, float("inf")]}, "payload['a'][1]"),
    ({"a": float("-inf")}, "payload['a']"),
    ({"tags": {1, 2}}, "payload['tags']"),
    ({"a": {"b": object()}}, "payload['a']['b']"),
    ([b"bytes"], "payload[0]"),
    ({"a": 1j}, "payload['a']"),
    ({"a": ["\ud800"]}, "payload['a'][0]"),
    ({"a": {"\udfff": 1}}, "payload['a']"),
    ({"a": {(1, 2): 3}}, "payload['a']"),
    ({"a": Line("\ud800", Decimal(1))}, "payload['a']['sku']"),
    ({"a": Order}, "payload['a']"),
    ({"a": Order(name="book")}, "payload['a']"),
    ({"a": time(1, tzinfo=UTC)}, "payload['a']"),
    ({"a": 10**5000}, "payload['a']"),
    ({"a": MappingProxyType({})}, "payload['a']"),
    ({"a": {1: "x", "1": "y"}}, "payload['a']"),
]


@pytest.mark.parametrize(("payload", "path"), REFUSED)
def test_what_json_cannot_carry_is_refused_with_its_path(payload: Any, path: str) -> None:
    # H03
    with without_sql(), pytest.raises(outbox.PayloadError) as caught:
        outbox.publish(payload, queue="orders")

    assert path in str(caught.value)
    assert str(caught.value).encode()  # a lone surrogate in it could not be printed
    assert outbox.publish({}, queue="orders") is not None


def itself() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def deep() -> Any:
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    return nest


@pytest.mark.parametrize("make", [itself, deep])
def test_what_never_ends_is_refused(make: Callable[[], Any]) -> None:
    with without_sql(), pytest.raises(outbox.PayloadError):
        outbox.publish(make(), queue="orders")


def test_a_business_row_can_be_written_after_a_payload_was_refused() -> None:
    # H01
    with transaction.atomic():
        with pytest.raises(outbox.PayloadError):
            outbox.publish({"a": "x\ud800y"}, queue="orders")
        Order.objects.create(name="book")

    assert Order.objects.count() == 1


def test_an_error_about_a_payload_does_not_show_the_payload() -> None:
    # L03
    with pytest.raises(outbox.PayloadError) as caught:
        outbox.publish({"token": "SECRET-XYZ", "tags": {"SECRET-XYZ"}}, queue="orders")

    assert "SECRET-XYZ" not in str(caught.value)


@pytest.mark.parametrize(
    "payload", [b"x" * MEBIBYTE, "x" * (MEBIBYTE - 2), "ü" * (MEBIBYTE // 2 - 1)]
)
def test_a_payload_of_one_mebibyte_is_stored(payload: Any) -> None:
    assert len(row(outbox.publish(payload, queue="orders")).payload) == MEBIBYTE


@pytest.mark.parametrize(
    "payload", [b"x" * (MEBIBYTE + 1), "x" * (MEBIBYTE - 1), "ü" * (MEBIBYTE // 2)]
)
def test_a_larger_payload_is_refused(payload: Any) -> None:
    with without_sql(), pytest.raises(outbox.PayloadTooLarge):
        outbox.publish(payload, queue="orders")
    with without_sql(), pytest.raises(outbox.PayloadTooLarge):
        outbox.publish_many([1, payload], queue="orders")


def test_the_limit_of_payloads_is_a_setting(settings: LazySettings) -> None:
    settings.OUTBOX = {"MAX_PAYLOAD_BYTES": 10}

    assert outbox.publish("x" * 8, queue="orders") is not None
    with pytest.raises(outbox.PayloadTooLarge, match="11"):
        outbox.publish("x" * 9, queue="orders")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(json_values)
def test_any_json_value_round_trips(payload: Any) -> None:
    assert stored_payload(outbox.publish(payload, queue="orders")) == payload


@committed
def test_a_handler_gets_what_was_published(drain: Drain) -> None:
    published = [
        {"a": "x\x00y", "😀": [1, None, {"b": 2.5}]},
        "the six characters \\u0000 as text",
        b"\x00\xff",
        {"text": "ü" * 20_000},
    ]
    received: list[Any] = []
    outbox.handler("orders")(lambda message: received.append(message.payload))
    with transaction.atomic():
        for payload in published:
            outbox.publish(payload, queue="orders")
    drain()

    assert sorted(received, key=repr) == sorted(published, key=repr)


@committed
@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"NaN", b'{"a": Infinity}', b"[" * 100_000])
def test_a_payload_that_cannot_be_decoded_is_buried_and_stops_no_other(
    drain: Drain, body: bytes
) -> None:
    # H05
    received: list[int] = []
    outbox.handler("orders")(lambda message: received.append(message.payload))
    with transaction.atomic():
        bad = outbox.publish(0, queue="orders")
        outbox.publish_many(range(1, 21), queue="orders")
    OutboxMessage.objects.filter(payload=b"0").update(payload=body)
    drain()

    assert sorted(received) == list(range(1, 21))
    letter = DeadLetter.objects.get()
    assert letter.original_id == bad
    assert letter.failure_reason == "invalid_payload"
    assert bytes(letter.payload) == body
    assert not OutboxMessage.objects.exists()


@committed
@pytest.mark.parametrize("headers", ["[]", "null", '{"content-type": 1}', '"text"'])
def test_headers_of_another_shape_stop_no_other_message(drain: Drain, headers: str) -> None:
    # H05
    received: list[int] = []
    outbox.handler("orders")(lambda message: received.append(message.payload))
    with transaction.atomic():
        bad = outbox.publish(0, queue="orders")
        outbox.publish_many(range(1, 21), queue="orders")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_outbox_message SET headers = %s::jsonb WHERE id = %s", [headers, bad]
        )
    drain()

    assert sorted(received) == list(range(1, 21))
    assert DeadLetter.objects.get().failure_reason == "invalid_payload"
