"""Several worker processes under one supervisor."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from django_outbox.models import Worker
from tests.process.spare import ALIAS, Spare
from tests.process.stage import Stage
from tests.support import wait_until


def pids() -> set[int]:
    """Return the processes that have said that they live."""
    return set(Worker.objects.using(ALIAS).values_list("pid", flat=True))


def children(pid: int) -> set[int]:
    """Return the worker processes of a supervisor, from the moment they are started."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"spawn_main" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found


def exists(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_each_process_is_a_worker_of_its_own_and_all_stop_together(
    stage: Stage, spare: Spare
) -> None:
    supervisor = stage.worker(
        "--processes", "2", "--worker-id", "w", "--concurrency", "1", database_url=spare.url
    )
    supervisor.wait_for_log("serves", times=2)
    wait_until(lambda: len(pids()) == 2)
    names = set(Worker.objects.using(ALIAS).values_list("worker_id", flat=True))

    assert names == {"w:1", "w:2"}
    assert supervisor.pid not in pids()
    started = pids()
    assert supervisor.stop() == 0
    assert pids() == set()
    assert not any(map(exists, started))


def test_their_log_is_one_and_each_line_says_whose_it_is(stage: Stage, spare: Spare) -> None:
    supervisor = stage.worker(
        "--processes", "2", "--worker-id", "100%", "--concurrency", "1", database_url=spare.url
    )
    supervisor.wait_for_log("serves", times=2)
    wait_until(lambda: len(pids()) == 2)
    assert supervisor.stop() == 0

    log = supervisor.log
    assert "2 processes. Stop them with CTRL-C.\n" in log
    assert log.count("CTRL-C") == 1
    for number in (1, 2):
        assert f" INFO 100%:{number}: Stopping; finishing 0 message(s)\n" in log


def test_they_share_the_work(stage: Stage, spare: Spare) -> None:
    supervisor = stage.worker("--processes", "2", "--concurrency", "1", database_url=spare.url)
    for _ in range(2):
        spare.publish(queue="gated")

    events = [stage.event("start") for _ in range(2)]

    assert len({event["pid"] for event in events}) == 2
    stage.let_on(2)
    assert supervisor.stop() == 0
    assert not spare.messages.exists()


def test_one_that_is_killed_is_started_again(stage: Stage, spare: Spare) -> None:
    supervisor = stage.worker("--processes", "2", database_url=spare.url)
    supervisor.wait_for_log("serves", times=2)
    wait_until(lambda: len(pids()) == 2)
    before = pids()
    killed = min(before)

    os.kill(killed, signal.SIGKILL)

    supervisor.wait_for_log(f"(pid {killed}) ended with code -9; another starts in 1 s")
    wait_until(lambda: len(pids() - before) == 1)
    names = set(Worker.objects.using(ALIAS).values_list("worker_id", flat=True))
    assert len(names) == 3  # whoever holds a lease of the one that was killed is seen as lost
    assert supervisor.stop() == 0


def test_with_drain_it_ends_when_each_of_them_has(stage: Stage, spare: Spare) -> None:
    spare.publish_many([None] * 50, queue="empty")

    supervisor = stage.worker("--processes", "2", "--drain", database_url=spare.url)

    assert supervisor.wait() == 0
    assert not spare.messages.exists()


def test_one_that_has_had_its_number_of_messages_is_started_again_at_once(
    stage: Stage, spare: Spare
) -> None:
    spare.publish_many([None] * 5, queue="quick")

    supervisor = stage.worker("--processes", "2", "--max-messages", "1", database_url=spare.url)

    assert len({stage.event("done")["pid"] for _ in range(5)}) == 5
    assert supervisor.stop() == 0
    assert "ended with code" not in supervisor.log


def test_a_second_signal_ends_all_at_once(stage: Stage, spare: Spare) -> None:
    supervisor = stage.worker("--processes", "2", "--concurrency", "1", database_url=spare.url)
    for _ in range(2):
        spare.publish(queue="gated")
    started = {stage.event("start")["pid"] for _ in range(2)}

    supervisor.signal(signal.SIGTERM)
    supervisor.wait_for_log("Stopping", times=2)
    supervisor.signal(signal.SIGTERM)

    assert supervisor.wait() == 128 + signal.SIGTERM
    wait_until(lambda: not any(map(exists, started)))


def test_they_stop_in_good_order_when_their_supervisor_is_killed(
    stage: Stage, spare: Spare
) -> None:
    supervisor = stage.worker("--processes", "2", database_url=spare.url)
    supervisor.wait_for_log("serves", times=2)
    wait_until(lambda: len(pids()) == 2)
    started = pids()

    supervisor.signal(signal.SIGKILL)
    assert supervisor.wait() == -signal.SIGKILL

    wait_until(lambda: not any(map(exists, started)))
    assert pids() == set()  # each has said that it leaves


def test_a_signal_to_all_at_once_lets_handlers_finish(stage: Stage, spare: Spare) -> None:
    """So systemd stops a service; each process gets the signal from its supervisor, too."""
    supervisor = stage.worker("--processes", "2", "--concurrency", "1", database_url=spare.url)
    for _ in range(2):
        spare.publish(queue="gated")
    started = [stage.event("start")["pid"] for _ in range(2)]

    for pid in started:
        os.kill(pid, signal.SIGTERM)
    supervisor.wait_for_log("Stopping", times=2)
    supervisor.signal(signal.SIGTERM)
    for pid in started:
        os.kill(pid, signal.SIGTERM)
    stage.let_on(2)

    assert supervisor.wait() == 0
    assert not spare.messages.exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_a_terminal_s_ctrl_c_while_they_start_leaves_no_traceback(
    stage: Stage, spare: Spare
) -> None:
    supervisor = stage.worker("--processes", "2", database_url=spare.url)
    wait_until(lambda: len(children(supervisor.pid)) == 2)

    os.killpg(supervisor.pid, signal.SIGINT)

    assert supervisor.wait() == 0
    assert "Traceback" not in supervisor.log


def test_only_the_first_has_the_scheduler(stage: Stage, spare: Spare) -> None:
    supervisor = stage.worker("--processes", "2", "--with-scheduler", database_url=spare.url)
    wait_until(lambda: Worker.objects.using(ALIAS).count() == 3)

    kinds = list(Worker.objects.using(ALIAS).values_list("kind", flat=True))

    assert sorted(kinds) == ["scheduler", "worker", "worker"]
    assert supervisor.stop() == 0


def test_a_terminal_s_ctrl_c_stops_all_in_good_order(stage: Stage, spare: Spare) -> None:
    supervisor = stage.worker("--processes", "2", database_url=spare.url)
    supervisor.wait_for_log("serves", times=2)
    wait_until(lambda: len(pids()) == 2)

    os.killpg(supervisor.pid, signal.SIGINT)

    assert supervisor.wait() == 0
    assert pids() == set()


@pytest.mark.parametrize("count", ["0", "-1", "two"])
def test_a_number_of_processes_that_is_none_is_refused(
    stage: Stage, spare: Spare, count: str
) -> None:
    worker = stage.worker("--processes", count, database_url=spare.url)

    assert worker.wait() != 0
    assert "positive whole number" in worker.log
