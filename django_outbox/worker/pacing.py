"""How much to claim ahead: what threads can start within a second, and memory has room for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

AHEAD_SECONDS = 1.0
CLAIM_BYTES = 16 * 1024 * 1024
"""What the payloads of one claim should not exceed, going by those of the last."""

_WEIGHT = 0.1


class Pace:
    """How long a message takes, lately, in seconds, and how large it is, in bytes."""

    def __init__(self) -> None:
        self._average: float | None = None  # until the first has ended
        self._size = 0.0

    def note_durations(self, durations: Iterable[float]) -> None:
        """Take in how long deliveries took that have ended."""
        average = self._average
        for duration in durations:
            if average is None:
                average = duration
            else:
                average += _WEIGHT * (duration - average)
        self._average = average

    def note_sizes(self, sizes: Sequence[int]) -> None:
        """Take in the payloads of one claim; small ones make it forget large ones slowly."""
        if sizes:
            self._size = max(sum(sizes) / len(sizes), self._size * (1 - _WEIGHT))

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
        limit = max(1, min(limit, int(CLAIM_BYTES / max(self._size, 1.0))))
        return min(free + ahead - waiting, 2 * limit - waiting, limit)
