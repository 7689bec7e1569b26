"""Hosts whose clocks are wrong: only the database's clock counts.

libfaketime shifts the wall clock of a process, as a host's clock may be wrong, and leaves the
monotonic one alone, as a host does. Debian has it as the package `faketime`.
"""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.process.spare import Spare
from tests.process.stage import Stage, WorkerProcess
from tests.process.test_schedulers import (
    Start,
    assert_each_once,
    boundaries,
    clock,
    leader_of,
    lease,
    messages,
    schedule,
    start,  # noqa: F401 - a fixture
    stored,
)
from tests.support import wait_until

LIBRARY = next(
    (
        str(path)
        for place in ("/usr/lib", "/usr/local/lib", "/opt/homebrew/lib")
        for path in Path(place).glob("**/libfaketimeMT.so.1")
    ),
    None,
)

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs libfaketime")

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def wrong_by(shift: str) -> dict[str, str]:
    """Return the environment of a host whose clock is wrong by so much."""
    return {"FAKETIME": shift, **faked()}


def faked() -> dict[str, str]:
    return {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_CACHE_DURATION": "1",
        "TZ": "UTC",
    }


def clock_of(process: WorkerProcess) -> datetime:
    """Return the moment at which the process says that it wrote its last line."""
    stamp = process.log.splitlines()[-1][:19]
    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)


def is_wrong_by(process: WorkerProcess, shift: timedelta, spare: Spare) -> bool:
    return abs(clock_of(process) - clock(spare) - shift) < timedelta(minutes=5)


def test_a_clock_that_steps_back_holds_no_boundary_up(
    start: Start,  # noqa: F811
    spare: Spare,
    tmp_path: Path,
) -> None:
    # E27
    step = tmp_path / "clock"
    step.write_text("+0")
    schedule(spec="@every 1s")
    leader = start(FAKETIME_TIMESTAMP_FILE=str(step), **faked())
    leader_of([leader])
    wait_until(lambda: len(messages()) >= 2)
    held = lease()

    step.write_text("-1h")
    stepped = clock(spare)
    wait_until(lambda: boundaries()[-1] > stepped + 4 * SECOND)

    fired = [message.created_at for message in messages()]
    now_held = lease()
    assert held is not None
    assert now_held is not None
    assert (now_held.owner, now_held.acquired_at) == (held.owner, held.acquired_at)
    assert max(later - earlier for earlier, later in pairwise(fired)) < 2 * SECOND
    assert_each_once(SECOND)
    assert leader.stop() == 0
    assert is_wrong_by(leader, -HOUR, spare)


def test_hosts_an_hour_apart_fire_and_deliver_by_the_databases_clock(
    start: Start,  # noqa: F811
    stage: Stage,
    spare: Spare,
) -> None:
    # E29
    schedule(spec="@every 2s")
    first = stored().next_run_at
    scheduler = start(**wrong_by("-1h"))
    leader_of([scheduler])
    worker = stage.worker(
        "--queue", "quick", "--concurrency", "1", database_url=spare.url, **wrong_by("+1h")
    ).ready()

    delayed = spare.publish("later", queue="quick", activate_in=timedelta(seconds=3))
    due = spare.messages.get(pk=delayed).next_attempt_at
    step = stage.event("done")
    arrived = clock(spare)
    wait_until(lambda: len(messages()) >= 4)

    assert step["id"] == delayed
    assert due <= arrived < due + SECOND
    assert boundaries()[0] == first
    assert_each_once(2 * SECOND)
    for message in messages():
        boundary = datetime.fromisoformat(message.headers["boundary"])
        assert boundary <= message.created_at < boundary + SECOND
    assert [scheduler.stop(), worker.stop()] == [0, 0]
    assert is_wrong_by(scheduler, -HOUR, spare)
    assert is_wrong_by(worker, HOUR, spare)


@pytest.mark.parametrize(("holder", "peer"), [("+1h", "-1h"), ("-1h", "+1h")])
def test_leases_end_neither_early_nor_late_on_hosts_an_hour_apart(
    stage: Stage, spare: Spare, holder: str, peer: str
) -> None:
    # E29
    first = stage.worker(database_url=spare.url, **wrong_by(holder)).ready()
    id_ = spare.publish(queue="gated_short")
    assert stage.event("start")["deliveries"] == 1
    second = stage.worker(database_url=spare.url, **wrong_by(peer)).ready()

    # Twice the lease's length: renewed as it should be, and stolen by nobody.
    assert stage.next_step(within=3) is None
    first.signal(signal.SIGKILL)
    killed = clock(spare)
    again = stage.event("start")
    taken_over = clock(spare)

    assert (again["id"], again["deliveries"], again["pid"]) == (id_, 2, second.pid)
    # The lease of 1.5 s is renewed every half a second.
    assert 0.9 * SECOND < taken_over - killed < 3 * SECOND
    stage.let_on()
    stage.event("end")
    wait_until(lambda: not spare.messages.exists())
    assert second.stop() == 0
