"""Restart the worker when code changes, by Django's own reloader.

Django runs what it reloads in a thread that it kills; a worker must stop in good order, and take
its signals in the main thread. So the parts are turned round: the worker keeps the main thread, a
thread watches the files and stops it, and the parent process starts it anew.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.utils import autoreload

CHANGED = 3
"""The exit code that asks for a restart; Django's reloader uses the same."""


def is_child() -> bool:
    """Tell whether this process is one that a reloading parent has started."""
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


def supervise() -> int:
    """Run this same command in a child, again each time its code changes; return its exit code.

    A child that cannot start after a change, a syntax error say, is started again at the next one.
    """
    child: subprocess.Popen[bytes] | None = None
    signals: list[int] = []

    def forward(signum: int, frame: Any) -> None:
        signals.append(signum)
        if child is not None:
            child.send_signal(signum)

    signal.signal(signal.SIGINT, forward)
    signal.signal(signal.SIGTERM, forward)
    has_worked = False
    while True:
        environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
        child = subprocess.Popen(autoreload.get_child_arguments(), env=environment)  # noqa: S603 - this program's own command
        if signals:
            child.send_signal(signals[0])  # it came before there was a child
        code = child.wait()
        if signals or not (code == CHANGED or (code == 1 and has_worked)):
            return code if code >= 0 else 128 - code
        if code == CHANGED:
            has_worked = True
        elif not _wait_for_change(signals):
            return 0


def _wait_for_change(signals: list[int]) -> bool:
    """Wait until a file of the project changes; False if a signal comes first."""
    sys.stderr.write("Waiting for a change to start again.\n")
    reloader = autoreload.StatReloader()
    before = dict(reloader.snapshot_files())
    while dict(reloader.snapshot_files()) == before:
        if signals:
            return False
        time.sleep(reloader.SLEEP_TIME)
    return True


class Changes:
    """Whether a file has changed since the worker started."""

    def __init__(self) -> None:
        self.seen = False

    def exit_code(self, code: int, *, stopped: bool) -> int:
        """Return the code to exit with: a restart if something changed, else the worker's."""
        return CHANGED if self.seen and not stopped else code


@contextmanager
def watch(stop: Callable[[], None]) -> Iterator[Changes]:
    """Call `stop` when a file of the project changes, or the parent is gone."""
    changes = Changes()
    parent = os.getppid()
    reloader: Any = autoreload.get_reloader()
    ended = threading.Event()

    def on_change(sender: Any, file_path: Path, **kwargs: Any) -> bool:
        if not changes.seen:
            changes.seen = True
            sys.stderr.write(f"{file_path} changed, restarting.\n")
            stop()
        return True  # handled: Django's own way would end this thread and not the process

    def run() -> None:
        autoreload.autoreload_started.send(sender=reloader)
        for _ in reloader.tick():
            if ended.is_set():
                return
            if os.getppid() != parent:
                stop()

    autoreload.file_changed.connect(on_change, dispatch_uid="django_outbox.reload")
    threading.Thread(target=run, name="outbox-reload", daemon=True).start()
    try:
        yield changes
    finally:
        ended.set()
        autoreload.file_changed.disconnect(dispatch_uid="django_outbox.reload")
