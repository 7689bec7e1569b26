"""The claim itself, and what becomes of it where the database lets a row not be leased."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import psycopg

from ..errors import summary
from ..messages import Claimed
from ..store import messages as store
from ..store.messages import Lane
from .database import Database, DatabaseAway

logger = logging.getLogger("django_outbox")

REFUSED_PAUSE = 60.0
"""Seconds for which a queue is left alone whose first message cannot be leased."""

# A trigger, a CHECK or a value that cannot be read: one row is at fault, and not the database.
_REFUSED = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.RaiseException)


class Claimer:
    """Claims from lanes; one row that cannot be leased holds up no queue but its own.

    `is_held_up` says whether one further back in its queue did at the last claim, so that there is
    more before it.
    """

    def __init__(self, database: Database, *, worker_id: str) -> None:
        self.is_held_up = False
        self._database = database
        self._worker_id = worker_id
        self._refused: dict[str, float] = {}  # with the moment to try the queue again

    @property
    def refused(self) -> list[str]:
        """The queues that are left alone."""
        now = time.monotonic()
        self._refused = {queue: until for queue, until in self._refused.items() if until > now}
        return list(self._refused)

    def claim(self, lanes: Sequence[Lane], *, limit: int, slack: float) -> list[Claimed]:
        """Claim from all lanes at once; if a row cannot be leased, from each by itself."""
        self.is_held_up = False
        if self._refused:
            refused = self.refused
            lanes = [lane for lane in lanes if lane.queue not in refused]
        try:
            return self._claim(lanes, limit, slack)
        except _REFUSED:
            claimed: list[Claimed] = []
        try:
            for lane in lanes:
                claimed += self._claim_apart(lane, limit - len(claimed), slack)
        except (DatabaseAway, psycopg.Error):
            if not claimed:  # else they are in hand, and the next claim tells as well
                raise
        return claimed

    def _claim_apart(self, lane: Lane, limit: int, slack: float) -> list[Claimed]:
        """Claim from one lane as many as can be leased, by halves: those before the one at fault.

        Once it is the first of its queue, the queue is left alone for a while.
        """
        size, refusal = limit, ""
        while size:
            try:
                claimed = self._claim([lane], size, slack)
            except _REFUSED as error:
                refusal = summary(error)
                size //= 2
            else:
                self.is_held_up |= bool(claimed) and size < limit
                return claimed
        if limit:
            self._leave_alone(lane.queue, refusal)
        return []

    def _leave_alone(self, queue: str, refusal: str) -> None:
        first = self._database.call(store.first_of, queue)
        self._refused[queue] = time.monotonic() + REFUSED_PAUSE
        logger.error(
            "The queue %r is left alone for %g s, as the database lets no worker lease its first"
            " message, most likely %s: %s",
            queue,
            REFUSED_PAUSE,
            first,
            refusal,
            extra={"event": "claim_refused", "queue": queue},
        )

    def _claim(self, lanes: Sequence[Lane], limit: int, slack: float) -> list[Claimed]:
        return self._database.call(
            store.claim, lanes, limit=limit, worker_id=self._worker_id, slack=slack
        )
