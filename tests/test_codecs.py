"""Payloads to bytes and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import codecs, outbox
from django_outbox.errors import PayloadError
from django_outbox.payload_flaws import DEEPEST

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
)
anything = st.recursive(
    json_values
    | st.floats()
    | st.text(st.characters())  # lone surrogates too
    | st.dates()
    | st.uuids()
    | st.decimals()
    | st.binary()
    | st.complex_numbers()
    | st.sets(st.integers()),
    lambda below: (
        st.lists(below)
        | st.tuples(below, below)
        | st.dictionaries(st.text() | st.integers() | st.floats() | st.booleans(), below)
    ),
)


@given(json_values)
def test_json_round_trips(payload: Any) -> None:
    assert codecs.decode(*codecs.encode(payload)) == payload


@given(st.binary())
def test_bytes_round_trip(payload: bytes) -> None:
    assert codecs.encode(payload) == (payload, "application/octet-stream")
    assert codecs.decode(payload, "application/octet-stream") == payload


def refusal(function: Callable[..., Any], *arguments: Any) -> str | None:
    """Return what the function's error says, None if there is none."""
    try:
        function(*arguments)
    except outbox.OutboxError as error:
        return str(error)
    return None


@given(anything)
def test_anything_is_encoded_or_refused_with_its_path(payload: Any) -> None:
    if text := refusal(codecs.encode, payload):
        assert "payload" in text.split(" cannot be written")[0]
        assert text.encode()
    else:
        assert refusal(codecs.decode, *codecs.encode(payload)) is None


@given(st.binary())
def test_any_bytes_decode_or_are_an_invalid_payload(body: bytes) -> None:
    text = refusal(codecs.decode, body, "application/json")

    assert text is None or "JSON" in text


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        " application/json ",
        "application/cloudevents+json",
    ],
)
def test_json_is_known_by_its_content_type(content_type: str) -> None:
    assert codecs.decode(b'{"a": 1}', content_type) == {"a": 1}


@pytest.mark.parametrize("content_type", ["", "text/plain", "image/gif", "application/jsonp"])
def test_all_else_is_bytes(content_type: str) -> None:
    assert codecs.decode(b'{"a": 1}', content_type) == b'{"a": 1}'


@pytest.mark.parametrize("body", [b"\xff\xfesecret", b'{"token": "secret', b"secret"])
def test_an_error_about_a_body_does_not_quote_it(body: bytes) -> None:
    with pytest.raises(outbox.InvalidPayload) as caught:
        codecs.decode(body, "application/json")

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("depth", [DEEPEST - 1, DEEPEST, DEEPEST + 1, 900])
def test_what_can_be_published_can_be_read_and_what_is_deeper_is_refused(depth: int) -> None:
    payload: Any = []
    for _ in range(depth - 1):
        payload = [payload]

    if depth > DEEPEST:
        with pytest.raises(PayloadError, match="nested too deeply"):
            codecs.encode(payload)
    else:
        assert codecs.decode(*codecs.encode(payload)) == payload


def test_a_flaw_far_down_is_named_with_its_path() -> None:
    payload: Any = float("nan")
    for _ in range(DEEPEST):
        payload = [payload]

    with pytest.raises(PayloadError) as caught:
        codecs.encode(payload)

    path = "payload" + "[0]" * DEEPEST
    assert str(caught.value) == f"{path} cannot be written as JSON: nan is not a JSON number"


def test_what_is_made_into_another_of_its_kind_without_end_is_refused() -> None:
    class Endless:
        def model_dump(self, *, mode: str) -> Any:
            return Endless()

    with pytest.raises(PayloadError, match="nested too deeply"):
        codecs.encode(Endless())
