"""The processes of the site, kept running as a service manager would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
RESTART_PAUSE = 1.0
"""Seconds until a process that has ended is started again."""

STARTING_CODES = {1}
"""How a command ends that finds no database when it starts."""

NO_DATABASE = "CommandError: The database"
"""What it says then."""


class Program:
    """One command that should run, and the process that does at the moment."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        logs: Path,
        ready: str = "",
    ) -> None:
        self.name = name
        self.code = ROOT
        """The folder that the package comes from at the next start."""
        self.starts = 0
        self.ended_by_itself: list[str] = []
        self._arguments = [sys.executable, *arguments]
        self._environment = dict(environment)
        self._logs = logs
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self._is_condemned = False
        self._restart_at = 0.0
        self.is_finished = False
        self._lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        """The process that runs now, None between two."""
        with self._lock:
            process = self._process
            return None if process is None or process.poll() is not None else process.pid

    @property
    def log(self) -> Path:
        return self._logs / f"{self.name}.{self.starts}.log"

    @property
    def is_ready(self) -> bool:
        """Whether it runs and has said that it does its work."""
        return self.pid is not None and self._has_been_ready

    @property
    def _has_been_ready(self) -> bool:
        return self.log.exists() and self._ready in self.log.read_text(errors="replace")

    def logs(self) -> list[str]:
        """Return what each of its processes has written."""
        paths = sorted(self._logs.glob(f"{self.name}.*.log"))
        return [path.read_text(errors="replace") for path in paths]

    def start(self) -> None:
        with self._lock:
            self.starts += 1
            self._is_condemned = False
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._arguments,
                    env=self._environment,
                    cwd=self.code,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )

    def signal(self, signum: int) -> None:
        """Send a signal; one that ends the process is noted, so that its end is no surprise."""
        with self._lock:
            if signum in (signal.SIGKILL, signal.SIGTERM):
                self._is_condemned = True
            pid = self.pid
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signum)

    def stop(self, *, within: float = PATIENCE) -> int | None:
        """End it in good order and return the code; None if it had to be killed, or ran not."""
        with self._lock:
            process = self._process
        if process is None:
            return None
        self.signal(signal.SIGTERM)
        try:
            return process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        """End the process, and all that it has started."""
        process = self._process
        if process is not None:
            self.signal(signal.SIGKILL)
            process.wait()

    def children(self) -> list[int]:
        """Return the processes that it has started."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        pids = path.read_text().split() if path.exists() else []
        return [int(pid) for pid in pids if _is_worker(pid)]

    def keep(self) -> None:
        """Start it again if it has ended, after a pause; note an end that nobody wanted."""
        with self._lock:
            process = self._process
            if process is None or self.is_finished or process.poll() is None:
                return
            now = time.monotonic()
            if self._restart_at == 0.0:
                self._restart_at = now + RESTART_PAUSE
                self._judge(process.returncode)
            elif now >= self._restart_at:
                self._restart_at = 0.0
                self.start()

    def _judge(self, code: int) -> None:
        if self._is_condemned:
            return
        if code == 0:
            self.is_finished = True
        elif self._has_been_ready or code not in STARTING_CODES:
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            self.ended_by_itself.append(
                f"{self.name} (start {self.starts}) ended with code {code}: {' '.join(last)}"
            )


def _is_worker(pid: str) -> bool:
    """Tell a worker from the helper process that Python's multiprocessing has."""
    with suppress(OSError):
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def surprising_ends(log: str) -> list[str]:
    """Return how processes of a supervisor have ended, but for kills and failed starts."""
    codes = re.findall(r"ended with code (-?\d+)", log)
    surprising = [code for code in codes if code != str(-signal.SIGKILL)]
    return surprising[log.count(NO_DATABASE) :]


class Fleet:
    """All programs by name, and a thread that keeps them running."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def add(self, program: Program) -> None:
        self.programs[program.name] = program
        program.start()

    def named(self, prefix: str) -> list[Program]:
        """Return the programs whose name begins so, in order."""
        return [program for name, program in self.programs.items() if name.startswith(prefix)]

    def start_keeping(self) -> None:
        self._keeper.start()

    def stop_keeping(self) -> None:
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join()

    def kill(self) -> None:
        """End whatever still runs."""
        self.stop_keeping()
        for program in self.programs.values():
            children = program.children()
            program.kill()
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def ended_by_themselves(self) -> list[str]:
        """Return all ends that nobody wanted, those of supervised processes among them."""
        programs = self.programs.values()
        children = [
            f"a process of {program.name} ended with code {code}"
            for program in programs
            for log in program.logs()
            for code in surprising_ends(log)
        ]
        return [*(end for program in programs for end in program.ended_by_itself), *children]

    def _keep(self) -> None:
        while not self._stopping.wait(0.1):
            for program in self.programs.values():
                program.keep()
