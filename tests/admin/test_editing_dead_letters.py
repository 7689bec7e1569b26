"""Editing the payload of a dead letter and replaying it, both or neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils.html import escape
from pydantic import BaseModel

from django_outbox import handlers, outbox
from django_outbox.models import DeadLetter, OutboxMessage

pytestmark = pytest.mark.django_db

LIST = reverse("admin:django_outbox_deadletter_changelist")
HOSTILE = "<script>alert(1)</script>\"><img src=x onerror='alert(2)'></textarea>"

MakeLetter = Callable[..., DeadLetter]


@pytest.fixture(autouse=True)
def no_handlers(registry: handlers.Registry) -> None:
    """Leave out what the example project handles."""


def url_of(letter: DeadLetter) -> str:
    return reverse("admin:django_outbox_deadletter_edit", args=[letter.pk])


def offered(client: Client, letter: DeadLetter) -> str:
    """Return the text that the form shows."""
    response = client.get(url_of(letter))
    assert response.status_code == 200
    text: str = response.context["form"]["payload"].value()
    return text


def send(client: Client, letter: DeadLetter, text: str) -> Any:
    """Post a payload with the line breaks of a browser."""
    lines = text.replace("\r\n", "\n").replace("\n", "\r\n")
    return client.post(url_of(letter), {"payload": lines})


def refused(client: Client, letter: DeadLetter, text: str) -> str:
    """Post a payload that is refused; return the error on the field."""
    response = send(client, letter, text)
    assert response.status_code == 200
    form = response.context["form"]
    assert form["payload"].value() == text.replace("\n", "\r\n")
    assert DeadLetter.objects.get() == letter
    assert bytes(DeadLetter.objects.get().payload) == bytes(letter.payload)
    assert not OutboxMessage.objects.exists()
    assert not LogEntry.objects.exists()
    (error,) = form.errors["payload"]
    return str(error)


def told(client: Client) -> list[str]:
    return [str(message) for message in client.get(LIST).context["messages"]]


def test_an_edited_letter_is_a_message_with_the_new_payload(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter(payload=b'{"n": 1}', original_id=42)
    response = send(superuser, letter, '{"n": 2,\n "who": "J\u00f6rg"}')

    assert response["Location"] == LIST
    message = OutboxMessage.objects.get()
    assert bytes(message.payload) == '{"n":2,"who":"J\u00f6rg"}'.encode()
    assert message.headers == letter.headers
    assert message.message_id == letter.message_id
    assert not DeadLetter.objects.exists()
    what = "Edited the payload (8 to 21 bytes) and replayed"
    assert told(superuser) == [f"{what} orders #42 (retries exhausted)."]
    entry = LogEntry.objects.get()
    assert entry.object_id == str(letter.pk)
    assert entry.change_message == f"{what} message {letter.message_id}."


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"a":[1,2.5,null,"\xc3\xb6\\u0000\\n"]}', "application/json"),
        (b'"\xf0\x9f\x92\xa1"', "application/cloudevents+json; charset=utf-8"),
        (b'{"amount": 12345678901234567890.10, "n": 1E2}', "application/json"),
        (b'{"twice": 1, "twice": 2}', "application/json"),
        (b"\nunix\nlines\n\n", "text/plain"),
        (b"dos\r\nlines\r\n", "text/csv"),
        (b"mixed\r\nlines\n", "text/plain"),
        (b"old\rlines", "text/plain"),
        (b"nul\x00", "text/plain"),
        (b"\xff\xfe", "text/plain"),
        (b"", "text/plain"),
        (b"", "application/octet-stream"),
        (b"\x00\xff" * 100, "application/octet-stream"),
        (b"{", "image/gif"),
    ],
)
def test_what_is_not_edited_is_replayed_as_it_was(
    superuser: Client, make_letter: MakeLetter, body: bytes, kind: str
) -> None:
    letter = make_letter(payload=body, headers={"content-type": kind})
    response = send(superuser, letter, offered(superuser, letter))

    assert response.status_code == 302
    assert bytes(OutboxMessage.objects.get().payload) == body


def test_json_is_offered_indented(superuser: Client, make_letter: MakeLetter) -> None:
    letter = make_letter(payload=b'{"n":1,"who":"J\xc3\xb6rg"}')

    assert offered(superuser, letter) == '{\n  "n": 1,\n  "who": "J\u00f6rg"\n}'


def test_json_that_is_nested_deep_is_offered_as_it_is(
    superuser: Client, make_letter: MakeLetter
) -> None:
    body = b"[" * 90 + b",".join([b"1"] * 40_000) + b"]" * 90
    letter = make_letter(payload=body)
    assert offered(superuser, letter) == body.decode()

    send(superuser, letter, body.decode())
    assert bytes(OutboxMessage.objects.get().payload) == body


def test_text_that_claims_to_be_json_is_offered_to_be_repaired(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter(payload=b'{"n": 1')
    assert offered(superuser, letter) == '{"n": 1'

    send(superuser, letter, '{"n": 1}')
    assert bytes(OutboxMessage.objects.get().payload) == b'{"n":1}'


def test_bytes_are_offered_as_hexadecimal_digits(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter(payload=bytes(range(34)), headers={"content-type": "image/gif"})

    assert offered(superuser, letter) == (
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n2021"
    )


def test_bytes_may_be_typed_with_spaces(superuser: Client, make_letter: MakeLetter) -> None:
    letter = make_letter(payload=b"\x00", headers={"content-type": "image/gif"})
    send(superuser, letter, "DE ad\nbe ef")

    assert bytes(OutboxMessage.objects.get().payload) == b"\xde\xad\xbe\xef"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"n": 1,\n "m": }', "Expecting value: line 2 column 7 (char 15)"),
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("NaN", "NaN is not JSON"),
        ("[" * 100_000, "The payload is not valid JSON: "),
        ('"\\ud800"', "lone surrogate"),
    ],
)
def test_what_is_not_json_is_refused_and_says_where(
    superuser: Client, make_letter: MakeLetter, text: str, where: str
) -> None:
    assert where in refused(superuser, make_letter(), text)


def test_the_error_of_json_that_is_nested_too_deep_is_short(
    superuser: Client, make_letter: MakeLetter
) -> None:
    error = refused(superuser, make_letter(), "[" * 900 + "1" + "]" * 900)

    assert len(error) < 450
    assert " … " in error


@pytest.mark.parametrize("text", ["0", "0g", "\u0663\u0663", "zz"])
def test_what_is_not_hexadecimal_is_refused(
    superuser: Client, make_letter: MakeLetter, text: str
) -> None:
    letter = make_letter(payload=b"\x00", headers={"content-type": "image/gif"})

    assert "Bytes are written as hexadecimal digits" in refused(superuser, letter, text)


def test_a_payload_that_is_too_large_is_refused(
    superuser: Client, make_letter: MakeLetter, settings: LazySettings
) -> None:
    settings.OUTBOX = {"MAX_PAYLOAD_BYTES": 1000}
    letter = make_letter()

    assert refused(superuser, letter, json.dumps("x" * 999)) == (
        "The payload has 1,001 bytes, more than the 1,000 that OUTBOX['MAX_PAYLOAD_BYTES'] allows."
    )
    assert send(superuser, letter, json.dumps("x" * 998)).status_code == 302


@pytest.mark.parametrize("kind", ["application/json", "application/octet-stream"])
def test_a_payload_of_the_largest_size_can_be_edited(
    superuser: Client, make_letter: MakeLetter, kind: str
) -> None:
    body = json.dumps("<" * (2**20 - 2)).encode()
    letter = make_letter(payload=body, headers={"content-type": kind})
    send(superuser, letter, offered(superuser, letter))

    assert bytes(OutboxMessage.objects.get().payload) == body


class Order(BaseModel):
    order_id: int


def test_what_the_handler_of_the_queue_could_not_read_is_refused(
    superuser: Client, make_letter: MakeLetter
) -> None:
    @outbox.handler("orders")
    def ship(message: outbox.Message[Order]) -> None: ...

    letter = make_letter(failure_reason="invalid_payload")
    error = refused(superuser, letter, '{"order_id": "seven"}')
    assert "ship could not read it. The payload does not fit Order: order_id: " in error
    assert "seven" not in error

    assert send(superuser, letter, '{"order_id": 7}').status_code == 302
    assert bytes(OutboxMessage.objects.get().payload) == b'{"order_id":7}'


def test_a_handler_without_a_type_reads_anything(
    superuser: Client, make_letter: MakeLetter
) -> None:
    @outbox.handler("orders")
    def ship(message: outbox.Message[Any]) -> None: ...

    assert send(superuser, make_letter(), "[]").status_code == 302


def test_a_letter_whose_timer_lives_keeps_its_payload(
    superuser: Client, make_letter: MakeLetter
) -> None:
    outbox.publish({}, queue="orders", timer_id="t", activate_in=60)
    letter = make_letter(timer_id="t", original_id=42)
    response = send(superuser, letter, '{"n": 2}')

    assert response["Location"] == reverse(
        "admin:django_outbox_deadletter_change", args=[letter.pk]
    )
    assert bytes(DeadLetter.objects.get().payload) == b'{"n": 1}'
    assert OutboxMessage.objects.count() == 1
    assert not LogEntry.objects.exists()
    (message,) = told(superuser)
    assert message.startswith("Skipped, and nothing was changed: a live timer")


@pytest.mark.django_db(transaction=True)
def test_a_letter_that_is_replayed_in_the_midst_of_it_is_not_replayed_twice(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter()

    def replay_elsewhere() -> None:
        try:
            assert DeadLetter.objects.filter(pk=letter.pk).replay().replayed == 1
        finally:
            connection.close()

    def be_too_late(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if sql.lstrip().startswith("UPDATE django_outbox_dead_letter"):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(replay_elsewhere).result(10)
        return execute(sql, *args)

    with connection.execute_wrapper(be_too_late):
        send(superuser, letter, '{"n": 2}')

    (message,) = told(superuser)
    assert message.startswith(f"Nothing was done: the dead letter {letter.pk} is gone.")
    assert bytes(OutboxMessage.objects.get().payload) == b'{"n": 1}'
    assert not LogEntry.objects.exists()


def test_hostile_text_is_text_in_the_form(superuser: Client, make_letter: MakeLetter) -> None:
    letter = make_letter(
        queue=HOSTILE,
        payload=HOSTILE.encode(),
        headers={"content-type": f"text/plain; {HOSTILE}"},
    )
    page = superuser.get(url_of(letter)).content.decode()

    assert page.count(escape(HOSTILE)) >= 3
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert page.count("</textarea>") == 1
