"""Django commands run as processes of their own, none of which outlives the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from django.conf import settings

from example_project.shop.demo import caretaker
from example_project.shop.demo.interrupting import uninterrupted

PATIENCE = 10.0
"""Seconds that a process gets to stop in good order."""


class ProcessEnded(Exception):
    """A process that should go on running has ended."""


class Processes:
    """The processes of one demo; leaving the block stops them all.

    What they write goes to a log file, which is gone afterwards unless `keep_log` was called.
    """

    def __init__(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix="outbox-demo-", suffix=".log")
        self.log = Path(name)
        self._log = os.fdopen(descriptor, "wb")
        self._running: list[subprocess.Popen[bytes]] = []
        self._caretaker = subprocess.Popen(
            [sys.executable, "-I", "-S", caretaker.__file__, self.log],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def start(self, *command: str, debug: bool = False) -> subprocess.Popen[bytes]:
        """Start `manage.py` with this command."""
        with uninterrupted():
            process = subprocess.Popen(
                [sys.executable, str(settings.BASE_DIR / "manage.py"), *command],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, "DEBUG": str(debug)},
                # Ctrl-C goes to all processes of a session, and would reach it once more by us.
                start_new_session=True,
            )
            self._running.append(process)
            self._tell_caretaker(process.pid)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process as a power cut would."""
        process.kill()
        self._wait(process)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Let a process finish what it is at; kill it if that takes too long."""
        process.send_signal(signal.SIGINT)
        self._wait(process)

    def check(self) -> None:
        """Raise `ProcessEnded` if one has ended without having been asked to."""
        for process in self._running:
            if process.poll() is not None:
                self.keep_log()
                raise ProcessEnded(
                    f"{process.args!r} ended with exit code {process.returncode}; see {self.log}"
                )

    def keep_log(self) -> None:
        """Leave the log file for somebody to read."""
        self._tell_caretaker(0)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._running.remove(process)
        self._tell_caretaker(-process.pid)

    def _tell_caretaker(self, number: int) -> None:
        assert self._caretaker.stdin is not None  # noqa: S101 - a pipe was asked for
        self._caretaker.stdin.write(f"{number}\n".encode())
        self._caretaker.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # All are told at once, so that they stop at the same time.
        for process in self._running:
            process.send_signal(signal.SIGINT)
        for process in list(self._running):
            self._wait(process)
        self._log.close()
        self._caretaker.communicate()  # Closes its standard input, and waits for it.
