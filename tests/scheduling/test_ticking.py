"""The tick: what a fire publishes and records, once per boundary, and one bad row among many."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import LazySettings
from django.db import OperationalError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import Sum
from django.db.models.functions import Length
from django.forms import modelform_factory

from django_outbox import handlers, outbox
from django_outbox.models import Lease, OutboxMessage, Schedule
from django_outbox.scheduling import planning, ticking
from django_outbox.scheduling.ticking import tick
from django_outbox.scheduling.transactions import will_pass
from django_outbox.store import leases as lease_store
from tests.contract.helpers import Listener, Together, backend_pid, wait_until_blocked
from tests.scheduling.helpers import (
    boundaries_fired,
    committed,
    hold_lease,
    lease,
    make_due,
    messages,
    now,
    payload_of,
    put_boundary,
    schedule,
    stored,
)
from tests.support import PATIENCE, drain, session, wait_until

pytestmark = committed

SIX = datetime(2026, 6, 1, 6, 0, tzinfo=UTC)


def test_a_fire_publishes_what_was_scheduled_with_its_boundary() -> None:
    schedule(
        spec="@cron 0 6 * * *",
        payload={"to": "ops"},
        headers={"tenant": "acme"},
        max_attempts=3,
    )
    put_boundary("report", SIX)

    assert tick("default", now=SIX + timedelta(seconds=1)) == 1

    (message,) = messages()
    assert (message.queue, payload_of(message)) == ("orders", {"to": "ops"})
    assert message.headers["tenant"] == "acme"
    assert message.headers["schedule"] == "report"
    assert message.headers["boundary"] == "2026-06-01T06:00:00+00:00"
    assert (message.max_attempts, message.expires_at) == (3, None)
    assert (message.attempts_count, message.deliveries_count, message.lease_token) == (0, 0, None)


def test_a_fired_message_is_due_at_once_and_has_an_identity_of_its_own() -> None:
    schedule(spec="@every 1m")
    make_due(ago=150)

    assert tick("default") == 3

    fired = messages()
    assert all(message.next_attempt_at <= now() for message in fired)
    assert len({message.message_id for message in fired}) == 3
    assert len({message.correlation_id for message in fired}) == 3


def test_the_boundary_of_a_fire_is_in_utc_whatever_the_zone() -> None:
    schedule(spec="@cron 0 12 * * * Asia/Tokyo")
    put_boundary("report", datetime(2026, 6, 1, 3, 0, tzinfo=UTC))

    tick("default", now=datetime(2026, 6, 1, 3, 0, tzinfo=UTC))

    assert messages()[0].headers["boundary"] == "2026-06-01T03:00:00+00:00"
    assert stored().next_run_at == datetime(2026, 6, 2, 3, 0, tzinfo=UTC)


def test_expiry_counts_from_the_fire_and_not_from_the_boundary() -> None:
    schedule(expires_in=90)
    make_due(ago=3000)
    before = now()

    tick("default")

    (message,) = messages()
    assert message.expires_at is not None
    assert before <= message.expires_at - timedelta(seconds=90) <= now()


@pytest.mark.parametrize(("own", "fired"), [(None, 7), (3, 3)])
def test_a_fired_message_has_the_attempts_of_its_schedule_or_else_of_the_handler(
    own: int | None, fired: int, registry: handlers.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "registry", registry)

    @outbox.handler("orders", retry=outbox.ConstantRetry(1, max_attempts=7))
    def handle(message: outbox.Message[Any]) -> None: ...

    schedule(max_attempts=own)
    make_due()
    tick("default")

    assert messages()[0].max_attempts == fired


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


def test_the_headers_of_the_fire_win_over_those_of_the_same_name() -> None:
    schedule(headers={"schedule": "mine", "boundary": "mine"})
    make_due()

    tick("default")

    assert messages()[0].headers["schedule"] == "report"
    assert messages()[0].headers["boundary"] != "mine"


def test_every_fire_is_recorded_on_its_schedule() -> None:
    schedule(spec="@every 1m")
    boundary = make_due(ago=0.5)
    before = now()

    tick("default")

    read = stored()
    assert read.last_boundary_at == boundary
    assert read.last_message_id == messages()[0].id
    assert read.last_run_at is not None
    assert before <= read.last_run_at <= now()
    assert read.next_run_at == boundary + timedelta(minutes=1)
    assert (read.last_error, read.skipped_count) == (None, 0)


def test_of_several_fires_the_last_one_is_recorded() -> None:
    schedule(spec="@every 1m")
    boundary = make_due(ago=150)

    tick("default")

    assert stored().last_boundary_at == boundary + timedelta(minutes=2)
    assert stored().last_message_id == messages()[-1].id


def test_nothing_is_fired_before_its_time_nor_twice() -> None:
    schedule()
    assert tick("default") == 0
    make_due()

    assert tick("default") == 1
    assert tick("default") == 0
    assert len(messages()) == 1


def test_a_tick_without_schedules_does_nothing() -> None:
    assert tick("default") == 0


def test_an_outage_of_200_boundaries_fires_64_and_counts_136() -> None:
    schedule(spec="@every 1h")
    start = put_boundary("report", SIX)

    assert tick("default", now=start + timedelta(hours=199, minutes=30)) == 64

    assert boundaries_fired() == [start + timedelta(hours=n) for n in range(64)]
    assert stored().skipped_count == 136
    assert stored().next_run_at == start + timedelta(hours=200)
    assert tick("default", now=start + timedelta(hours=199, minutes=59)) == 0
    assert tick("default", now=start + timedelta(hours=200)) == 1
    assert stored().skipped_count == 136


def test_what_is_passed_over_adds_up() -> None:
    schedule(spec="@every 1h", catch_up="latest")
    start = put_boundary("report", SIX)

    tick("default", now=start + timedelta(hours=4, minutes=30))
    tick("default", now=start + timedelta(hours=9, minutes=30))

    assert boundaries_fired() == [start + timedelta(hours=4), start + timedelta(hours=9)]
    assert stored().skipped_count == 8


def test_each_schedule_catches_up_by_its_own_policy() -> None:
    # E15
    for name in ("all", "latest", "skip"):
        schedule(name, "@cron 0 6 * * *", catch_up=name)
        put_boundary(name, SIX)

    tick("default", now=SIX + timedelta(days=3, hours=1))

    assert boundaries_fired("all") == [SIX + timedelta(days=n) for n in range(4)]
    assert boundaries_fired("latest") == [SIX + timedelta(days=3)]
    assert boundaries_fired("skip") == []
    skipped = {read.name: read.skipped_count for read in Schedule.objects.all()}
    assert skipped == {"all": 0, "latest": 3, "skip": 4}
    assert {read.next_run_at for read in Schedule.objects.all()} == {SIX + timedelta(days=4)}


def test_what_is_only_passed_over_is_no_run() -> None:
    schedule(spec="@cron 0 6 * * *", catch_up="skip")
    put_boundary("report", SIX)

    tick("default", now=SIX + timedelta(days=3, hours=1))

    read = stored()
    assert (read.last_boundary_at, read.last_run_at, read.last_message_id) == (None, None, None)


def test_a_schedule_that_is_added_does_not_fire_the_others_again() -> None:
    # E17
    schedule("first")
    make_due("first")
    tick("default")

    schedule("second")
    schedule("first")
    tick("default")

    assert [message.headers["schedule"] for message in messages()] == ["first"]


def test_a_boundary_and_its_message_are_committed_together() -> None:
    schedule()
    boundary = make_due()
    with session() as other:
        other.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'no advance'; END $$"
        )
        other.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE OF last_boundary_at ON django_outbox_schedule"
            " FOR EACH ROW WHEN (NEW.last_boundary_at IS NOT NULL) EXECUTE FUNCTION refuse()"
        )
        try:
            tick("default")
        finally:
            other.execute("DROP TRIGGER refuse ON django_outbox_schedule")
            other.execute("DROP FUNCTION refuse()")

    assert messages() == []
    assert stored().next_run_at == boundary


def test_two_rogue_tickers_fire_one_boundary_once(together: Together) -> None:
    schedule()
    boundary = make_due()

    published = together.run([lambda: tick("default")] * 8)

    assert sorted(published) == [0] * 7 + [1]
    assert boundaries_fired() == [boundary]


def test_rogue_tickers_fire_each_of_many_boundaries_once(together: Together) -> None:
    for n in range(50):
        schedule(f"s{n}", "@every 1m")
        make_due(f"s{n}", ago=70)

    published = together.run([lambda: tick("default")] * 6)

    assert sum(published) == 100
    fired = [(m.headers["schedule"], m.headers["boundary"]) for m in messages()]
    assert len(fired) == len(set(fired)) == 100


def test_a_second_ticker_fires_nothing_of_what_the_first_is_about_to_commit(
    together: Together,
) -> None:
    schedule()
    boundary = make_due()

    with transaction.atomic():
        assert tick("default") == 1
        second = together.start(tick, "default")
        wait_until(lambda: second.done() or is_blocked(by=backend_pid()))

    assert second.result(10) == 0
    assert tick("default") == 0
    assert boundaries_fired() == [boundary]


def test_what_the_first_ticker_rolls_back_is_fired_by_a_later_one(together: Together) -> None:
    schedule()
    boundary = make_due()

    with transaction.atomic():
        assert tick("default") == 1
        second = together.start(tick, "default")
        wait_until(lambda: second.done() or is_blocked(by=backend_pid()))
        transaction.set_rollback(True)

    assert second.result(10) + tick("default") == 1
    assert boundaries_fired() == [boundary]


def is_blocked(by: int) -> bool:
    """Tell whether some session waits for a lock that the backend `by` holds."""
    with session() as other:
        waiting = other.execute(
            "SELECT 1 FROM pg_locks WHERE NOT granted AND %s = ANY(pg_blocking_pids(pid))", [by]
        )
        return waiting.fetchone() is not None


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


@pytest.mark.parametrize(("owner", "ttl"), [("another", 60.0), ("me", -0.001)])
def test_a_lease_that_is_lost_fires_nothing(owner: str, ttl: float) -> None:
    schedule()
    boundary = make_due()
    hold_lease(owner, ttl=ttl)

    with pytest.raises(outbox.LeadershipLost):
        tick("default", owner="me")

    assert messages() == []
    assert stored().next_run_at == boundary


def test_without_any_lease_a_leader_fires_nothing() -> None:
    schedule()
    make_due()

    with pytest.raises(outbox.LeadershipLost):
        tick("default", owner="me")

    assert messages() == []


def test_the_leader_s_tick_fires() -> None:
    schedule()
    make_due()
    hold_lease("me")

    assert tick("default", owner="me") == 1


def test_nobody_takes_the_lease_while_its_leader_ticks(together: Together) -> None:
    schedule()
    make_due()
    hold_lease("me", ttl=60)

    def take_over() -> bool:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.execute(
                "UPDATE django_outbox_lease SET expires_at = clock_timestamp(), owner = 'thief'"
            )
            return True

    with transaction.atomic():
        assert tick("default", owner="me") == 1
        thief = together.start(take_over)
        wait_until_blocked(thief, by=backend_pid())

    assert thief.result(10)
    assert len(messages()) == 1
    assert Lease.objects.get().owner == "thief"


def test_a_leader_paused_in_the_middle_is_thrown_out_before_its_ttl_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule()
    make_due()
    hold_lease("me")
    found: list[str] = []
    holds = lease_store.holds

    def look(cursor: CursorWrapper, **options: Any) -> bool:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        found.append(cursor.fetchone()[0])
        return holds(cursor, **options)

    monkeypatch.setattr(lease_store, "holds", look)
    with connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        before = cursor.fetchone()[0]
        tick("default", owner="me")
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        assert cursor.fetchone()[0] == before

    assert found == ["8s"]


def break_row(name: str, **columns: Any) -> None:
    """Edit the row by hand, as somebody with a console does."""
    assert Schedule.objects.filter(name=name).update(**columns) == 1


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

    assert stored().retry_at is None


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


def test_a_spec_changed_in_the_table_is_planned_anew_at_the_next_tick() -> None:
    # E21
    schedule(spec="@every 1d")
    before = now()
    Schedule.objects.update(spec="@every 5m")

    assert tick("default") == 0

    read = stored()
    assert read.next_run_at is not None
    assert before <= read.next_run_at - timedelta(minutes=5) <= now()
    assert tick("default", now=read.next_run_at) == 1


def test_a_zone_changed_in_the_table_is_planned_anew_at_the_next_tick() -> None:
    # E21
    schedule(spec="@cron 0 12 * * *")
    Schedule.objects.update(timezone="Asia/Tokyo")

    tick("default")

    read = stored()
    assert read.next_run_at is not None
    assert f"{read.next_run_at:%H:%M}" == "03:00"


def test_one_switched_off_in_the_table_does_not_fire() -> None:
    # E21
    schedule()
    make_due()
    Schedule.objects.update(enabled=False)

    assert tick("default") == 0
    assert messages() == []


def test_one_switched_on_again_in_the_table_fires_nothing_of_the_past() -> None:
    # E21
    schedule(spec="@every 1h")
    start = put_boundary("report", SIX)
    Schedule.objects.update(enabled=False)
    tick("default", now=start + timedelta(hours=5, minutes=30))

    Schedule.objects.update(enabled=True)

    assert tick("default", now=start + timedelta(hours=5, minutes=31)) == 0
    assert tick("default", now=start + timedelta(hours=6)) == 1
    assert boundaries_fired() == [start + timedelta(hours=6)]
    assert stored().skipped_count == 0


def test_an_unknown_catch_up_set_by_hand_is_recorded() -> None:
    schedule()
    boundary = make_due()
    Schedule.objects.update(catch_up="newest")

    assert tick("default") == 0

    assert messages() == []
    assert "newest" in (stored().last_error or "")
    assert stored().next_run_at == boundary


@pytest.mark.parametrize("spec", ["@every 1h", "@cron 0 * * * *"])
def test_what_comes_after_one_is_switched_on_fires_though_the_tick_is_late(spec: str) -> None:
    schedule(spec=spec, enabled=False)
    Schedule.objects.update(enabled=True)
    first = stored().next_run_at
    assert first is not None

    assert tick("default", now=first + timedelta(hours=2, seconds=1)) == 3

    assert boundaries_fired() == [first, first + timedelta(hours=1), first + timedelta(hours=2)]
    assert stored().plan_from is None


def test_switching_on_by_scheduling_again_keeps_the_boundary_that_comes_next() -> None:
    schedule(spec="@cron 0 * * * *", enabled=False)
    first = schedule(spec="@cron 0 * * * *").next_run_at
    assert first is not None

    assert tick("default", now=first) == 1


def test_a_spec_changed_in_the_table_starts_from_the_change_though_the_tick_is_late() -> None:
    schedule(spec="@every 1d")
    before = now()
    Schedule.objects.update(spec="@every 1h")
    after = now()

    assert tick("default", now=after + timedelta(hours=2, minutes=30)) == 2

    first = boundaries_fired()[0]
    assert before + timedelta(hours=1) <= first <= after + timedelta(hours=1)


def test_a_deploy_in_the_meantime_does_not_lose_what_comes_after_one_is_switched_on() -> None:
    schedule(spec="@every 1h", enabled=False)
    Schedule.objects.update(enabled=True)
    first = stored().next_run_at
    assert first is not None

    schedule(spec="@every 1h")

    assert tick("default", now=first) == 1


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


def test_saving_what_was_loaded_before_a_tick_fires_nothing_again() -> None:
    loaded = schedule()
    boundary = make_due()
    loaded.refresh_from_db()
    assert tick("default") == 1

    loaded.catch_up = "latest"
    loaded.save()

    assert tick("default") == 0
    assert boundaries_fired() == [boundary]
    read = stored()
    assert (read.catch_up, read.last_boundary_at) == ("latest", boundary)
    assert read.last_message_id == messages()[0].pk


def test_a_save_from_async_code_fires_nothing_again_either() -> None:
    loaded = schedule()
    boundary = make_due()
    loaded.refresh_from_db()
    assert tick("default") == 1

    async_to_sync(loaded.asave)()

    assert tick("default") == 0
    assert boundaries_fired() == [boundary]


def test_a_form_of_the_model_does_not_show_what_schedulers_keep() -> None:
    form = modelform_factory(Schedule, fields="__all__")

    assert set(form.base_fields).isdisjoint(Schedule.KEPT_BY_SCHEDULERS)


def test_what_was_set_is_written_though_other_columns_were_loaded_or_saved_first() -> None:
    schedule()
    moment = now() - timedelta(seconds=1)

    loaded = Schedule.objects.defer("queue").get()
    loaded.next_run_at = moment
    assert loaded.queue == "orders"
    loaded.save(update_fields=["catch_up"])
    loaded.save()

    assert stored().next_run_at == moment


def test_what_was_set_is_written_again_after_a_rollback() -> None:
    loaded = schedule()
    loaded.next_run_at = moment = now() - timedelta(seconds=1)
    with suppress(ValueError), transaction.atomic():
        loaded.save()
        raise ValueError

    loaded.save()

    assert stored().next_run_at == moment


def test_a_copy_of_a_schedule_can_be_saved() -> None:
    loaded = schedule()
    loaded.pk = None
    loaded.name = "copy"

    loaded.save()

    assert stored("copy").spec == stored().spec


def test_a_boundary_that_is_taken_away_is_planned_from_that_moment() -> None:
    schedule(spec="@every 1h")
    before = now()
    Schedule.objects.update(next_run_at=None)

    assert tick("default", now=before + timedelta(hours=2, minutes=30)) == 2


def test_a_boundary_given_with_another_spec_is_the_one_that_fires() -> None:
    schedule(spec="@every 1d")
    moment = now() - timedelta(seconds=1)

    Schedule.objects.update(spec="@every 1h", next_run_at=moment)

    assert tick("default") == 1
    assert boundaries_fired() == [moment]


def test_a_boundary_given_with_a_row_made_by_hand_is_the_one_that_fires() -> None:
    moment = now() - timedelta(seconds=1)
    Schedule.objects.create(
        name="by hand",
        spec="@every 1h",
        timezone="UTC",
        queue="orders",
        payload=b"{}",
        headers={"content-type": "application/json"},
        next_run_at=moment,
    )

    assert tick("default") == 1
    assert boundaries_fired("by hand") == [moment]


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


def test_saving_writes_a_boundary_that_was_set_on_purpose() -> None:
    loaded = schedule()
    loaded.next_run_at = now() - timedelta(seconds=1)

    loaded.save()

    assert tick("default") == 1


def test_saving_as_switched_on_what_was_loaded_before_fires_nothing_of_the_past() -> None:
    schedule(spec="@every 1h")
    Schedule.objects.update(enabled=False)
    loaded = stored()
    make_due(ago=5 * 3600.0)

    loaded.enabled = True
    loaded.save()

    assert tick("default") == 0


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


def test_one_switched_on_again_while_no_scheduler_ran_fires_nothing_of_the_past() -> None:
    schedule(spec="@every 1h")
    Schedule.objects.update(enabled=False)
    start = put_boundary("report", SIX)

    Schedule.objects.update(enabled=True)

    assert stored().next_run_at in (start, None)
    tick("default", now=start + timedelta(hours=5, minutes=30))
    assert all(boundary > start + timedelta(hours=5) for boundary in boundaries_fired())


def at_six() -> str:
    read = stored()
    assert read.next_run_at is not None
    return f"{read.next_run_at.astimezone(UTC):%H:%M:%S}"


def test_one_switched_on_with_another_spec_goes_by_the_new_one() -> None:
    schedule(spec="@every 1d")
    Schedule.objects.update(enabled=False)
    tick("default")

    Schedule.objects.update(enabled=True, spec="@cron 0 6 * * *")

    assert tick("default") == 0
    assert at_six() == "06:00:00"


def test_one_given_another_spec_and_then_switched_on_goes_by_the_new_one() -> None:
    schedule(spec="@every 1d")
    Schedule.objects.update(enabled=False)
    Schedule.objects.update(spec="@cron 0 6 * * *")
    Schedule.objects.update(enabled=True)

    assert tick("default") == 0

    assert at_six() == "06:00:00"


def test_one_switched_on_with_another_spec_fires_nothing_of_the_past() -> None:
    schedule(spec="@every 1d")
    Schedule.objects.update(enabled=False)
    make_due(ago=5)
    Schedule.objects.update(enabled=True, spec="@every 1h")

    assert tick("default") == 0

    assert messages() == []


def test_a_row_made_by_hand_without_a_boundary_is_planned_and_not_fired() -> None:
    before = now()
    Schedule.objects.create(
        name="by hand", spec="@every 5m", timezone="UTC", queue="orders", payload=b"null"
    )

    assert tick("default") == 0

    read = stored("by hand")
    assert read.source == "admin"
    assert read.next_run_at is not None
    assert before <= read.next_run_at - timedelta(minutes=5) <= now()
    assert tick("default", now=read.next_run_at) == 1


def test_other_columns_changed_in_the_table_go_into_the_next_fire() -> None:
    # E21
    schedule()
    boundary = make_due()
    Schedule.objects.update(queue="mails", max_attempts=7, headers={"tenant": "acme"})

    tick("default")

    (message,) = messages("mails")
    assert (message.max_attempts, message.headers["tenant"]) == (7, "acme")
    assert boundaries_fired() == [boundary]


def test_a_fire_notifies_its_queue_once_whatever_the_number(listener: Listener) -> None:
    schedule("report", "@every 1m")
    schedule("mails", "@every 1m", queue="mails")
    make_due("report", ago=150)
    make_due("mails")

    assert tick("default") == 4

    assert sorted(listener.heard()) == ["mails", "orders"]


def test_a_fire_does_not_notify_when_the_setting_is_off(
    listener: Listener, settings: LazySettings
) -> None:
    settings.OUTBOX = {"NOTIFY": False}
    schedule()
    make_due()

    assert tick("default") == 1

    assert listener.heard() == []


def test_a_day_of_every_hour_fires_24_times_in_a_row() -> None:
    # E09
    schedule(spec="@every 1h")
    start = put_boundary("report", SIX)

    for minutes in range(0, 24 * 60, 5):
        tick("default", now=start + timedelta(minutes=minutes))

    assert boundaries_fired() == [start + timedelta(hours=n) for n in range(24)]


def test_more_schedules_than_one_transaction_takes_are_all_fired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticking, "BATCH", 10)
    for n in range(25):
        schedule(f"s{n}")
        make_due(f"s{n}")

    assert tick("default") == 25

    assert OutboxMessage.objects.count() == 25
    assert lease() is None


def test_bytes_and_no_payload_at_all_are_published_as_publish_does() -> None:
    schedule("raw", payload=b"\x00\xff")
    schedule("bare")
    make_due("raw")
    make_due("bare")

    tick("default")

    bodies = {m.headers["schedule"]: (bytes(m.payload), m.headers) for m in messages()}
    assert bodies["raw"][0] == b"\x00\xff"
    assert bodies["raw"][1]["content-type"] == "application/octet-stream"
    assert bodies["bare"][0] == b"null"
    assert bodies["bare"][1]["content-type"] == "application/json"


def test_a_handler_gets_what_a_schedule_fires(registry: handlers.Registry) -> None:
    got: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        got.append((message.payload, message.headers["schedule"], message.headers["boundary"]))

    schedule(payload={"n": 1})
    put_boundary("report", SIX)
    tick("default", now=SIX)
    drain()

    assert got == [({"n": 1}, "report", "2026-06-01T06:00:00+00:00")]
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Almaty"])
def test_boundaries_are_right_where_django_uses_no_time_zones(
    zone: str, settings: LazySettings
) -> None:
    settings.TIME_ZONE = zone
    settings.USE_TZ = False
    try:
        schedule(spec="@cron 0 6 * * * UTC")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE django_outbox_schedule SET next_run_at = %s", [SIX])

        assert tick("default", now=SIX + timedelta(seconds=1)) == 1

        assert boundaries_fired() == [SIX]
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT next_run_at = %s FROM django_outbox_schedule", [SIX + timedelta(days=1)]
            )
            assert cursor.fetchone() == (True,)
    finally:
        settings.USE_TZ = True
        connection.close()


def test_a_schedule_that_is_deleted_fires_no_more() -> None:
    schedule()
    make_due()

    outbox.unschedule("report")

    assert tick("default") == 0
    assert messages() == []


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
