"""A reloading worker that is told to stop does, and one whose code is broken waits for better."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.process.stage import ROOT, Stage, WorkerProcess
from tests.support import committed, publish, wait_until
from tests.testapp.models import Order

pytestmark = committed

HANDLERS = """
from django_outbox import outbox
from tests.testapp.models import Order


@outbox.handler("versioned")
def handle(message):
    Order.objects.create(name="version {version}")
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Give the module of handlers that the worker reloads."""
    app = tmp_path / "changing"
    app.mkdir()
    (app / "__init__.py").touch()
    handlers = app / "outbox_handlers.py"
    handlers.write_text(HANDLERS.format(version=1))
    return handlers


@pytest.fixture
def worker(stage: Stage, tmp_path: Path, code: Path) -> WorkerProcess:
    return stage.worker(
        reload="--reload",
        WORKER_APPS="tests.workerapp,changing",
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONWARNINGS="default",
    ).ready()


def change(code: Path, text: str, worker: WorkerProcess, *, times: int = 1) -> None:
    """Write the module and see that the worker has noticed."""
    code.write_text(text)

    def is_noticed() -> bool:
        # A change before the watcher's first look is none to it, so the file is touched until
        # it has seen one.
        later = code.stat().st_mtime + 10
        os.utime(code, (later, later))
        return worker.log.count("changed, restarting") >= times

    wait_until(is_noticed)


def test_a_stop_during_the_restart_ends_it_when_the_handlers_have(
    stage: Stage, worker: WorkerProcess, code: Path
) -> None:
    publish(queue="gated")
    stage.event("start")
    change(code, HANDLERS.format(version=2), worker)

    worker.signal(signal.SIGTERM)
    stage.let_on()

    assert worker.wait() == 0
    assert stage.event("end")["deliveries"] == 1
    assert worker.log.count("serves") == 1
    assert "Traceback" not in worker.log


def test_code_that_cannot_start_is_waited_for_until_it_can(
    worker: WorkerProcess, code: Path
) -> None:
    change(code, "import nonsense_that_is_nowhere\n", worker)
    worker.wait_for_log("Error")

    def is_back() -> bool:
        later = code.stat().st_mtime + 10
        os.utime(code, (later, later))
        return worker.log.count("serves") == 2

    code.write_text(HANDLERS.format(version=2))
    wait_until(is_back)
    publish(queue="versioned")

    wait_until(lambda: list(Order.objects.values_list("name", flat=True)) == ["version 2"])
    assert worker.stop() == 0


def test_a_stop_while_broken_code_is_waited_for_is_obeyed(
    worker: WorkerProcess, code: Path
) -> None:
    change(code, "def handle(:\n", worker)
    worker.wait_for_log("Waiting for a change")

    assert worker.stop() == 0
