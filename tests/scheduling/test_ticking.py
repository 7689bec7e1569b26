"""The tick: what a fire publishes and records, once per boundary."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from django_outbox import handlers, outbox
from django_outbox.models import Lease, OutboxMessage, Schedule
from django_outbox.scheduling import planning, ticking
from django_outbox.scheduling.ticking import tick
from django_outbox.store import leases as lease_store
from tests.contract.helpers import Listener, Together, backend_pid, wait_until_blocked
from tests.scheduling.helpers import (
    SIX,
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
from tests.support import drain, session, wait_until

pytestmark = committed


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
        wait_until(second.done)

    assert second.result(10) == 0
    assert tick("default") == 0
    assert boundaries_fired() == [boundary]


def test_what_the_first_ticker_rolls_back_is_fired_by_a_later_one(together: Together) -> None:
    schedule()
    boundary = make_due()

    with transaction.atomic():
        assert tick("default") == 1
        second = together.start(tick, "default")
        wait_until(second.done)
        transaction.set_rollback(True)

    assert second.result(10) + tick("default") == 1
    assert boundaries_fired() == [boundary]


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


def test_after_an_outage_a_transaction_fires_no_more_than_can_be_inserted_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticking, "BATCH", 100)
    for n in range(10):
        schedule(f"s{n}", "@every 1s")
        make_due(f"s{n}", ago=3600)

    published, moment = [], now()
    while (batch := ticking.tick_batch("default", now=moment)).published:
        published.append(batch.published)

    assert published == [128] * 5


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
