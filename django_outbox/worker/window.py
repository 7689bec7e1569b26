"""Where to claim from: the claim window over each queue, and the sweeps behind it.

A scan from the start of a queue would walk over the rows in flight and over index entries that
vacuum cannot remove yet. So a claim scans from where the last one ended; the store keeps that
position ten seconds behind the clock at least, so that rows of slow transactions are still seen.
What lies further back (leases that have run out, transactions slower still) is found by a sweep
from the very beginning. Sweeps may take a twentieth of the time: an idle worker's every claim is
one, and where they are costly there are fewer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..handlers import Handler
from ..messages import Claimed
from ..store.messages import Lane

SWEEP_SHARE = 0.05


class ClaimWindow:
    """The lanes of a worker's queues: in the order given if `strict`, else each first in turn."""

    def __init__(self, handlers: Mapping[str, Handler], *, strict: bool) -> None:
        self._lanes = {queue: Lane(queue, handler.lease_ttl) for queue, handler in handlers.items()}
        self._order = list(handlers)
        self._strict = strict
        self._next_sweep = 0.0

    @property
    def next_sweep(self) -> float:
        """The `time.monotonic()` from which a sweep is affordable again."""
        return self._next_sweep

    def lanes(self, *, sweep: bool) -> list[Lane]:
        """Return the lanes of the next claim."""
        lanes = [self._lanes[queue] for queue in self._order]
        if not self._strict:
            self._order.append(self._order.pop(0))
        if sweep:
            return [Lane(lane.queue, lane.lease_ttl) for lane in lanes]
        return lanes

    def swept(self, *, began: float) -> None:
        """Note a sweep that began at `began` and has just ended."""
        now = time.monotonic()
        self._next_sweep = now + (now - began) * (1 / SWEEP_SHARE - 1)

    def advance(self, claimed: list[Claimed]) -> None:
        """Move each lane's position to its last claimed row, never back."""
        # They come lane by lane and in order, so the last of each queue is the one that counts.
        for row in {row.queue: row for row in claimed}.values():
            lane = self._lanes[row.queue]
            if (row.due_at, row.id) > (lane.low_at, lane.low_id):
                self._lanes[row.queue] = lane._replace(low_at=row.due_at, low_id=row.id)
