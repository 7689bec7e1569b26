"""`outbox_status`: the table for people, and the JSON for machines."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from django_outbox import handlers, outbox
from django_outbox.management.commands import outbox_status
from django_outbox.models import DeadLetter, Lease, OutboxMessage, Schedule
from tests.process.stage import ROOT, url_of_the_test_database
from tests.support import committed
from tests.support import publish as publish_committed

from .helpers import PATIENCE, claim, database_clock, fail

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("served")]

MakeLetter = Callable[..., DeadLetter]


@pytest.fixture
def served(registry: handlers.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command see the handlers of the test only."""
    monkeypatch.setattr(outbox_status, "registry", registry)


def serve(*queues: str) -> None:
    """Register a handler for these queues."""

    @outbox.handler(*queues)
    def handle(message: outbox.Message[Any]) -> None: ...


def status(*arguments: str, **options: Any) -> str:
    """Run the command and return what it says."""
    said = io.StringIO()
    call_command("outbox_status", *arguments, stdout=said, **options)
    return said.getvalue()


def as_json(*arguments: str) -> dict[str, dict[str, Any]]:
    """Run the command with --json and return its queues by name."""
    queues = json.loads(status("--json", *arguments))["queues"]
    return {queue.pop("queue"): queue for queue in queues}


def fill(queue: str, make_letter: MakeLetter) -> None:
    """Have one message leased, two retrying, three scheduled, four ready, and five letters."""
    outbox.publish({}, queue=queue)
    claim(queue)
    outbox.publish_many([{}] * 2, queue=queue)
    for claimed in claim(queue, limit=2):
        fail(claimed, delay=60)
    outbox.publish_many([{}] * 3, queue=queue, activate_in=60)
    outbox.publish_many([{}] * 4, queue=queue)
    for _ in range(5):
        make_letter(queue=queue)


class TestJSON:
    def test_each_state_has_its_count(self, make_letter: MakeLetter) -> None:
        serve("orders")
        fill("orders", make_letter)

        counts = as_json()["orders"]

        seconds = counts.pop("oldest_ready_seconds")
        assert counts == {
            "has_handler": True,
            "ready": 4,
            "leased": 1,
            "scheduled": 3,
            "retrying": 2,
            "dead": 5,
        }
        assert 0 <= seconds < PATIENCE

    def test_it_names_the_database_and_lists_the_queues_in_order(self) -> None:
        serve("orders", "mail")
        outbox.publish({}, queue="refunds")

        report = json.loads(status("--json"))

        assert report["database"] == "default"
        assert [queue["queue"] for queue in report["queues"]] == ["mail", "orders", "refunds"]

    def test_the_age_is_that_of_the_oldest_ready_message(self) -> None:
        now = database_clock()
        for hours in (1, 3, 2):
            outbox.publish({}, queue="orders", activate_at=now - timedelta(hours=hours))

        seconds = as_json()["orders"]["oldest_ready_seconds"]

        assert 3 * 3600 <= seconds < 3 * 3600 + PATIENCE

    def test_where_nothing_is_ready_there_is_no_age(self) -> None:
        outbox.publish({}, queue="orders", activate_in=60)

        assert as_json()["orders"]["oldest_ready_seconds"] is None

    def test_a_message_whose_lease_has_run_out_is_ready(self) -> None:
        outbox.publish({}, queue="orders")
        claim("orders")
        OutboxMessage.objects.update(lease_expires_at=database_clock() - timedelta(seconds=1))

        counts = as_json()["orders"]

        assert (counts["ready"], counts["leased"]) == (1, 0)

    def test_the_queue_of_a_named_outbox_needs_no_handler(self) -> None:
        outbox.named("mail").enqueue(1)

        assert as_json()["__outbox:mail"]["has_handler"] is None
        assert "No handler" not in status()

    @pytest.mark.parametrize(
        ("queue", "has_handler"), [("served", True), ("messages", False), ("letters", False)]
    )
    def test_a_queue_has_an_entry_for_each_of_three_reasons(
        self, make_letter: MakeLetter, queue: str, has_handler: bool
    ) -> None:
        serve("served")
        outbox.publish({}, queue="messages", activate_in=60)
        make_letter(queue="letters")

        assert as_json()[queue]["has_handler"] is has_handler

    def test_an_outbox_of_nothing_has_no_queues(self) -> None:
        report = json.loads(status("--json"))

        assert report == {"database": "default", "queues": [], "schedules": [], "leader": None}

    @pytest.mark.parametrize("name", ["q é 😀", "a\nb", "\x1b[2J", '"quoted"', "\u202edesrever"])
    def test_any_name_of_a_queue_comes_through(self, name: str) -> None:
        outbox.publish({}, queue=name)

        text = status("--json")

        assert text.isascii()
        assert [queue["queue"] for queue in json.loads(text)["queues"]] == [name]

    @pytest.mark.django_db(databases=["default", "orders"])
    def test_database_names_whose_outbox_is_meant(self) -> None:
        OutboxMessage(queue="there", payload=b"1").save(using="orders")
        outbox.publish({}, queue="here")

        assert list(as_json("--database", "orders")) == ["there"]

    @pytest.mark.parametrize("moment", ["infinity", "-infinity"])
    @pytest.mark.parametrize("column", ["next_attempt_at", "first_attempt_at", "created_at"])
    def test_a_row_with_an_infinite_moment_is_counted_too(self, column: str, moment: str) -> None:
        outbox.publish({}, queue="orders")
        set_by_hand(column, moment)

        counts = as_json()["orders"]

        assert counts["ready"] + counts["scheduled"] == 1
        assert "orders" in status()


def set_by_hand(column: str, moment: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE django_outbox_message SET {column} = %s", [moment])


class TestTable:
    def test_each_queue_has_a_line_of_counts(self, make_letter: MakeLetter) -> None:
        serve("orders", "mail")
        fill("orders", make_letter)

        head, *lines = status().splitlines()

        assert head.split() == [
            "queue",
            "ready",
            "leased",
            "scheduled",
            "retrying",
            "dead",
            "oldest",
            "ready",
        ]
        assert lines[0].split() == ["mail", "0", "0", "0", "0", "0", "-"]
        assert lines[1].split()[:6] == ["orders", "4", "1", "3", "2", "5"]
        assert len(lines) == 2

    @pytest.mark.parametrize(
        ("age", "shown"),
        [
            (timedelta(minutes=3), "3.0 min"),
            (timedelta(hours=5), "5.0 h"),
            (timedelta(days=2), "2.0 d"),
        ],
    )
    def test_the_age_is_in_the_unit_that_suits_it(self, age: timedelta, shown: str) -> None:
        outbox.publish({}, queue="orders", activate_at=database_clock() - age)

        assert status().splitlines()[1].endswith(shown)

    def test_messages_that_nobody_here_serves_are_pointed_out(
        self, make_letter: MakeLetter
    ) -> None:
        serve("orders")
        for queue in ("orders", "forgotten"):
            outbox.publish({}, queue=queue)
        make_letter(queue="letters only")

        said = status()

        assert "No handler is registered here for 'forgotten'." in said
        assert said.count("No handler") == 1

    def test_an_outbox_of_nothing_says_so(self) -> None:
        assert status() == "The outbox is empty, and no handler is registered.\n"

    @pytest.mark.parametrize("name", ["a\nb", "a\rb", "\x1b[2J", "\u202edesrever", "a\u2028b"])
    def test_a_name_cannot_play_tricks_on_the_terminal(self, name: str) -> None:
        serve(name)
        outbox.publish({}, queue=name)

        said = status()

        assert len(said.splitlines()) == 2
        assert name not in said


@committed
def test_any_name_can_be_shown_on_a_terminal_of_ascii() -> None:
    publish_committed(queue="q é 😀")

    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "outbox_status"],
        env={
            **os.environ,
            "DATABASE_URL": url_of_the_test_database(),
            "DJANGO_SETTINGS_MODULE": "tests.settings_worker",
            "PYTHONIOENCODING": "ascii",
            "PYTHONUTF8": "0",
        },
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stderr.decode()
    assert rb"q \xe9 \U0001f600" in done.stdout


class TestSchedules:
    def test_machines_read_how_each_one_stands_and_who_leads(self) -> None:
        outbox.schedule("nightly", "@cron 0 3 * * * Asia/Kolkata", queue="reports")
        now = database_clock()
        Schedule.objects.update(
            next_run_at=datetime(2027, 1, 31, 21, 30, tzinfo=UTC),
            last_run_at=datetime(2027, 1, 30, 21, 30, tzinfo=UTC),
            last_error="no",
            skipped_count=3,
        )
        Lease.objects.create(
            name="__scheduler", owner="me", acquired_at=now, expires_at=now + timedelta(seconds=9)
        )

        report = json.loads(status("--json"))

        assert report["leader"] == "me"
        assert report["schedules"] == [
            {
                "schedule": "nightly",
                "spec": "@cron 0 3 * * * Asia/Kolkata",
                "timezone": "Asia/Kolkata",
                "queue": "reports",
                "enabled": True,
                "next_run_at": "2027-01-31T21:30:00+00:00",
                "last_run_at": "2027-01-30T21:30:00+00:00",
                "last_error": "no",
                "skipped_count": 3,
            }
        ]

    def test_people_read_when_it_fires_what_is_wrong_and_that_nobody_leads(self) -> None:
        outbox.schedule("nightly", "@every 1d", queue="reports")
        outbox.schedule("off", "@every 1d", queue="reports", enabled=False)
        Schedule.objects.filter(name="nightly").update(
            next_run_at=datetime(2027, 1, 31, 21, 30, tzinfo=UTC), last_error="no\x1b[2J"
        )

        said = status()

        lines = [line.split() for line in said.splitlines()]
        assert ["schedule", "spec", "queue", "next", "last", "skipped"] in lines
        assert ["nightly", "@every", "1d", "reports", "2027-01-31", "21:30:00Z", "-", "0"] in lines
        assert ["off", "@every", "1d", "reports", "disabled", "-", "0"] in lines
        assert "nightly: 'no\\x1b[2J'" in said
        assert "No scheduler leads" in said
        assert "\x1b[2J" not in said

    def test_without_schedules_nothing_is_said_of_them(self) -> None:
        serve("orders")

        assert "schedule " not in status()
        assert json.loads(status("--json"))["schedules"] == []
        assert json.loads(status("--json"))["leader"] is None

    def test_a_moment_that_no_calendar_holds_is_shown_as_its_end(self) -> None:
        outbox.schedule("never", "@every 1d", queue="reports")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE django_outbox_schedule SET next_run_at = 'infinity'")

        assert "9999-12-31 23:59:59Z" in status()
