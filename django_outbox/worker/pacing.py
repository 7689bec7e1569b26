"""How much to claim ahead: no more than the threads are expected to start within a second."""

from __future__ import annotations

AHEAD_SECONDS = 1.0
_WEIGHT = 0.1


class Pace:
    """How long a message takes, lately, in seconds; None before the first has ended."""

    def __init__(self) -> None:
        self._average: float | None = None

    def note(self, duration: float) -> None:
        """Take in the duration of a delivery that has ended."""
        if self._average is None:
            self._average = duration
        else:
            self._average += _WEIGHT * (duration - self._average)

    def room(self, *, threads: int, running: list[float], waiting: int, limit: int) -> int:
        """Return how many messages to claim.

        `running` holds for how many seconds each busy thread has been busy: a handler that hangs
        slows the pace down before it has ended. Until the pace is known only free threads count.
        """
        free = threads - len(running)
        ahead = 0
        if self._average is not None:
            pace = max([self._average, *self._slow(running)])
            ahead = int(threads * AHEAD_SECONDS / max(pace, 1e-6))
        return min(free + ahead - waiting, limit)

    def _slow(self, running: list[float]) -> list[float]:
        return [sum(running) / len(running)] if running else []
