"""A supervisor goes on where processes cannot be started, and gives up where that is of no use."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

import pytest

from django_outbox.worker import processes
from django_outbox.worker.processes import Supervisor, is_supervised
from tests.process import targets


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LONGEST_PAUSE", 0.05)  # from the second on


def supervisor(target: processes.Target, code: int = 0, *, count: int = 1) -> Supervisor:
    return Supervisor(count, target, code, restarts=False, shutdown_timeout=5)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition(") ")[2] for record in caplog.records]


def test_one_that_is_to_end_and_fails_each_time_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert supervisor(targets.work, 3).run() == 1

    assert logged(caplog) == [
        "ended with code 3; another starts in 1 s",
        *["ended with code 3; another starts in 0.05 s"] * 3,
        "ended with code 3; it is given up after 5 failures",
    ]


@pytest.mark.parametrize(("first", "code"), [(3, 0), (1, 1)])
def test_one_that_recovers_has_done_its_work_unless_it_left_some(first: int, code: int) -> None:
    assert supervisor(targets.recover, first, count=2).run() == code


def test_where_none_can_be_started_it_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    made = supervisor(targets.work)

    with no_more_files(until=0.5):
        assert made.run() == 0

    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "Worker process 1 could not be started: [Errno 24] Too many open files"
    assert messages[1] == "Worker process 1 (pid None) ended with code 71; another starts in 1 s"


@contextmanager
def no_more_files(*, until: float) -> Iterator[None]:
    """Let this process open no more files for so many seconds."""
    resource_tracker.ensure_running()  # as `run` does before it starts any
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    lifted = threading.Timer(until, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard)))
    lifted.start()
    try:
        yield
    finally:
        lifted.join()


def test_a_process_of_somebody_else_s_is_not_supervised() -> None:
    process = multiprocessing.get_context("spawn").Process(target=targets.tell)
    process.start()
    process.join()

    assert process.exitcode == 0
    assert not is_supervised()
