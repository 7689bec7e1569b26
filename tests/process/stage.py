"""Where worker processes are started, heard and let on.

Handlers of `tests.workerapp` write what they do into one FIFO and wait at another, so tests know
where a process is without asking again and again.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import pytest
from django.db import connections

PATIENCE = 20.0
"""Seconds after which what a test waits for will not come."""

ROOT = Path(__file__).resolve().parents[2]


def url_of_the_test_database() -> str:
    """Return the URL of the test database, for a process that does not know of tests."""
    name = connections["default"].settings_dict["NAME"]
    return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{quote(name)}").geturl()


class WorkerProcess:
    """One `manage.py outbox_worker`, with what it has written to stderr so far."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        """What the process has written to stderr."""
        with self._news:
            return "".join(self._lines)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for_log(self, text: str, *, times: int = 1, within: float = PATIENCE) -> None:
        """Return when the text has been written so many times."""
        with self._news:
            came = self._news.wait_for(lambda: "".join(self._lines).count(text) >= times, within)
        assert came, f"{text!r} was not written within {within:g} s, but:\n{self.log}"

    def ready(self) -> Self:
        """Wait until the worker is about to claim, and takes signals."""
        self.wait_for_log("serves")
        return self

    def signal(self, signum: int) -> None:
        self._process.send_signal(signum)

    def wait(self, *, within: float = PATIENCE) -> int:
        """Return the exit code."""
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            pytest.fail(f"The worker did not end within {within:g} s. It wrote:\n{self.log}")
        self._reader.join(PATIENCE)
        return code

    def stop(self) -> int:
        """Stop in good order and return the exit code."""
        self._process.terminate()
        return self.wait()

    def kill(self) -> None:
        """End the process, and a child that reloading has started, if they still run."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(PATIENCE)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()


class Stage:
    """The FIFOs of one test, and the processes it started; all end with it."""

    def __init__(self, folder: Path) -> None:
        self._paths = {"WORKER_JOURNAL": folder / "journal", "WORKER_GATE": folder / "gate"}
        for path in self._paths.values():
            os.mkfifo(path)
        # Open at both ends, so that neither side ever waits for the other or meets the end.
        self._journal = os.open(self._paths["WORKER_JOURNAL"], os.O_RDWR)
        self._gate = os.open(self._paths["WORKER_GATE"], os.O_RDWR)
        self._unread = b""
        self._processes: list[WorkerProcess] = []

    def worker(
        self,
        *arguments: str,
        database_url: str | None = None,
        reload: str = "--no-reload",
        **env: str,
    ) -> WorkerProcess:
        """Start a worker with these arguments; further keywords are environment variables."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
            **{name: str(path) for name, path in self._paths.items()},
            "DATABASE_URL": database_url or url_of_the_test_database(),
            "DJANGO_SETTINGS_MODULE": "tests.settings_worker",
            "WORKER_APPS": "tests.workerapp",
            "PYTHONWARNINGS": "error",
            "PYTHONUNBUFFERED": "1",
            **env,
        }
        process = WorkerProcess(["outbox_worker", reload, *arguments], environment)
        self._processes.append(process)
        return process

    def event(self, event: str, *, within: float = PATIENCE) -> dict[str, Any]:
        """Return the next step the handlers report, which must be this one."""
        step = self.next_step(within=within)
        assert step is not None, f"No handler came to {event!r} within {within:g} s"
        assert step["event"] == event, step
        return step

    def next_step(self, *, within: float) -> dict[str, Any] | None:
        """Return the next step the handlers report, None if there is none in time."""
        deadline = time.monotonic() + within
        while b"\n" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._journal], [], [], left)[0]:
                return None
            self._unread += os.read(self._journal, 65536)
        line, _, self._unread = self._unread.partition(b"\n")
        step: dict[str, Any] = json.loads(line)
        return step

    def let_on(self, handlers: int = 1) -> None:
        """Let as many handlers pass the gate."""
        os.write(self._gate, b"." * handlers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
        os.close(self._journal)
        os.close(self._gate)
