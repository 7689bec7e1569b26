"""Payloads as people read them, and counts that stop."""

from __future__ import annotations

import json
import os

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test import Client

from django_outbox.admin.payloads import MOST_INDENTED, hex_dump, show

JSON = {"content-type": "application/json"}


def test_json_is_indented() -> None:
    shown = show(b'{"a":[1,2]}', JSON)

    assert shown.text == '{\n  "a": [\n    1,\n    2\n  ]\n}'
    assert (shown.is_text, shown.is_cut, shown.size) == (True, False, 11)


def test_bytes_are_a_hex_dump() -> None:
    shown = show(b"\x00\xffabc" + b"x" * 12, {"content-type": "application/octet-stream"})

    assert shown.text == (
        "00000000  00 ff 61 62 63 78 78 78 78 78 78 78 78 78 78 78  ..abcxxxxxxxxxxx\n"
        "00000010  78                                               x"
    )
    assert shown.is_text is False
    assert hex_dump(b"") == ""


@pytest.mark.parametrize("body", [b"{oops", b"\xff\xfe", b"NaN", b"[" * 100_000])
def test_what_is_called_json_and_is_none_is_a_hex_dump(body: bytes) -> None:
    assert show(body, JSON).text.startswith("00000000  ")


@pytest.mark.parametrize("headers", [None, [], {"content-type": 7}, {}, "text"])
def test_headers_of_any_shape_are_no_obstacle(headers: object) -> None:
    assert show(b"abc", headers).text.startswith("00000000  61 62 63")  # type: ignore[arg-type]


def test_text_is_text() -> None:
    assert show("tschüß".encode(), {"content-type": "text/plain; charset=utf-8"}).text == "tschüß"


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "image/png"])
def test_more_than_100_kb_are_cut(kind: str) -> None:
    shown = show(json.dumps(["x" * 200_000]).encode(), {"content-type": kind})

    assert (shown.is_cut, shown.size) == (True, 200_004)
    assert len(shown.text) < 500_000


@pytest.mark.parametrize("depth", [100, 400, 900])
def test_json_whose_indentation_would_fill_the_page_stays_as_it_is(depth: int) -> None:
    body = b"[" * depth + b",".join([b"1"] * 48_000) + b"]" * depth

    shown = show(body, JSON)

    assert len(shown.text) <= MOST_INDENTED
    assert shown.text == body.decode()


def test_a_lone_surrogate_stays_an_escape() -> None:
    assert show(b'["\\ud800"]', JSON).text == '[\n  "\\ud800"\n]'


def test_random_bytes_are_shown_whatever_they_are_called() -> None:
    for kind in ("application/json", "text/html", "application/octet-stream", "x"):
        assert show(os.urandom(500), {"content-type": kind}).size == 500


@pytest.mark.django_db
@pytest.mark.parametrize("thousands", [False, True])
def test_a_count_that_stopped_reads_so_also_where_thousands_are_grouped(
    superuser: Client, settings: LazySettings, thousands: bool
) -> None:
    settings.USE_THOUSAND_SEPARATOR = thousands
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_outbox_dead_letter (original_id, message_id, queue, payload,"
            " correlation_id, created_at, failure_reason) SELECT n, gen_random_uuid(), 'orders',"
            " '', 'c', now(), 'rejected' FROM generate_series(1, 10002) AS n"
        )

    page = superuser.get("/admin/django_outbox/deadletter/").content.decode()

    assert "10,000+ dead letters" in page
    assert "All 10,000+ selected" in page
    assert "1,0,0" not in page
