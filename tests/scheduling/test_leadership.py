"""Leadership: one at a time, refused, lost, given up, taken over, and kept through long sleeps."""

from __future__ import annotations

import logging
import os
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import OperationalError, connection, transaction

from django_outbox import outbox
from django_outbox.models import Lease, Schedule
from django_outbox.scheduling import declaring, leadership, running
from django_outbox.scheduling.leadership import Leadership
from django_outbox.scheduling.running import stand_by
from django_outbox.scheduling.ticking import Batch, tick_batch
from tests.contract.helpers import Together, backend_pid, wait_until_blocked
from tests.scheduling.helpers import (
    Runner,
    boundaries_fired,
    committed,
    hold_lease,
    lease,
    make_due,
    messages,
    now,
    put_boundary,
    schedule,
    stored,
)
from tests.scheduling.helpers import running as run
from tests.support import session, wait_until

pytestmark = committed


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a sleeping leader look around ten times as often as it does."""
    monkeypatch.setattr(running, "SLICE", 0.1)


def standing_by(stop: outbox.StopToken) -> None:
    stand_by(stop, using="default")


def wait_for_a_leader() -> Lease:
    wait_until(lease)
    found = lease()
    assert found is not None
    return found


def test_a_stop_token_stops_for_good_and_wakes_who_waits() -> None:
    token = outbox.StopToken()
    assert not token.wait(0.01)
    before = token.stopped

    threading.Timer(0.05, token.stop).start()

    assert token.wait(10)
    token.stop()
    assert token.wait(0)
    assert (before, token.stopped) == (False, True)


def test_a_leader_has_the_lease_under_an_owner_of_its_own() -> None:
    before = now()
    with run():
        held = wait_for_a_leader()

        assert held.name == "__scheduler"
        assert f":{os.getpid()}:" in held.owner
        assert before <= held.acquired_at <= now()
        assert timedelta(seconds=7) < held.expires_at - now() <= timedelta(seconds=10)


def test_two_runners_of_one_process_have_different_owners() -> None:
    assert Leadership("default").owner != Leadership("default").owner


def test_a_leader_fires_what_is_due() -> None:
    schedule()
    boundary = make_due()

    with run():
        wait_until(messages)

    assert boundaries_fired() == [boundary]


def test_a_clean_stop_returns_and_gives_the_lease_up() -> None:
    runner = Runner(outbox.run_schedules)
    wait_for_a_leader()
    began = time.monotonic()

    runner.stop.stop()

    assert runner.join() is None
    assert time.monotonic() - began < 1
    assert lease() is None


def test_a_runner_that_is_stopped_before_it_starts_fires_nothing() -> None:
    schedule()
    make_due()
    stop = outbox.StopToken()
    stop.stop()

    outbox.run_schedules(stop)

    assert messages() == []
    assert lease() is None


def test_a_runner_writes_what_is_declared_also_when_it_is_refused(settings: LazySettings) -> None:
    settings.OUTBOX = {"SCHEDULES": {"nightly": {"spec": "@every 1d", "queue": "reports"}}}
    hold_lease()

    with pytest.raises(outbox.LeadershipLost, match="Another scheduler leads"):
        outbox.run_schedules(outbox.StopToken())

    assert (stored("nightly").queue, stored("nightly").source) == ("reports", "code")


def test_a_leader_goes_on_leading_while_a_lock_holds_up_its_ticks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedule()
    boundary = make_due()
    with session() as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE django_outbox_message IN SHARE MODE")
        with caplog.at_level("WARNING", "django_outbox"), run():
            owner = wait_for_a_leader().owner
            wait_until(lambda: "held up" in caplog.text)
            other.execute("ROLLBACK")
            wait_until(messages)

            assert wait_for_a_leader().owner == owner

    assert boundaries_fired() == [boundary]


def test_a_runner_that_is_refused_again_and_again_writes_what_is_declared_once(
    settings: LazySettings,
) -> None:
    settings.OUTBOX = {"SCHEDULES": {"weekly": {"spec": "@every 7d", "queue": "reports"}}}
    hold_lease()
    with pytest.raises(outbox.LeadershipLost):
        outbox.run_schedules(outbox.StopToken())
    Schedule.objects.update(queue="letters")

    with pytest.raises(outbox.LeadershipLost):
        outbox.run_schedules(outbox.StopToken())

    assert stored("weekly").queue == "letters"


def test_a_declared_schedule_that_somebody_has_locked_keeps_no_scheduler_from_leading(
    settings: LazySettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declaring, "TRY_EVERY", 0.1)
    schedule()
    boundary = make_due()
    outbox.schedule("hourly", "@every 1h", queue="letters")
    Schedule.objects.filter(name="hourly").update(source="code", declared_enabled=True)
    settings.OUTBOX = {"SCHEDULES": {"hourly": {"spec": "@every 1h", "queue": "reports"}}}
    with session() as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM django_outbox_schedule WHERE name = 'hourly' FOR UPDATE")
        with run(standing_by):
            wait_until(messages)
            assert boundaries_fired() == [boundary]
            assert stored("hourly").queue == "letters"

            other.execute("ROLLBACK")
            schedule("next", "@every 1s")
            wait_until(lambda: stored("hourly").queue == "reports")

    assert "could not be written yet" in caplog.text


def test_a_runner_refuses_a_transaction_that_would_hide_what_it_fires() -> None:
    with (
        transaction.atomic(),
        pytest.raises(transaction.TransactionManagementError, match="outside transaction"),
    ):
        outbox.run_schedules(outbox.StopToken())

    assert lease() is None


@pytest.mark.usefixtures("attentive")
def test_a_second_runner_is_refused_and_the_first_goes_on() -> None:
    schedule()
    with run() as first:
        owner = wait_for_a_leader().owner

        with pytest.raises(outbox.LeadershipLost):
            outbox.run_schedules(outbox.StopToken())

        assert first.is_running
        assert wait_for_a_leader().owner == owner
        boundary = make_due()
        wait_until(messages)
    assert boundaries_fired() == [boundary]


def test_one_that_is_refused_at_the_start_fires_nothing_and_takes_nothing() -> None:
    schedule()
    boundary = make_due()
    hold_lease("another")

    with pytest.raises(outbox.LeadershipLost):
        outbox.run_schedules(outbox.StopToken())

    assert messages() == []
    assert stored().next_run_at == boundary
    assert wait_for_a_leader().owner == "another"


@pytest.mark.usefixtures("attentive")
def test_a_leader_that_loses_the_lease_stops_before_any_tick() -> None:
    schedule()
    runner = Runner(outbox.run_schedules)
    wait_for_a_leader()

    with transaction.atomic():
        hold_in_this_transaction("thief")
        make_due()

    assert isinstance(runner.join(), outbox.LeadershipLost)
    assert messages() == []
    assert wait_for_a_leader().owner == "thief"


def hold_in_this_transaction(owner: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_outbox_lease SET owner = %s,"
            " expires_at = clock_timestamp() + interval '1 minute'",
            [owner],
        )
        assert cursor.rowcount == 1


@pytest.mark.usefixtures("attentive")
def test_a_leader_whose_lease_has_run_out_does_not_fire_either() -> None:
    schedule()
    runner = Runner(outbox.run_schedules)
    wait_for_a_leader()

    with transaction.atomic():
        Lease.objects.update(expires_at=now() - timedelta(seconds=1))
        make_due()

    assert isinstance(runner.join(), outbox.LeadershipLost)
    assert messages() == []


def test_renewals_in_the_sleep_hold_the_lease_across_a_boundary_beyond_the_ttl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The 40 s and 10 s of the real thing, at a tenth.
    monkeypatch.setattr(leadership, "TTL", 1.0)
    monkeypatch.setattr(running, "RENEW_EVERY", 0.2)
    monkeypatch.setattr(running, "SLICE", 0.1)
    schedule()
    boundary = put_boundary("report", now() + timedelta(seconds=3))

    with run():
        first = wait_for_a_leader()
        rivals = []
        while now() < boundary:
            rivals.append(Leadership("default").acquire())
            held = wait_for_a_leader()
            assert (held.owner, held.acquired_at) == (first.owner, first.acquired_at)
            assert held.expires_at > now()
        wait_until(messages)

    assert len(rivals) > 20
    assert not any(rivals)
    assert boundaries_fired() == [boundary]


def test_a_lease_lasts_ten_seconds_and_is_renewed_every_two() -> None:
    with run():
        ends = {wait_for_a_leader().expires_at}
        deadline = time.monotonic() + 2.8
        while time.monotonic() < deadline:
            held = wait_for_a_leader()
            assert held.expires_at - now() > timedelta(seconds=6)
            ends.add(held.expires_at)

    assert 2 <= len(ends) <= 3  # the third if the first was read right before a renewal


def test_an_expired_lease_cannot_be_renewed() -> None:
    leader = Leadership("default")
    assert leader.acquire()
    assert leader.renew()

    hold_lease(leader.owner, ttl=-0.001)

    assert not leader.renew()
    assert wait_for_a_leader().expires_at < now()


def test_a_lease_of_another_cannot_be_renewed_or_given_up() -> None:
    leader, other = Leadership("default"), Leadership("default")
    assert leader.acquire()

    assert not other.renew()
    other.release()

    assert wait_for_a_leader().owner == leader.owner


def test_a_lease_is_taken_over_when_it_has_run_out_and_not_before() -> None:
    other = Leadership("default")
    hold_lease("dead", ttl=30)
    assert not other.acquire()

    hold_lease("dead", ttl=-0.001)

    before = now()
    assert other.acquire()
    held = Lease.objects.get()
    assert held.owner == other.owner
    assert before <= held.acquired_at <= now()


def test_a_runner_takes_what_a_broken_connection_has_left_of_its_own_lease() -> None:
    leader = Leadership("default")

    assert leader.acquire()
    assert leader.acquire()
    assert leader.seconds_of_others() == 0.0


@pytest.mark.parametrize("dead", [False, True])
def test_of_many_that_want_it_at_once_exactly_one_leads(together: Together, dead: bool) -> None:
    for _ in range(10):
        Lease.objects.all().delete()
        if dead:
            hold_lease("dead", ttl=-0.001)
        barrier = threading.Barrier(8)

        def take(barrier: threading.Barrier = barrier) -> bool:
            backend_pid()  # so that all are connected
            barrier.wait(10)
            return Leadership("default").acquire()

        assert sorted(together.run([take] * 8)) == [False] * 7 + [True]


def advisory_locks() -> list[Any]:
    with session() as other:
        return other.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        ).fetchall()


def test_no_lock_outlives_the_statement() -> None:
    # E25
    leader = Leadership("default")
    leader.acquire()
    leader.renew()
    leader.release()

    assert advisory_locks() == []


def test_a_rolled_back_acquisition_leaves_nothing_to_wait_for(together: Together) -> None:
    # E25
    with transaction.atomic():
        assert Leadership("default").acquire()
        assert together.start(Leadership("default").acquire).result(5) is False
        transaction.set_rollback(True)

    assert lease() is None
    assert advisory_locks() == []
    assert Leadership("default").acquire()


def test_a_cancelled_renewal_leaves_no_lock_behind(together: Together) -> None:
    # E25
    leader = Leadership("default")
    assert leader.acquire()
    pids: list[int] = []

    def renew() -> bool:
        pids.append(backend_pid())
        return leader.renew()

    with transaction.atomic():
        assert leader.renew()
        waiting = together.start(renew)
        wait_until_blocked(waiting, by=backend_pid())
        with session() as other:
            other.execute("SELECT pg_cancel_backend(%s)", pids)
        with pytest.raises(OperationalError, match="cancel"):
            waiting.result(10)

    assert advisory_locks() == []
    assert leader.renew()


def test_a_stand_by_writes_what_is_declared_while_another_leads(settings: LazySettings) -> None:
    settings.OUTBOX = {"SCHEDULES": {"cleaning": {"spec": "@every 1d", "queue": "chores"}}}
    hold_lease("another")

    with run(standing_by):
        wait_until(lambda: Schedule.objects.filter(name="cleaning", source="code").exists())

    assert wait_for_a_leader().owner == "another"


@pytest.mark.usefixtures("attentive")
def test_a_stand_by_fires_nothing_until_the_leader_is_gone() -> None:
    schedule()
    boundary = make_due(ago=2)
    hold_lease("another", ttl=1.0)
    ends = wait_for_a_leader().expires_at

    with run(standing_by):
        wait_until(messages)

    (message,) = messages()
    assert boundaries_fired() == [boundary]
    assert timedelta(0) < message.created_at - ends < timedelta(seconds=1.5)


@pytest.mark.usefixtures("attentive")
def test_a_stand_by_takes_over_at_once_when_the_lease_is_given_up() -> None:
    with run(standing_by) as first:
        owner = wait_for_a_leader().owner
        with run(standing_by):
            first.stop.stop()
            assert first.join() is None
            wait_until(lambda: (held := lease()) and held.owner != owner, within=2)


def test_an_error_after_the_election_does_not_leave_an_idle_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # E23
    schedule()
    boundary = make_due()
    failures = [OperationalError("server closed the connection unexpectedly")]

    def fail_once(*args: Any, **options: Any) -> Batch:
        if failures:
            raise failures.pop()
        return tick_batch(*args, **options)

    monkeypatch.setattr(running, "tick_batch", fail_once)

    with run(standing_by):
        wait_until(messages, within=5)

    assert boundaries_fired() == [boundary]
    assert failures == []


def cut_other_sessions() -> None:
    """End all sessions of the database but the test's own."""
    with session() as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid NOT IN"
            " (pg_backend_pid(), %s) AND datname = current_database()",
            [backend_pid()],
        )


@pytest.mark.usefixtures("attentive")
@pytest.mark.parametrize("leads", [True, False])
def test_a_scheduler_whose_session_ends_warns_once_and_says_when_the_database_is_back(
    leads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not leads:
        hold_lease()
    with caplog.at_level(logging.INFO, "django_outbox"), run(standing_by):
        wait_until(lambda: events(caplog) == ["leading" if leads else "standing_by"])
        caplog.clear()

        cut_other_sessions()

        wait_until(lambda: len(events(caplog)) == 3, within=5)
        assert events(caplog) == (
            ["database_away", "leading", "database_back"]
            if leads
            else ["database_away", "database_back", "standing_by"]
        )
        assert [record.levelname for record in caplog.records].count("WARNING") == 2


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["event"] for record in caplog.records]


@pytest.mark.usefixtures("attentive")
def test_a_leader_whose_database_session_ends_gives_up_with_leadership_lost() -> None:
    runner = Runner(outbox.run_schedules)
    wait_for_a_leader()

    cut_other_sessions()

    assert isinstance(runner.join(), outbox.LeadershipLost)


def test_an_idle_leader_fires_within_50_ms_of_the_boundary() -> None:
    schedule(spec="@every 1s")
    with run():
        wait_until(lambda: len(messages()) >= 4)

    late = [
        (message.created_at - boundary).total_seconds()
        for message, boundary in zip(messages(), boundaries_fired(), strict=True)
    ]
    assert min(late) >= 0
    assert min(late) < 0.05  # what a busy machine adds to others is not the leader's doing


def test_a_new_schedule_is_noticed_within_a_second() -> None:
    schedule("far", "@every 1h")
    with run():
        wait_for_a_leader()
        with transaction.atomic():
            schedule()
            make_due(ago=0)
        written = now()
        wait_until(messages)

    assert messages()[0].created_at - written < timedelta(seconds=1.2)


def test_a_changed_spec_is_noticed_within_a_second() -> None:
    # E21
    schedule(spec="@every 1d")
    with run():
        wait_for_a_leader()
        Schedule.objects.update(spec="@every 1s")
        changed = now()
        wait_until(messages)

    assert messages()[0].created_at - changed < timedelta(seconds=2.3)


def test_one_that_is_switched_off_fires_no_more() -> None:
    # E21
    schedule(spec="@every 1s")
    schedule("marker", "@every 1s", queue="marks")
    with run():
        wait_until(lambda: messages("orders") and messages("marks"))
        Schedule.objects.filter(name="report").update(enabled=False)
        switched_off = now()
        wait_until(lambda: boundaries_fired("marker")[-1] > switched_off + timedelta(seconds=1))

    assert all(boundary <= switched_off for boundary in boundaries_fired("report"))
