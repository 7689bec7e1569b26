"""Reloading: a worker starts anew when its code changes, and finishes first what it runs."""

from __future__ import annotations

import os
from pathlib import Path

from tests.process.stage import ROOT, Stage
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


def names() -> list[str]:
    return list(Order.objects.order_by("id").values_list("name", flat=True))


def test_a_changed_handler_is_at_work_without_a_restart_by_hand(
    stage: Stage, tmp_path: Path
) -> None:
    app = tmp_path / "changing"
    app.mkdir()
    (app / "__init__.py").touch()
    handlers = app / "outbox_handlers.py"
    handlers.write_text(HANDLERS.format(version=1))
    worker = stage.worker(
        reload="--reload",
        WORKER_APPS="tests.workerapp,changing",
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONWARNINGS="default",
    ).ready()
    publish(queue="versioned")
    wait_until(lambda: names() == ["version 1"])
    publish(queue="gated")
    stage.event("start")

    handlers.write_text(HANDLERS.format(version=2))

    def is_noticed() -> bool:
        # A change before the watcher's first look is none to it, so the file is touched until
        # it has seen one.
        later = handlers.stat().st_mtime + 10
        os.utime(handlers, (later, later))
        return "changed, restarting" in worker.log

    wait_until(is_noticed)
    stage.let_on()
    assert stage.event("end")["deliveries"] == 1
    worker.wait_for_log("serves", times=2)
    publish(queue="versioned")

    wait_until(lambda: names() == ["version 1", "version 2"])
    assert worker.stop() == 0
