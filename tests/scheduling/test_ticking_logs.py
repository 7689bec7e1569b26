"""What a tick logs of what it has done, once that is committed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.db import transaction

from django_outbox.scheduling.ticking import tick
from tests.scheduling.helpers import committed, make_due, messages, schedule
from tests.support import session

pytestmark = committed

EVENTS = ("schedule_fired", "boundaries_skipped")


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "django_outbox")


def logged(caplog: pytest.LogCaptureFixture, *attributes: str) -> list[tuple[Any, ...]]:
    """Return the event, the level and these attributes of what was logged of fires."""
    return [
        (vars(record)["event"], record.levelname, *(vars(record).get(name) for name in attributes))
        for record in caplog.records
        if vars(record).get("event") in EVENTS
    ]


def test_each_fire_is_logged_with_its_boundary_and_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedule("report", "@every 1m")
    schedule("letters", "@every 1h", queue="letters")
    make_due("report", ago=90)
    make_due("letters")

    tick("default")

    assert sorted(logged(caplog, "schedule", "boundary", "id")) == sorted(
        (
            "schedule_fired",
            "DEBUG",
            message.headers["schedule"],
            message.headers["boundary"],
            message.id,
        )
        for message in messages()
    )
    assert len(messages()) == 3


def test_what_was_passed_over_is_logged_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    schedule("report", "@every 1m", catch_up="latest")
    make_due("report", ago=630)

    tick("default")

    assert logged(caplog, "schedule", "count") == [
        ("schedule_fired", "DEBUG", "report", None),
        ("boundaries_skipped", "INFO", "report", 10),
    ]
    assert "'report' has passed over missed boundaries: 10." in caplog.text


def test_no_payload_and_no_header_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    schedule("report", payload={"to": "secret"}, headers={"tenant": "secret"})
    make_due("report")

    tick("default")

    assert len(logged(caplog)) == 1
    assert not any("secret" in repr(vars(record)) for record in caplog.records)


def test_what_is_rolled_back_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    schedule("report")
    make_due("report")

    with transaction.atomic():
        assert tick("default") == 1
        transaction.set_rollback(True)

    assert logged(caplog) == []


def test_of_a_batch_in_which_the_database_refuses_one_the_others_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedule("good")
    schedule("bad")
    make_due("good")
    make_due("bad")
    with session() as other:
        other.execute(
            "ALTER TABLE django_outbox_message ADD CONSTRAINT no_bad"
            " CHECK (headers->>'schedule' <> 'bad')"
        )
        try:
            tick("default")
        finally:
            other.execute("ALTER TABLE django_outbox_message DROP CONSTRAINT no_bad")

    assert logged(caplog, "schedule") == [("schedule_fired", "DEBUG", "good")]
