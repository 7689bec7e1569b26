"""Any stored bytes and headers are a payload, or an invalid payload whose error quotes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from django_outbox import codecs, handlers, outbox
from django_outbox.messages import content_type, parse_headers

SECRET = "SECRET-XYZ"


@dataclass
class Order:
    order_id: int
    lines: list[str]


def handle(message: outbox.Message[Order]) -> None: ...


typed = handlers._decoder_for(handle)

texts = st.text(st.characters(), max_size=50)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just(SECRET),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(texts | st.sampled_from(["order_id", "lines"]), below, max_size=3)
    ),
    max_leaves=8,
)
bodies = st.binary(max_size=100) | json_values.map(
    lambda value: json.dumps(value).encode(errors="surrogatepass")
)
kinds = texts | st.sampled_from(
    ["application/json", "application/json; charset=utf-16", "a/b+json", "+json", ";", "text/json"]
)


def refusal(function: Any, *arguments: Any) -> str | None:
    try:
        function(*arguments)
    except outbox.InvalidPayload as error:
        return str(error)
    return None


@given(bodies, kinds)
@example(b"[" * 100_000, "application/json")
@example(b"1" * 5_000, "application/json")
@example(b'"\\ud800"', "application/json")
@example("\ufeff{}".encode(), "application/json")
@example("{}".encode("utf-16"), "application/json")
def test_any_body_of_any_type(body: bytes, kind: str) -> None:
    for decode in (codecs.decode, typed):
        said = refusal(decode, body, kind)
        assert said is None or (SECRET not in said and said.encode() and len(said) < 10_000)


@given(texts | json_values.map(json.dumps))
@example("[" * 100_000)
@example('{"a": ' + "9" * 5_000 + "}")
@example('{"content-type": null}')
def test_any_headers(text: str) -> None:
    said = refusal(parse_headers, text)

    if said is None:
        headers = parse_headers(text)
        assert all(isinstance(value, str) for value in headers.values())
        assert isinstance(content_type(headers), str)
    else:
        assert said == "The headers column must hold an object of strings."
