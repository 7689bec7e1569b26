"""`outbox_replay`: which dead letters it chooses, and what it says of them."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage

from .helpers import database_clock

pytestmark = pytest.mark.django_db

MakeLetter = Callable[..., DeadLetter]
NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


def replay(*arguments: str) -> str:
    """Run the command and return what it says."""
    said = io.StringIO()
    call_command("outbox_replay", *arguments, stdout=said, stderr=io.StringIO())
    return said.getvalue()


def live() -> list[str]:
    """Return the payloads of the messages that are live, in the order of their ids."""
    return [bytes(message.payload).decode() for message in OutboxMessage.objects.order_by("id")]


def dead() -> list[str]:
    """Return the payloads of the letters that are left."""
    return [bytes(letter.payload).decode() for letter in DeadLetter.objects.order_by("id")]


class TestChoosing:
    def test_letters_are_named_by_their_ids(self, make_letter: MakeLetter) -> None:
        first, _, third = (make_letter(payload=text) for text in (b"1", b"2", b"3"))

        said = replay(str(first.pk), str(third.pk))

        assert live() == ["1", "3"]
        assert dead() == ["2"]
        assert said == "Replayed 2 dead letter(s).\n"

    @pytest.mark.parametrize("write", [str, lambda id_: id_.hex], ids=["dashes", "none"])
    def test_letters_are_named_by_their_message_ids(
        self, make_letter: MakeLetter, write: Callable[[Any], str]
    ) -> None:
        letter = make_letter(payload=b"1")
        make_letter(payload=b"2")

        replay(write(letter.message_id))

        assert live() == ["1"]
        assert OutboxMessage.objects.get().message_id == letter.message_id

    def test_ids_and_message_ids_may_be_mixed(self, make_letter: MakeLetter) -> None:
        first, second = make_letter(payload=b"1"), make_letter(payload=b"2")
        make_letter(payload=b"3")

        replay(str(first.pk), str(second.message_id))

        assert live() == ["1", "2"]

    def test_an_id_that_is_not_there_replays_nothing(self, make_letter: MakeLetter) -> None:
        letter = make_letter(payload=b"1")

        assert replay(str(letter.pk + 1), str(uuid4())) == "Replayed 0 dead letter(s).\n"
        assert dead() == ["1"]

    @pytest.mark.parametrize("id_", ["x", "1.5", "12ab", "9" * 19, "9" * 5000, "½", ""])
    def test_what_cannot_be_an_id_is_refused(self, make_letter: MakeLetter, id_: str) -> None:
        make_letter(payload=b"1")

        with pytest.raises(CommandError, match="neither the id of a dead letter"):
            replay(id_)
        assert dead() == ["1"]

    def test_queue_chooses_by_queue(self, make_letter: MakeLetter) -> None:
        make_letter(payload=b"1", queue="orders")
        make_letter(payload=b"2", queue="refunds")

        replay("--queue", "refunds")

        assert live() == ["2"]
        assert dead() == ["1"]

    @pytest.mark.parametrize("queue", ["a\x00b", "\udcff"], ids=ascii)
    def test_a_queue_that_cannot_be_is_refused(self, queue: str) -> None:
        with pytest.raises(CommandError, match="--queue"):
            replay("--queue", queue)

    @pytest.mark.parametrize("reason", DeadLetter.Reason.values)
    def test_reason_chooses_by_reason(self, make_letter: MakeLetter, reason: str) -> None:
        for other in DeadLetter.Reason.values:
            make_letter(payload=other.encode(), failure_reason=other)

        replay("--reason", reason)

        assert live() == [reason]

    def test_an_unknown_reason_is_refused_with_those_there_are(self) -> None:
        with pytest.raises(CommandError, match=r"--reason.*retry_terminal"):
            replay("--reason", "bad_luck")

    @pytest.mark.parametrize(
        "before",
        [
            "2026-03-10T12:00:00+00:00",
            "2026-03-10T12:00Z",
            "2026-03-10T13:00:00+01:00",
            "2026-03-10 12:00:00",  # the current time zone of the tests is UTC
        ],
    )
    def test_before_chooses_what_failed_before_a_moment(
        self, make_letter: MakeLetter, before: str
    ) -> None:
        make_letter(payload=b"1", failed_at=NOON - timedelta(microseconds=1))
        make_letter(payload=b"2", failed_at=NOON)

        with timezone.override(UTC):
            replay("--before", before)

        assert live() == ["1"]
        assert dead() == ["2"]

    def test_before_a_date_is_before_its_first_moment(self, make_letter: MakeLetter) -> None:
        make_letter(payload=b"1", failed_at=datetime(2026, 3, 9, 23, 59, 59, tzinfo=UTC))
        make_letter(payload=b"2", failed_at=datetime(2026, 3, 10, tzinfo=UTC))

        with timezone.override(UTC):
            replay("--before", "2026-03-10")

        assert live() == ["1"]

    @pytest.mark.parametrize("before", ["2026-03-10", "2026-03-10T00:00:00"])
    def test_without_an_offset_before_is_in_the_current_time_zone(
        self, make_letter: MakeLetter, before: str
    ) -> None:
        midnight_in_auckland = datetime(2026, 3, 9, 11, tzinfo=UTC)
        make_letter(payload=b"1", failed_at=midnight_in_auckland - timedelta(seconds=1))
        make_letter(payload=b"2", failed_at=midnight_in_auckland)

        with timezone.override("Pacific/Auckland"):
            replay("--before", before)

        assert live() == ["1"]

    @pytest.mark.parametrize(
        "before", ["yesterday", "", "2026-02-31", "2026-03-10T25:00", "1700000000", "2026"]
    )
    def test_a_moment_that_cannot_be_read_is_refused(
        self, make_letter: MakeLetter, before: str
    ) -> None:
        make_letter(payload=b"1")

        with pytest.raises(CommandError, match="--before"):
            replay("--before", before)
        assert dead() == ["1"]

    @pytest.mark.parametrize("before", ["0001-01-01", "9999-12-31T23:59:59-12:00"])
    def test_the_ends_of_the_calendar_are_moments_too(
        self, make_letter: MakeLetter, before: str
    ) -> None:
        make_letter(payload=b"1")

        with timezone.override("Asia/Tokyo"):
            replay("--before", before)

        assert (dead() == ["1"]) == before.startswith("0001")

    def test_several_conditions_must_all_hold(self, make_letter: MakeLetter) -> None:
        wanted = {"queue": "orders", "failure_reason": "rejected", "failed_at": NOON}
        make_letter(payload=b"1", **wanted)
        make_letter(payload=b"2", **{**wanted, "queue": "refunds"})
        make_letter(payload=b"3", **{**wanted, "failure_reason": "expired"})
        make_letter(payload=b"4", **{**wanted, "failed_at": NOON + timedelta(days=1)})

        replay("--queue", "orders", "--reason", "rejected", "--before", "2026-03-11T00:00Z")

        assert live() == ["1"]

    def test_all_means_every_letter(self, make_letter: MakeLetter) -> None:
        make_letter(payload=b"1", queue="orders")
        make_letter(payload=b"2", queue="refunds", failure_reason="expired")

        assert replay("--all") == "Replayed 2 dead letter(s).\n"
        assert live() == ["1", "2"]

    def test_nothing_named_is_refused(self, make_letter: MakeLetter) -> None:
        make_letter(payload=b"1")

        with pytest.raises(CommandError, match="--all"):
            replay()
        assert dead() == ["1"]

    @pytest.mark.parametrize(
        "arguments", [("1",), ("--queue", "orders"), ("--before", "2026-01-01")], ids=" ".join
    )
    def test_all_beside_a_choice_is_refused(
        self, make_letter: MakeLetter, arguments: tuple[str, ...]
    ) -> None:
        make_letter(payload=b"1")

        with pytest.raises(CommandError, match="--all"):
            replay("--all", *arguments)
        assert dead() == ["1"]

    @pytest.mark.django_db(databases=["default", "orders"])
    def test_database_names_whose_letters_are_meant(self, make_letter: MakeLetter) -> None:
        letter = make_letter(payload=b"1")
        letter.save(using="orders", force_insert=True)

        replay("--all", "--database", "orders")

        assert dead() == ["1"]
        assert not DeadLetter.objects.using("orders").exists()
        assert OutboxMessage.objects.using("orders").count() == 1


class TestReplaying:
    def test_per_second_staggers_the_messages(self, make_letters: Callable[..., None]) -> None:
        make_letters(5)
        before = database_clock()

        replay("--all", "--per-second", "0.5")

        first, *others = OutboxMessage.objects.order_by("id")
        assert before <= first.next_attempt_at <= database_clock()
        for n, message in enumerate(others, start=1):
            waits = (message.next_attempt_at - first.next_attempt_at).total_seconds()
            assert waits == pytest.approx(2 * n, abs=0.5)

    @pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "fast"])
    def test_a_rate_that_makes_no_sense_is_refused(
        self, make_letter: MakeLetter, rate: str
    ) -> None:
        make_letter(payload=b"1")

        with pytest.raises(CommandError, match="--per-second"):
            replay("--all", f"--per-second={rate}")
        assert dead() == ["1"]

    def test_a_dry_run_counts_and_changes_nothing(self, make_letter: MakeLetter) -> None:
        make_letter(payload=b"1", queue="orders")
        make_letter(payload=b"2", queue="refunds")

        assert replay("--queue", "orders", "--dry-run") == "Would replay 1 dead letter(s).\n"
        assert dead() == ["1", "2"]
        assert live() == []

    def test_a_letter_whose_timer_lives_again_stays_and_is_reported(
        self, make_letter: MakeLetter
    ) -> None:
        make_letter(payload=b"1", timer_id="t")
        make_letter(payload=b"2")
        outbox.publish({}, queue="orders", timer_id="t", activate_in=60)

        said = replay("--all")

        assert said == "Replayed 1 dead letter(s). Skipped 1: a live timer has their timer_id.\n"
        assert dead() == ["1"]

    def test_replaying_again_finds_nothing(self, make_letter: MakeLetter) -> None:
        make_letter()

        replay("--all")

        assert replay("--all") == "Replayed 0 dead letter(s).\n"
        assert OutboxMessage.objects.count() == 1

    def test_progress_is_shown_on_a_terminal(self, make_letter: MakeLetter) -> None:
        make_letter()
        master, slave = pty.openpty()

        with os.fdopen(slave, "w") as terminal:
            call_command("outbox_replay", "--all", stdout=io.StringIO(), stderr=terminal)
            terminal.flush()
            shown = os.read(master, 4096).decode()
        os.close(master)

        assert "1 replayed" in shown
