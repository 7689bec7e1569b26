"""Where to claim from: the claim window over each queue, and the sweeps behind it.

A scan from the start of a queue would walk over the rows in flight and over index entries that
vacuum cannot remove yet. So a claim scans from where the last one ended, and no later than a moment
ago, so that transactions which commit out of turn are seen. Some claims look ten seconds back, for
slow transactions. What lies further back (leases that have run out, transactions slower still) is
found by a sweep from the very beginning. Either may take a twentieth of the time: where they are
cheap nearly every claim of a worker that is not busy is a sweep, and where not there are fewer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..handlers import Handler
from ..messages import Claimed
from ..store.messages import Lane

SLACK = 0.1
"""Seconds before now at which a claim begins to scan at the latest."""

LONG_SLACK = 10.0
"""The same for a claim that looks back."""

LOOK_BACK_EVERY = 0.25
"""Seconds from one look back to the next at the least."""

SHARE = 0.05
"""Of the time, for sweeps, and as much for looking back."""

SPARE_SHARE = 0.2
"""The same for sweeps of a worker that has capacity to spare."""

LONGEST_REST = 30.0
"""Seconds after which either is done again, whatever it costs."""


class Ration:
    """What may take a share of the time: what it cost of late, and when it may be done again."""

    def __init__(self, *, least: float = 0.0) -> None:
        self._least = least
        self._ended = float("-inf")
        self._took = self._cost = 0.0

    def done(self, *, began: float) -> None:
        """Note that it began at `began` and has just ended.

        A single stall, of the disk or the network, says nothing of what it costs.
        """
        before, self._took = self._took or float("inf"), time.monotonic() - began
        self._cost = min(before, self._took)
        self._ended = began + self._took

    def next(self, share: float = SHARE) -> float:
        """Return the `time.monotonic()` from which it may be done again."""
        rest = self._cost * (1 / share - 1)
        return self._ended + min(max(self._least, rest), LONGEST_REST)


class ClaimWindow:
    """The lanes of a worker's queues: in the order given if `strict`, else each first in turn."""

    def __init__(self, handlers: Mapping[str, Handler], *, strict: bool) -> None:
        self._lanes = {queue: Lane(queue, handler.lease_ttl) for queue, handler in handlers.items()}
        self._order = list(handlers)
        self._strict = strict
        self.sweeps = Ration()
        self.looks_back = Ration(least=LOOK_BACK_EVERY)

    def lanes(self, *, sweep: bool) -> list[Lane]:
        """Return the lanes of the next claim."""
        lanes = [self._lanes[queue] for queue in self._order]
        if not self._strict:
            self._order.append(self._order.pop(0))
        if sweep:
            return [Lane(lane.queue, lane.lease_ttl) for lane in lanes]
        return lanes

    def advance(self, claimed: list[Claimed]) -> None:
        """Move each lane's position to its last claimed row, never back."""
        # They come lane by lane and in order, so the last of each queue is the one that counts.
        for row in {row.queue: row for row in claimed}.values():
            lane = self._lanes[row.queue]
            if (row.due_at, row.id) > (lane.low_at, lane.low_id):
                self._lanes[row.queue] = lane._replace(low_at=row.due_at, low_id=row.id)
