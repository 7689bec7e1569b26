"""Several worker processes under one supervisor, one log and one signal behaviour.

Each is spawned, not forked: a fork would share database sockets and locks that threads hold. A
process that ends on its own is started again, after a pause that grows while it does not live long;
one that loses its supervisor stops in good order.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from .moments import NEVER

logger = logging.getLogger("django_outbox")

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
LIVED_LONG = 60.0
"""Seconds after which a process that ends is not taken for one that cannot start."""

GRACE = 5.0
"""Seconds beyond the shutdown timeout after which a process that does not end is killed."""

MOST_FAILURES = 5
"""How often a process may fail that is to end when its work is done."""

LEFT_BEHIND = 1
"""The code of a worker that left messages to their leases; the next one does not find them.

One that a signal has killed may have left some, too.
"""

NOT_STARTED = 71
"""The code of a process that the system would not start: sysexits' EX_OSERR."""

STOPPED_AT_START = -signal.SIGTERM
"""The code of a process that was to stop before it could take signals, and had nothing in hand."""

_is_supervised = False

Target = Callable[[Any, int, int], None]
"""What a process runs: it is given the arguments, its number, and how often it was started."""


@dataclass(slots=True)
class _Slot:
    number: int
    process: BaseProcess | None = None
    started_at: float = 0.0
    restart_at: float = NEVER
    pause: float = FIRST_PAUSE
    failures: int = 0
    starts: int = 0
    codes: list[int] = field(default_factory=list)


class Supervisor:
    """Keep `count` processes running until stopped, or until each of them has done its work.

    `restarts` says whether one that ends with code 0 is started again too; if not, one that fails
    again and again is given up.
    """

    def __init__(
        self, count: int, target: Target, args: Any, *, restarts: bool, shutdown_timeout: float
    ) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._target = target
        self._args = args
        self._restarts = restarts
        self._patience = shutdown_timeout + GRACE
        self._slots = [_Slot(number) for number in range(1, count + 1)]
        self._wakeup, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._stop_requested = False
        self._kill_at = NEVER

    @property
    def has_stuck_handlers(self) -> bool:
        """Whether handlers still run after `run` has returned; none do in this process."""
        return False

    def stop(self) -> None:
        """Have every process stop in good order; safe in a signal handler."""
        self._stop_requested = True
        with suppress(OSError):  # it may have ended meanwhile
            os.write(self._waker, b"\0")

    def kill(self) -> None:
        """End every process at once."""
        for slot in self._slots:
            if slot.process is not None and slot.process.pid is not None:
                slot.process.kill()

    def run(self) -> int:
        """Supervise until stopped or done; return 0 if every process ended well, else 1."""
        # A signal that comes just before the wait begins would else not end it.
        waker_before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        resource_tracker.ensure_running()  # here, as it unblocks signals
        for slot in self._slots:
            self._start(slot)
        while not self._is_done():
            self._wait()
            self._collect()
            self._begin_stop()
            self._restart()
        signal.set_wakeup_fd(waker_before)
        os.close(self._wakeup)
        os.close(self._waker)
        return 1 if any(map(self._has_failed, self._slots)) else 0

    def _has_failed(self, slot: _Slot) -> bool:
        """Tell whether a process ended badly at last, or was to end and left something behind."""
        bad = [code for code in slot.codes if code not in {0, STOPPED_AT_START}]
        if self._restarts:
            return slot.codes[-1] in bad
        return slot.codes[-1] in bad or any(code == LEFT_BEHIND or code < 0 for code in bad)

    def _start(self, slot: _Slot) -> None:
        slot.starts += 1
        slot.started_at = time.monotonic()
        slot.restart_at = NEVER
        process = self._context.Process(
            target=run_in_process,
            args=(self._target, self._args, slot.number, slot.starts),
            name=f"outbox-worker-{slot.number}",
        )
        try:
            with _interrupts_blocked():
                process.start()
        except OSError as error:  # no more processes or memory for now
            logger.error("Worker process %d could not be started: %s", slot.number, error)
            self._note_end(slot, pid=None, code=NOT_STARTED)
        else:
            slot.process = process

    def _wait(self) -> None:
        until = min([self._kill_at, *(slot.restart_at for slot in self._slots)])
        timeout = None if until == NEVER else max(0.0, until - time.monotonic())
        sentinels = [slot.process.sentinel for slot in self._slots if slot.process is not None]
        if self._wakeup in wait([self._wakeup, *sentinels], timeout):
            os.read(self._wakeup, 1024)
        if time.monotonic() >= self._kill_at:
            self.kill()

    def _collect(self) -> None:
        """Take in which processes have ended, and decide when they start again."""
        for slot in self._slots:
            process = slot.process
            if process is None or process.is_alive():
                continue
            process.join()
            slot.process = None
            self._note_end(slot, process.pid, process.exitcode or 0)

    def _note_end(self, slot: _Slot, pid: int | None, code: int) -> None:
        slot.codes.append(code)
        if self._stop_requested:
            return
        if code != 0:
            self._note_failure(slot, pid, code)
        elif self._restarts:
            slot.pause = FIRST_PAUSE
            slot.restart_at = time.monotonic()

    def _note_failure(self, slot: _Slot, pid: int | None, code: int) -> None:
        now = time.monotonic()
        if now - slot.started_at > LIVED_LONG:
            slot.pause = FIRST_PAUSE
        slot.failures += 1
        if self._restarts or slot.failures < MOST_FAILURES:
            slot.restart_at = now + slot.pause
            then = f"another starts in {slot.pause:g} s"
            slot.pause = min(2 * slot.pause, LONGEST_PAUSE)
        else:
            then = f"it is given up after {slot.failures} failures"
        logger.error(
            "Worker process %d (pid %s) ended with code %d; %s",
            slot.number,
            pid,
            code,
            then,
            extra={"event": "process_ended", "number": slot.number, "code": code},
        )

    def _restart(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if slot.restart_at <= now and not self._stop_requested:
                self._start(slot)

    def _begin_stop(self) -> None:
        if not self._stop_requested or self._kill_at != NEVER:
            return
        self._kill_at = time.monotonic() + self._patience
        for slot in self._slots:
            slot.restart_at = NEVER
            if slot.process is not None:
                slot.process.terminate()

    def _is_done(self) -> bool:
        return all(slot.process is None and slot.restart_at == NEVER for slot in self._slots)


def is_supervised() -> bool:
    """Tell whether this process is one that a supervisor has started."""
    return _is_supervised


def run_in_process(target: Target, args: Any, number: int, start: int) -> None:
    """Run the target in a spawned process that a terminal's CTRL-C does not reach.

    The supervisor gets it, and passes it on once.
    """
    global _is_supervised  # noqa: PLW0603 - a process is what it is
    _is_supervised = True
    os.setpgid(0, 0)
    _forget_interrupts()
    threading.Thread(target=_stop_with_the_supervisor, daemon=True).start()
    target(args, number, start)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Have a process that starts here not see a CTRL-C before it has left the terminal's group.

    It inherits what is blocked. This process gets the signal at the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forget_interrupts() -> None:
    """Drop a CTRL-C that came while this process started, and take those to come."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, before)


def _stop_with_the_supervisor() -> None:
    """Have this process stop in good order when its supervisor is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGTERM)  # in another thread it would not wake it
