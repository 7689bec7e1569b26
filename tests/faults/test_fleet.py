"""The fleet starts again what ends, and knows an end that nobody wanted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.fleet import Fleet, Program, surprising_ends
from tests.support import wait_until

Run = Callable[[str], Program]

SAYS_READY = "import sys, time; print('ready', file=sys.stderr, flush=True); "


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    fleet.start_keeping()
    yield fleet
    fleet.kill()


@pytest.fixture
def run(fleet: Fleet, tmp_path: Path) -> Run:
    def run(code: str) -> Program:
        program = Program(
            "program", ["-c", code], environment=os.environ, logs=tmp_path, ready="ready"
        )
        fleet.add(program)
        return program

    return run


def test_a_program_that_is_killed_is_started_again_and_no_surprise(fleet: Fleet, run: Run) -> None:
    program = run(f"{SAYS_READY}time.sleep(60)")
    wait_until(lambda: program.is_ready)

    program.signal(signal.SIGKILL)

    wait_until(lambda: program.starts == 2 and program.is_ready)
    assert fleet.ended_by_themselves() == []


def test_a_program_that_ends_by_itself_is_a_surprise(fleet: Fleet, run: Run) -> None:
    program = run(f"{SAYS_READY}sys.exit('gave up')")

    wait_until(lambda: program.starts == 2)

    assert fleet.ended_by_themselves()[0] == "program (start 1) ended with code 1: gave up"


def test_a_program_that_finds_no_database_when_it_starts_is_tried_again(
    fleet: Fleet, run: Run
) -> None:
    program = run("import sys; sys.exit('no database')")

    wait_until(lambda: program.starts == 2)

    assert fleet.ended_by_themselves() == []


def test_a_program_that_has_done_its_work_is_not_started_again(fleet: Fleet, run: Run) -> None:
    program = run(SAYS_READY)

    wait_until(lambda: program.is_finished)

    assert program.starts == 1
    assert fleet.ended_by_themselves() == []


def test_a_process_of_a_supervisor_that_ends_by_itself_is_a_surprise(
    fleet: Fleet, run: Run
) -> None:
    killed = "Worker process 1 (pid 7) ended with code -9"
    unstarted = "CommandError: The database 'default' cannot be used\nended with code 1"
    ended = "Worker process 2 (pid 8) ended with code 1"
    assert surprising_ends(f"{killed}\n{unstarted}") == []
    assert surprising_ends(f"{killed}\n{unstarted}\n{ended}") == ["1"]

    program = run(f"{SAYS_READY}print({ended!r}, file=sys.stderr)")
    wait_until(lambda: program.is_finished)

    assert fleet.ended_by_themselves() == ["a process of program ended with code 1"]
