"""Array literals say to PostgreSQL what the values are."""

from __future__ import annotations

import math
from typing import Any

import pytest
from django.db import connection

from django_outbox.store.arrays import array_of_bytes, array_of_numbers, array_of_texts

pytestmark = pytest.mark.django_db


def read(literal: str, kind: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT %s::{kind}[]", [literal])
        found: list[Any] = cursor.fetchone()[0]
    return found


@pytest.mark.parametrize(
    "names",
    [
        ("orders",),
        ("orders", "refunds"),
        ("a,b", "{c}", "NULL", "null", ""),
        ('say "hi"', "back\\slash", '\\"', "\\\\", "it's", "$1 %s %(x)s"),
        (" spaced ", "new\nline", "tab\t", "ünïcode", "😀", "\x01"),
    ],
)
def test_texts_come_out_as_they_went_in(names: tuple[str, ...]) -> None:
    assert read(array_of_texts(names), "text") == list(names)


def test_numbers_come_out_as_they_went_in() -> None:
    moments = [-math.inf, 0.1 + 0.2, 1e-9, 1.7976931348623157e308, math.inf]
    assert read(array_of_numbers(moments), "float8") == moments
    assert read(array_of_numbers([-(2**63), 0, 2**63 - 1]), "bigint") == [-(2**63), 0, 2**63 - 1]


def test_bytes_come_out_as_they_went_in() -> None:
    bodies = [b"", b"\x00\xff", b"\\x00", b'"', bytes(range(256))]
    assert [bytes(body) for body in read(array_of_bytes(bodies), "bytea")] == bodies


def test_an_array_may_be_empty() -> None:
    assert read(array_of_bytes([]), "bytea") == []
    assert read(array_of_texts([]), "text") == []
    assert read(array_of_numbers([]), "bigint") == []
