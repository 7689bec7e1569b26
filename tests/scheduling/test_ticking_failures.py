"""What keeps a tick from firing, and what it does to the others: nothing."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import Sum
from django.db.models.functions import Length

from django_outbox.models import OutboxMessage, Schedule
from django_outbox.scheduling import ticking
from django_outbox.scheduling.ticking import tick
from django_outbox.scheduling.transactions import will_pass
from tests.contract.helpers import Together, backend_pid
from tests.scheduling.helpers import (
    boundaries_fired,
    break_row,
    committed,
    make_due,
    messages,
    now,
    payload_of,
    schedule,
    stored,
)
from tests.support import PATIENCE, session

pytestmark = committed


def test_a_boundary_that_the_database_does_not_advance_is_not_fired() -> None:
    schedule()
    make_due()
    with session() as other:
        other.execute(
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN RETURN NULL; END'; CREATE TRIGGER keep BEFORE UPDATE OF skipped_count"
            " ON django_outbox_schedule FOR EACH ROW EXECUTE FUNCTION keep()"
        )
        try:
            assert tick("default") == 0
        finally:
            other.execute("DROP FUNCTION keep CASCADE")

    assert messages() == []
    assert "has not advanced" in (stored().last_error or "")


def test_a_tick_at_a_later_moment_ends_though_schedules_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticking, "BATCH", 2)
    for n in range(3):
        schedule(f"s{n}", queue="orders")
        break_row(f"s{n}", queue="__reserved")

    assert tick("default", now=now() + timedelta(days=1)) == 0

    assert Schedule.objects.filter(last_error__isnull=True).count() == 0


def test_a_row_that_somebody_has_locked_holds_up_none_of_the_others(together: Together) -> None:
    schedule("edited")
    schedule("other")
    boundary = make_due("edited")
    make_due("other")

    with transaction.atomic():
        Schedule.objects.select_for_update().get(name="edited")
        assert together.start(tick, "default").result(PATIENCE) == 1

    assert [message.headers["schedule"] for message in messages()] == ["other"]
    assert tick("default") == 1
    assert boundaries_fired("edited") == [boundary]


def test_a_lock_on_the_messages_is_the_fault_of_no_schedule() -> None:
    # E35
    for n in range(3):
        schedule(f"s{n}", catch_up="skip")
        make_due(f"s{n}")
    with session() as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE django_outbox_message IN SHARE MODE")

        with pytest.raises(OperationalError) as caught:
            tick("default")

        assert will_pass(caught.value)
        other.execute("ROLLBACK")
    assert {s.last_error for s in Schedule.objects.all()} == {None}
    assert tick("default") == 3


def test_a_row_that_is_locked_holds_up_none_of_the_others_where_statements_must_be_short(
    together: Together,
) -> None:
    schedule("edited")
    schedule("other")
    make_due("edited")
    make_due("other")

    def tick_in_a_hurry() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = 300")
        return tick("default")

    with transaction.atomic():
        Schedule.objects.select_for_update().get(name="edited")
        assert together.start(tick_in_a_hurry).result(PATIENCE) == 1

    assert [message.headers["schedule"] for message in messages()] == ["other"]


def test_many_fires_of_a_large_payload_are_shared_out_among_transactions() -> None:
    for n in range(3):
        schedule(f"s{n}", "@every 1m", payload=b"x" * 1024 * 1024)
        make_due(f"s{n}", ago=2 * 3600.0)

    batches = [ticking.tick_batch("default") for _ in range(3)]

    assert batches == [(64, True), (64, True), (64, False)]
    assert OutboxMessage.objects.aggregate(total=Sum(Length("payload"))) == {
        "total": 3 * 64 * 1024 * 1024
    }


BROKEN = [
    ({"spec": "*/5 * * * *"}, "@cron */5 * * * *"),
    ({"spec": "@every 0s"}, "@every <n>"),
    ({"spec": "@cron 0 0 31 2 *"}, "never"),
    ({"spec": "@cron 0 0 * * *", "timezone": "Mars/Olympus"}, "Mars/Olympus"),
    ({"spec": "@cron 0 0 * * *", "timezone": "/etc/localtime"}, "/etc/localtime"),
    ({"queue": "__outbox:mails"}, "__outbox:mails"),
    ({"queue": ""}, "empty"),
    ({"max_attempts": 2_000_000_000, "expires_in": timedelta(days=900_000_000)}, ""),
    ({"max_attempts": 0}, "max_attempts must lie between 1 and 1,000,000; it is 0"),
    ({"expires_in": timedelta(seconds=-5)}, "expires_in must be positive; it is -5"),
    ({"headers": []}, ""),
    ({"headers": {"a": 7}}, ""),
]


@pytest.mark.parametrize(("columns", "says"), BROKEN)
def test_a_row_broken_by_hand_stops_nobody_and_is_recorded(
    columns: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("before", "broken", "later"):
        schedule(name)
        make_due(name)
    break_row("broken", **columns)
    next_run_at = stored("broken").next_run_at

    with caplog.at_level(logging.ERROR, "django_outbox"):
        assert tick("default") == 2

    assert {message.headers["schedule"] for message in messages()} == {"before", "later"}
    read = stored("broken")
    assert read.last_error
    assert says in read.last_error
    assert read.next_run_at == next_run_at
    assert (read.last_run_at, read.skipped_count) == (None, 0)
    assert "'broken'" in caplog.text


def test_a_schedule_that_fails_is_tried_again_a_minute_later_at_most_once() -> None:
    schedule()
    boundary = make_due()
    with session() as other:
        other.execute("ALTER TABLE django_outbox_message ADD CONSTRAINT nobody CHECK (false)")
        try:
            assert tick("default") == 0
        finally:
            other.execute("ALTER TABLE django_outbox_message DROP CONSTRAINT nobody")
    failed = now()

    assert tick("default", now=failed + timedelta(seconds=58)) == 0
    assert tick("default", now=failed + timedelta(seconds=61)) == 1

    assert boundaries_fired() == [boundary]
    assert stored().last_error is None


@pytest.mark.parametrize("columns", [{"queue": "orders"}, {"spec": "@every 2h"}, {"payload": b"1"}])
def test_a_schedule_that_failed_and_is_mended_in_the_table_is_tried_at_once(
    columns: dict[str, Any],
) -> None:
    # E21
    schedule()
    make_due()
    break_row("report", queue="__reserved")
    tick("default")
    assert stored().retry_at is not None

    break_row("report", **columns)

    assert (stored().retry_at, stored().last_error) == (None, None)


def test_a_schedule_that_fails_is_not_logged_at_every_tick(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedule()
    make_due()
    break_row("report", queue="__reserved")

    with caplog.at_level(logging.ERROR, "django_outbox"):
        for _ in range(5):
            tick("default")

    assert len([r for r in caplog.records if "'report'" in r.getMessage()]) == 1


def test_a_spec_broken_by_hand_is_not_logged_at_every_tick(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedule()
    break_row("report", spec="daily")

    with caplog.at_level(logging.ERROR, "django_outbox"):
        for _ in range(5):
            tick("default")

    assert len([r for r in caplog.records if "'report'" in r.getMessage()]) == 1


def test_a_message_the_database_refuses_stops_none_of_the_others() -> None:
    # E35
    for n in range(20):
        schedule(f"s{n:02}", payload={"n": n})
        make_due(f"s{n:02}")
    with session() as other:
        other.execute(
            "ALTER TABLE django_outbox_message ADD CONSTRAINT no_sevens"
            " CHECK (headers->>'schedule' <> 's07')"
        )
        try:
            assert tick("default") == 19
        finally:
            other.execute("ALTER TABLE django_outbox_message DROP CONSTRAINT no_sevens")

    assert sorted(payload_of(message)["n"] for message in messages()) == [
        n for n in range(20) if n != 7
    ]
    assert "no_sevens" in (stored("s07").last_error or "")
    assert stored("s06").last_error is None
    assert tick("default", now=now() + timedelta(seconds=61)) == 1
    assert messages()[-1].headers["schedule"] == "s07"


def test_a_tick_that_loses_its_connection_leaves_nothing_and_the_next_one_fires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # E35
    schedule()
    boundary = make_due()
    write = ticking._write

    def lose_the_connection(using: str, works: Any, *, is_ours: bool) -> int:
        done = write(using, works, is_ours=is_ours)
        with session() as other:
            other.execute("SELECT pg_terminate_backend(%s)", [backend_pid()])
        backend_pid()
        return done

    monkeypatch.setattr(ticking, "_write", lose_the_connection)
    with pytest.raises(OperationalError):
        tick("default")
    monkeypatch.undo()
    connection.close()

    assert messages() == []
    assert stored().next_run_at == boundary
    assert tick("default") == 1
    assert boundaries_fired() == [boundary]


def test_an_unknown_catch_up_set_by_hand_is_recorded() -> None:
    schedule()
    boundary = make_due()
    Schedule.objects.update(catch_up="newest")

    assert tick("default") == 0

    assert messages() == []
    assert "newest" in (stored().last_error or "")
    assert stored().next_run_at == boundary


def test_one_that_is_off_is_no_failure_whatever_it_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedule()
    make_due()
    break_row("report", spec="daily", enabled=False)

    with caplog.at_level(logging.ERROR, "django_outbox"):
        assert tick("default") == 0

    assert caplog.text == ""
    assert stored().last_error is None


def test_one_refused_message_among_many_is_found_by_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for n in range(64):
        schedule(f"s{n:02}", payload={"n": n})
        make_due(f"s{n:02}")
    write, tried = ticking._write, []

    def note(using: str, works: Any, *, is_ours: bool) -> int:
        tried.append(len(works))
        return write(using, works, is_ours=is_ours)

    monkeypatch.setattr(ticking, "_write", note)
    with session() as other:
        other.execute(
            "ALTER TABLE django_outbox_message ADD CONSTRAINT no_sevens"
            " CHECK (headers->>'schedule' <> 's07')"
        )
        try:
            assert tick("default") == 63
        finally:
            other.execute("ALTER TABLE django_outbox_message DROP CONSTRAINT no_sevens")

    assert len(tried) == 13  # all, and both halves of 64, 32, 16, 8, 4 and 2


def test_a_message_that_no_index_can_hold_stops_none_of_the_others() -> None:
    schedule("good")
    schedule("large", payload=os.urandom(20_000))
    for name in ("good", "large"):
        make_due(name)
    with session() as other:
        other.execute("CREATE INDEX of_a_site ON django_outbox_message (payload)")
        try:
            assert tick("default") == 1
        finally:
            other.execute("DROP INDEX of_a_site")

    assert messages()[0].headers["schedule"] == "good"
    assert "index row requires 2" in (stored("large").last_error or "")


def test_a_tick_inside_a_transaction_leaves_deferred_constraints_as_they_were() -> None:
    schedule()
    make_due()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMP TABLE parent (id int PRIMARY KEY) ON COMMIT DROP; CREATE TEMP TABLE child "
            "(parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP"
        )
        cursor.execute("INSERT INTO child VALUES (1)")

        assert tick("default") == 1

        cursor.execute("INSERT INTO child VALUES (2); INSERT INTO parent VALUES (1), (2)")
    assert stored().last_error is None


def test_a_transaction_that_has_worked_long_enough_leaves_the_rest_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticking, "BATCH_SECONDS", 0.0)
    for n in range(3):
        schedule(f"s{n}")
        make_due(f"s{n}")

    assert ticking.tick_batch("default") == (1, True)
    assert tick("default") == 2


def test_a_refused_message_stops_no_other_though_each_takes_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticking, "BATCH_SECONDS", 0.05)
    for n in range(8):
        schedule(f"s{n}", queue="refused" if n == 5 else "orders")
        make_due(f"s{n}")
    with session() as other:
        other.execute(
            "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM pg_sleep(0.03);"
            " IF NEW.queue = 'refused' THEN RAISE 'refused'; END IF; RETURN NEW; END $$;"
            "CREATE TRIGGER audit BEFORE INSERT ON django_outbox_message"
            " FOR EACH ROW EXECUTE FUNCTION audit()"
        )
        try:
            assert tick("default") == 7
        finally:
            other.execute("DROP FUNCTION audit CASCADE")

    assert stored("s5").last_error is not None


def test_a_fixed_schedule_forgets_its_error_when_it_is_scheduled_again() -> None:
    schedule()
    boundary = make_due()
    Schedule.objects.update(queue="__reserved")
    tick("default")
    assert stored().last_error is not None

    schedule()

    assert stored().last_error is None
    assert tick("default") == 1
    assert boundaries_fired() == [boundary]
