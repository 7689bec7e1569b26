"""Publishing many messages in few statements."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .helpers import row, stored_payload, without_sql

pytestmark = pytest.mark.django_db


def test_ids_come_in_the_order_of_the_payloads() -> None:
    ids = outbox.publish_many([{"n": n} for n in range(100)], queue="orders")

    assert [stored_payload(id_) for id_ in ids] == [{"n": n} for n in range(100)]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize(("count", "statements"), [(1, 1), (10_000, 1), (10_001, 2), (20_001, 3)])
def test_there_is_one_statement_per_ten_thousand_rows(count: int, statements: int) -> None:
    with CaptureQueriesContext(connection) as queries:
        ids = outbox.publish_many(range(count), queue="orders")

    assert len(queries) == statements
    assert len(ids) == OutboxMessage.objects.count() == count
    payloads = OutboxMessage.objects.in_bulk(ids)
    assert [int(bytes(payloads[id_].payload)) for id_ in ids] == list(range(count))


def test_an_empty_iterable_runs_no_statement() -> None:
    with without_sql():
        assert outbox.publish_many([], queue="orders") == []
        assert outbox.publish_many(iter(()), queue="orders") == []


def test_a_generator_is_consumed_once() -> None:
    def payloads() -> Iterator[int]:
        yield from (1, 2, 3)

    ids = outbox.publish_many(payloads(), queue="orders")

    assert [stored_payload(id_) for id_ in ids] == [1, 2, 3]


def test_one_payload_that_cannot_be_encoded_stores_none() -> None:
    with without_sql(), pytest.raises(outbox.PayloadError):
        outbox.publish_many([*range(20_000), {1, 2}], queue="orders")

    assert not OutboxMessage.objects.exists()


def test_options_apply_to_every_message() -> None:
    ids = outbox.publish_many(
        [{}, b"raw"], queue="orders", headers={"tenant": "acme"}, expires_in=60, max_attempts=3
    )

    rows = [row(id_) for id_ in ids]
    assert [stored.headers for stored in rows] == [
        {"tenant": "acme", "content-type": "application/json"},
        {"tenant": "acme", "content-type": "application/octet-stream"},
    ]
    assert [stored.max_attempts for stored in rows] == [3, 3]
    for stored in rows:
        assert stored.expires_at is not None
        assert (stored.expires_at - stored.next_attempt_at).total_seconds() == 60


def test_bytes_and_json_may_be_mixed() -> None:
    payloads = [{"n": 1}, b"\x00raw", "text", b'{"n": 1}', None, bytearray(b"")]
    ids = outbox.publish_many(payloads, queue="orders", headers={"tenant": 'ac"me ü'})

    json, binary = "application/json", "application/octet-stream"
    assert [(bytes(row(id_).payload), row(id_).headers) for id_ in ids] == [
        (body, {"tenant": 'ac"me ü', "content-type": content_type})
        for body, content_type in [
            (b'{"n":1}', json),
            (b"\x00raw", binary),
            (b'"text"', json),
            (b'{"n": 1}', binary),
            (b"null", json),
            (b"", binary),
        ]
    ]


@pytest.mark.parametrize("conforming", ["on", "off"])
def test_backslashes_are_stored_whatever_strings_conform_to(conforming: str) -> None:
    payloads = [{"path": "C:\\new"}, b"\\x00\x00'", "\\"]
    with connection.cursor() as cursor:
        cursor.execute(f"SET standard_conforming_strings = {conforming}")
    try:
        ids = outbox.publish_many(payloads, queue="orders", headers={"path": "C:\\"})
        for payload in payloads:
            ids.append(outbox.publish(payload, queue="orders", headers={"path": "C:\\"}) or 0)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET standard_conforming_strings")

    bodies = [b'{"path":"C:\\\\new"}', b"\\x00\x00'", b'"\\\\"']
    assert [bytes(row(id_).payload) for id_ in ids] == bodies * 2
    assert {row(id_).headers["path"] for id_ in ids} == {"C:\\"}


def test_each_message_has_ids_of_its_own() -> None:
    ids = outbox.publish_many([{}, {}, {}], queue="orders")

    rows = [row(id_) for id_ in ids]
    assert len({stored.message_id for stored in rows}) == 3
    assert len({stored.correlation_id for stored in rows}) == 3
