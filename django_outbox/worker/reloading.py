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
    """Run this same command in a child, again each time its code changes; return its exit code."""
    environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
    child: subprocess.Popen[bytes] | None = None

    def forward(signum: int, frame: Any) -> None:
        if child is not None:
            child.send_signal(signum)

    # A terminal's CTRL-C reaches the child by itself; forwarding it would make it the second.
    signal.signal(signal.SIGINT, signal.SIG_IGN if sys.stdin.isatty() else forward)
    signal.signal(signal.SIGTERM, forward)
    while True:
        child = subprocess.Popen(autoreload.get_child_arguments(), env=environment)  # noqa: S603
        if (code := child.wait()) != CHANGED:
            return code if code >= 0 else 128 - code


class Changes:
    """Whether a file has changed since the worker started."""

    def __init__(self) -> None:
        self.seen = False

    def exit_code(self, code: int) -> int:
        """Return the code to exit with: a restart if something changed, else the worker's."""
        return CHANGED if self.seen else code


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
