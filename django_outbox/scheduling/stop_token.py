"""A flag that many can wait on."""

from __future__ import annotations

import queue
from threading import TIMEOUT_MAX


class StopToken:
    """Tell a running scheduler to stop; may be used from any thread and from a signal handler.

    It rests on a `SimpleQueue` and not on an `Event`, whose lock a signal handler could find taken
    by the very thread that it has interrupted.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def stop(self) -> None:
        """Ask to stop, for good."""
        self._stopped = True
        self._wakeups.put(None)

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopped

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is asked to stop, `timeout` seconds at most; tell whether it was."""
        if not self._stopped:
            try:
                self._wakeups.get(
                    timeout=None if timeout is None else min(max(0.0, timeout), TIMEOUT_MAX)
                )
            except queue.Empty:
                return self._stopped
            self._wakeups.put(None)  # for whoever else waits
        return True
