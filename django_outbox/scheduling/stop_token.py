"""A flag that many can wait on."""

from __future__ import annotations

import threading


class StopToken:
    """Tell a running scheduler to stop; may be used from any thread and from a signal handler."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def stop(self) -> None:
        """Ask to stop, for good."""
        self._event.set()

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is asked to stop, `timeout` seconds at most; tell whether it was."""
        return self._event.wait(timeout)
