"""Schedulers as processes: killed, paused, stopped, and cut off from their database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from django_outbox import outbox
from django_outbox.models import Lease, OutboxMessage, Schedule
from tests.process.spare import ALIAS, Spare
from tests.process.stage import ROOT, Stage, WorkerProcess
from tests.support import wait_until

TTL = timedelta(seconds=10)
SHORT = {"WORKER_APPS": "tests.shortlease"}
"""With it a leader's term is three seconds instead of ten."""

DECLARED = '{"SCHEDULES": {"cleaning": {"spec": "@every 1d", "queue": "chores"}}}'

Start = Callable[..., WorkerProcess]


def environment(url: str, **env: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "tests.settings_worker",
        "PYTHONWARNINGS": "error",
        "PYTHONUNBUFFERED": "1",
        **env,
    }


@pytest.fixture
def start(spare: Spare) -> Iterator[Start]:
    """Start schedulers on the spare server; they end with the test."""
    processes: list[WorkerProcess] = []
    clear(spare)

    def start(*arguments: str, **env: str) -> WorkerProcess:
        process = WorkerProcess(["outbox_scheduler", *arguments], environment(spare.url, **env))
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
    spare.resume()
    clear(spare)


def clear(spare: Spare) -> None:
    spare.execute("TRUNCATE django_outbox_schedule, django_outbox_lease, django_outbox_message")


def schedule(name: str = "report", spec: str = "@every 1s", **options: Any) -> None:
    outbox.schedule(name, spec, queue="orders", using=ALIAS, **options)


def stored(name: str = "report") -> Schedule:
    return Schedule.objects.using(ALIAS).get(name=name)


def messages() -> list[OutboxMessage]:
    return list(OutboxMessage.objects.using(ALIAS).order_by("id"))


def boundaries() -> list[datetime]:
    return [datetime.fromisoformat(message.headers["boundary"]) for message in messages()]


def lease() -> Lease | None:
    return Lease.objects.using(ALIAS).first()


def clock(spare: Spare) -> datetime:
    ((now,),) = spare.query("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


def is_after(spare: Spare, moment: datetime) -> bool:
    return clock(spare) > moment


def is_leading(process: WorkerProcess) -> bool:
    held = lease()
    return held is not None and f":{process.pid}:" in held.owner


def leader_of(processes: list[WorkerProcess]) -> WorkerProcess:
    """Wait until one of them leads, and return it."""
    wait_until(lambda: any(is_leading(process) for process in processes), within=15)
    return next(process for process in processes if is_leading(process))


def assert_each_once(step: timedelta) -> None:
    """See that from the first boundary to the last each was fired exactly once."""
    fired = boundaries()
    assert {later - earlier for earlier, later in pairwise(fired)} == {step}


def test_of_three_schedulers_whose_leader_is_killed_each_boundary_is_fired_once(
    start: Start, spare: Spare
) -> None:
    # E11
    schedule(spec="@every 1s")
    first = stored().next_run_at
    processes = [start() for _ in range(3)]
    leader = leader_of(processes)
    wait_until(lambda: len(messages()) >= 2)

    killed = clock(spare)
    leader.signal(signal.SIGKILL)
    processes.remove(leader)
    successor = leader_of(processes)
    taken_over = clock(spare)
    wait_until(lambda: boundaries()[-1] > taken_over + timedelta(seconds=1))

    assert taken_over - killed < TTL + timedelta(seconds=1)
    assert successor.is_running
    assert boundaries()[0] == first
    assert_each_once(timedelta(seconds=1))
    assert sum(is_leading(process) for process in processes) == 1
    assert [process.stop() for process in processes] == [0, 0]
    for process in processes:
        assert "Traceback" not in process.log


@pytest.mark.skipif("SLOW_TESTS" not in os.environ, reason="two minutes; set SLOW_TESTS=1")
@pytest.mark.timeout(200)
def test_in_two_minutes_in_which_the_leader_is_killed_twice_each_boundary_is_fired_once(
    start: Start, spare: Spare
) -> None:
    # E11
    schedule(spec="@every 2s")
    first = stored().next_run_at
    assert first is not None
    processes = [start() for _ in range(3)]

    for seconds in (40, 80):
        leader = leader_of(processes)
        end = first + timedelta(seconds=seconds)
        wait_until(partial(is_after, spare, end), within=60)
        leader.signal(signal.SIGKILL)
        processes.remove(leader)
        processes.append(start())
    leader_of(processes)
    wait_until(lambda: boundaries()[-1] >= first + timedelta(seconds=118), within=60)

    assert boundaries()[:60] == [first + timedelta(seconds=2 * n) for n in range(60)]
    assert [process.stop() for process in processes] == [0, 0, 0]


def test_a_leader_that_is_paused_past_its_ttl_fires_nothing_stale_when_it_goes_on(
    start: Start, spare: Spare
) -> None:
    # E19
    schedule(spec="@every 1s")
    paused = start(**SHORT)
    leader_of([paused])
    wait_until(messages)
    second = start(**SHORT)
    second.wait_for_log("Scheduler")

    paused.signal(signal.SIGSTOP)
    leader_of([second])
    resumed = clock(spare)
    paused.signal(signal.SIGCONT)
    wait_until(lambda: boundaries()[-1] > resumed + timedelta(seconds=1.5))

    assert is_leading(second)
    assert_each_once(timedelta(seconds=1))
    assert paused.is_running
    assert paused.stop() == 0
    assert is_leading(second)
    assert second.stop() == 0
    assert "Traceback" not in paused.log


def waits_for_a_lock(spare: Spare, name: str) -> bool:
    return bool(
        spare.query(
            "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = %s",
            [name, "Lock"],
        )
    )


def test_a_leader_paused_in_the_middle_of_a_tick_does_not_hold_up_its_successor(
    start: Start, spare: Spare
) -> None:
    # E19
    schedule(spec="@every 1s")
    paused = start(PGAPPNAME="paused", **SHORT)
    leader_of([paused])
    wait_until(messages)
    second = start(**SHORT)
    second.wait_for_log("Scheduler")

    with spare.session() as other, other.transaction():
        other.execute("LOCK TABLE django_outbox_message IN SHARE MODE")
        wait_until(lambda: waits_for_a_lock(spare, "paused"))
        paused.signal(signal.SIGSTOP)
    began = clock(spare)
    leader_of([second])
    wait_until(lambda: boundaries()[-1] > began)
    fired_again = clock(spare)
    paused.signal(signal.SIGCONT)
    wait_until(lambda: boundaries()[-1] > fired_again + timedelta(seconds=1.5))

    assert fired_again - began < timedelta(seconds=5)
    assert_each_once(timedelta(seconds=1))
    assert is_leading(second)
    assert paused.is_running
    assert [paused.stop(), second.stop()] == [0, 0]
    assert "Traceback" not in paused.log


def test_a_leader_that_is_stopped_exits_0_and_a_stand_by_takes_over_at_once(
    start: Start, spare: Spare
) -> None:
    schedule(spec="@every 1s")
    leader = start()
    leader_of([leader])
    stand_by = start()
    stand_by.wait_for_log("Scheduler")
    wait_until(messages)

    leader.signal(signal.SIGTERM)
    assert leader.wait(within=3) == 0
    wait_until(lambda: is_leading(stand_by), within=2)
    fired = len(messages())
    wait_until(lambda: len(messages()) > fired)

    assert_each_once(timedelta(seconds=1))
    assert "Traceback" not in leader.log
    assert stand_by.stop() == 0
    assert lease() is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stand_by_stops_at_once_and_leaves_the_leader_alone(start: Start, signum: int) -> None:
    leader = start()
    leader_of([leader])
    stand_by = start()
    stand_by.wait_for_log("Scheduler")
    began = time.monotonic()

    stand_by.signal(signum)

    assert stand_by.wait() == 0
    assert time.monotonic() - began < 2
    assert is_leading(leader)


def test_after_a_restart_of_the_database_the_same_process_goes_on(
    start: Start, spare: Spare
) -> None:
    schedule(spec="@every 1s")
    process = start(**SHORT)
    leader_of([process])
    wait_until(messages)

    spare.halt("immediate")
    process.wait_for_log("does not answer")
    spare.resume()
    back = clock(spare)
    wait_until(lambda: boundaries()[-1] > back + timedelta(seconds=1), within=12)

    assert process.is_running
    assert_each_once(timedelta(seconds=1))
    assert process.stop() == 0
    assert "Traceback" not in process.log


def test_a_read_only_spell_is_told_of_once_and_its_end_too(start: Start, spare: Spare) -> None:
    schedule(spec="@every 1s")
    process = start()
    leader_of([process])
    spare.set_read_only("on")
    try:
        process.wait_for_log("does not answer the scheduler")
        end = clock(spare) + timedelta(seconds=3)
        wait_until(lambda: is_after(spare, end))
    finally:
        spare.set_read_only("off")

    process.wait_for_log("serves the scheduler again")
    back = clock(spare)
    wait_until(lambda: boundaries()[-1] > back)
    assert process.log.count("does not answer the scheduler") == 1
    assert process.log.count("serves the scheduler again") == 1
    assert_each_once(timedelta(seconds=1))


def test_a_leader_whose_backend_answers_nothing_ends_soon_when_it_is_told_to(
    start: Start, spare: Spare
) -> None:
    process = start(PGAPPNAME="silent")
    leader_of([process])
    ((pid,),) = spare.query("SELECT pid FROM pg_stat_activity WHERE application_name = 'silent'")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: seconds_left(spare) < 7)  # it waits for the answer to a renewal
        began = time.monotonic()

        process.signal(signal.SIGTERM)

        assert process.wait() == 0
        assert time.monotonic() - began < 10
    finally:
        os.kill(pid, signal.SIGCONT)


def seconds_left(spare: Spare) -> float:
    """Return how long the lease lasts still; in good order it is renewed every two seconds."""
    held = lease()
    assert held is not None
    return (held.expires_at - clock(spare)).total_seconds()


def statements(spare: Spare, name: str) -> int:
    """Count what the one session of this name has run so far, as the server has logged it."""
    ((pid,),) = spare.query("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name])
    log = (spare.server.data / "server.log").read_text()
    return log.count(f"[{pid}] LOG:  statement:") + log.count(f"[{pid}] LOG:  execute ")


def test_an_idle_leader_and_an_idle_stand_by_run_two_statements_a_second_at_most(
    start: Start, spare: Spare
) -> None:
    # K11
    schedule(spec="@every 1h")
    leader = start(PGAPPNAME="leader", PGOPTIONS="-c log_statement=all")
    leader_of([leader])
    start(PGAPPNAME="stand-by", PGOPTIONS="-c log_statement=all").wait_for_log("Scheduler")
    time.sleep(1)  # the start is over

    before = {name: statements(spare, name) for name in ("leader", "stand-by")}
    time.sleep(3)
    ran = {name: statements(spare, name) - count for name, count in before.items()}

    assert 3 <= ran["leader"] <= 6
    assert 2 <= ran["stand-by"] <= 6
    assert is_leading(leader)


def test_a_starting_scheduler_writes_what_is_declared_also_as_a_stand_by(start: Start) -> None:
    leader_of([start()])
    start(WORKER_OUTBOX=DECLARED)

    wait_until(lambda: Schedule.objects.using(ALIAS).filter(name="cleaning").exists())

    assert (stored("cleaning").source, stored("cleaning").queue) == ("code", "chores")


def once(spare: Spare, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "outbox_scheduler", "--once", *arguments],
        env=environment(spare.url, **env),
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_once_writes_what_is_declared_fires_what_is_due_and_exits(spare: Spare) -> None:
    clear(spare)
    schedule(spec="@every 1h")
    schedule("later", spec="@every 1h")
    Schedule.objects.using(ALIAS).filter(name="report").update(next_run_at=clock(spare))

    ran = once(spare, WORKER_OUTBOX=DECLARED)

    assert ran.returncode == 0
    assert ran.stderr.endswith(" INFO The schedule 'cleaning' is new: '@every 1d' in UTC.\n")
    assert "1 message" in ran.stdout
    assert [message.headers["schedule"] for message in messages()] == ["report"]
    assert stored("cleaning").source == "code"
    assert lease() is None
    clear(spare)


def test_a_declaration_that_is_wrong_ends_the_command_with_what_to_do(spare: Spare) -> None:
    wrong = '{"SCHEDULES": {"cleaning": {"spec": "0 6 * * *", "queue": "chores"}}}'

    ran = once(spare, WORKER_OUTBOX=wrong)

    assert ran.returncode == 1
    assert "'cleaning'" in ran.stderr
    assert "@cron 0 6 * * *" in ran.stderr


def test_a_worker_with_a_scheduler_fires_and_handles_and_gives_the_lead_up(
    stage: Stage, spare: Spare
) -> None:
    clear(spare)
    outbox.schedule("report", "@every 1s", queue="quick", payload="tick", using=ALIAS)
    worker = stage.worker(
        "--with-scheduler", "--concurrency", "1", database_url=spare.url, PGAPPNAME="worker"
    )

    steps = [stage.event("done") for _ in range(2)]

    assert [(step["payload"], step["pid"]) for step in steps] == [("tick", worker.pid)] * 2
    ((connected,),) = spare.query(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'worker'"
    )
    assert 2 <= connected <= 3
    assert worker.stop() == 0
    assert "Traceback" not in worker.log
    assert lease() is None
    clear(spare)
