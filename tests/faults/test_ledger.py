"""The ledger's triggers note what happens to messages, in the same transaction."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connection

from django_outbox import outbox
from tests.faults import ledger
from tests.faults.ledger import Ledger, Removed, Stored

pytestmark = pytest.mark.django_db

LEASE = """
UPDATE django_outbox_message
SET lease_token = %s, lease_expires_at = clock_timestamp() + %s * interval '1 second'
"""


@pytest.fixture(autouse=True)
def tables() -> None:
    with connection.cursor() as cursor:
        ledger.install(cursor)


def read() -> Ledger:
    with connection.cursor() as cursor:
        return ledger.read(cursor)


def lease(seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(LEASE, [uuid4(), seconds])


def test_every_message_and_every_new_content_of_a_timer_is_noted() -> None:
    plain, other = outbox.publish_many([{"key": "a"}, {"key": "b"}], queue="plain")
    timer = outbox.publish({"key": "c"}, queue="timer", timer_id="t", activate_in=5)
    assert timer is not None
    for key, seconds in (("later", 9), ("no later", 1)):
        outbox.publish(
            {"key": key}, queue="timer", timer_id="t", activate_in=seconds, timer_conflict="extend"
        )

    assert read().stored == [
        Stored(plain, "plain", "a", None, None),
        Stored(other, "plain", "b", None, None),
        Stored(timer, "timer", "c", None, None),
        Stored(timer, "timer", "later", None, None),
    ]


def test_a_removal_is_noted_with_whether_it_was_leased() -> None:
    cancelled = outbox.publish({"key": "a"}, queue="timer", timer_id="t")
    outbox.cancel_timer(queue="timer", timer_id="t")
    delivered = outbox.publish({"key": "b"}, queue="plain")
    assert cancelled is not None
    assert delivered is not None
    assert outbox.run_once("plain", lambda message: None)

    assert read().removed == [
        Removed(cancelled, had_lease=False),
        Removed(delivered, had_lease=True),
    ]


def test_a_lease_that_is_taken_while_another_stands_is_a_breach() -> None:
    id_ = outbox.publish({"key": "a"}, queue="plain")
    lease(60)
    assert read().breaches == []

    lease(60)

    assert [(one.message_id, one.what) for one in read().breaches] == [
        (id_, "leased while another lease stood")
    ]


def test_a_lease_that_is_taken_when_the_other_has_run_out_is_none() -> None:
    outbox.publish({"key": "a"}, queue="plain")
    lease(-1)
    lease(60)

    assert read().breaches == []


def test_a_lease_before_the_message_is_due_is_a_breach() -> None:
    id_ = outbox.publish({"key": "a"}, queue="plain", activate_in=60)
    lease(60)

    assert [(one.message_id, one.what) for one in read().breaches] == [
        (id_, "leased before it was due")
    ]


@pytest.mark.parametrize(
    ("queue", "error", "breaches"),
    [
        ("plain", "terminating connection", ["charged an attempt"]),
        ("plain", "could not extend file: No space left on device", []),
        ("retrying", "fails at first", []),
    ],
)
def test_an_attempt_charged_to_a_handler_that_never_fails_is_a_breach(
    queue: str, error: str, breaches: list[str]
) -> None:
    outbox.publish({"key": "a"}, queue=queue)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_outbox_message SET attempts_count = 1, last_error = %s", [error]
        )

    assert [one.what for one in read().breaches] == breaches


def test_a_journal_gives_back_what_was_written_up_to_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = ledger.Journal(path)
    journal.committed(["a", "b"])
    journal.rolled_back(["c"])
    with path.open("a") as file:
        file.write(json.dumps({"event": "committed", "keys": ["d"]}))

    assert journal.read("committed") == {"a", "b"}
    assert journal.read("rolled_back") == {"c"}
