"""How many statements a second processes run that have nothing to do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from benchmarks.common import execute, wait_until_leading, wait_until_serving
from benchmarks.counting import logged, noting, read_notes
from benchmarks.scenario import Plan, Samples, Scenario
from benchmarks.scenarios.ticks import fill

SECONDS = 20
SETTLED = 2
"""Seconds after which what a process does once, as it starts, is over."""

Wait = Callable[["subprocess.Popen[bytes]"], None]


def statements(_plan: Plan, command: str, *arguments: str, wait: Wait) -> Samples:
    """Return the statements a second of a management command, those that begin and end too."""
    execute("TRUNCATE django_outbox_message, django_outbox_worker, django_outbox_lease")
    fill("@every 1h", 1_000, due=0)
    with logged(), noting(command, *arguments) as (process, notes):
        wait(process)
        time.sleep(SETTLED)
        before = read_notes(notes).total()
        time.sleep(SECONDS)
        return {"statements/s": [(read_notes(notes).total() - before) / SECONDS]}


SCENARIOS = [
    Scenario(
        "idle/worker",
        "statements a second of an idle worker",
        lambda plan: statements(plan, "outbox_worker", "--no-reload", wait=wait_until_serving),
        has_rounds=True,
    ),
    Scenario(
        "idle/scheduler",
        "the same of a scheduler, beside 1,000 schedules that are due later",
        lambda plan: statements(plan, "outbox_scheduler", wait=wait_until_leading),
        has_rounds=True,
    ),
]
