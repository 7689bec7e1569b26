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
        """Return how many messages to claim, `limit` at the most.

        `running` holds for how many seconds each busy thread has been busy: those that have been
        for longer than a second are not counted on. Until the pace is known only free threads
        count. What waits is bounded to two claims, whatever the pace.
        """
        free = threads - len(running)
        ahead = 0
        if self._average is not None:
            dependable = free + sum(seconds < AHEAD_SECONDS for seconds in running)
            ahead = int(dependable * AHEAD_SECONDS / max(self._average, 1e-6))
        return min(free + ahead - waiting, 2 * limit - waiting, limit)
