"""When and how much to claim: into the room there is, as soon as something is due.

Under load one claim follows the other. When a claim has found nothing more, the moment of the next
due message is asked for, and the next claim comes then, at a notification, or when a look at the
table, once a poll, finds something.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..conf import settings
from ..handlers import Handler
from ..messages import Claimed
from ..store import messages as store
from .claimer import Claimer
from .database import Database
from .moments import NEVER
from .options import Options
from .pacing import Pace
from .pool import Pool
from .window import LONG_SLACK, SLACK, SPARE_SHARE, ClaimWindow

COALESCE = 0.01
"""Seconds within which notifications are one wake-up."""


class Claims:
    """The claims of one worker.

    `claim_at` is the `time.monotonic()` from which to claim, if there is room; `NEVER` while
    nothing is known to be due.
    """

    def __init__(
        self, handlers: Mapping[str, Handler], options: Options, database: Database, pool: Pool
    ) -> None:
        self.pace = Pace()
        self._options = options
        self._database = database
        self._pool = pool
        self._claimer = Claimer(database, worker_id=options.worker_id)
        self._queues = list(handlers)
        self._window = ClaimWindow(handlers, strict=options.strict)
        self._claim_at = 0.0
        self._poll_at = 0.0
        self._sweep_by = NEVER
        self._is_caught_up = False
        self._claim_began: float | None = None
        self._news_at = 0.0
        self._claimed = 0
        self._is_closed = False

    @property
    def is_exhausted(self) -> bool:
        """Whether the last sweep left nothing due, as far as is known."""
        return self._claim_at == NEVER

    @property
    def has_reached_max(self) -> bool:
        """Whether as many messages have been claimed as this worker may."""
        limit = self._options.max_messages
        return limit is not None and self._claimed >= limit

    @property
    def has_refused(self) -> bool:
        """Whether a queue is left alone since its first message cannot be leased."""
        return bool(self._claimer.refused)

    def close(self) -> None:
        """Claim nothing more."""
        self._is_closed = True

    def look_again(self) -> None:
        """Claim as soon as there is room, since something may be due."""
        self._claim_at = min(self._claim_at, time.monotonic())

    def take_news(self, news: set[str] | None) -> None:
        """Claim soon if a queue of ours was notified; at once, unless it has just been done.

        None stands for notifications that may have been missed.
        """
        if news is None or not news.isdisjoint(self._queues):
            moment = max(time.monotonic(), self._news_at + COALESCE)
            if moment < self._claim_at:
                self._claim_at = self._news_at = moment

    def expect(self, delay: float) -> None:
        """Claim when something is due that has been put off by so many seconds.

        What takes longer than a poll is found by it.
        """
        if delay < settings.poll_interval and self._looks_ahead:
            self._claim_at = min(self._claim_at, time.monotonic() + max(0.0, delay))

    def uncount(self, released: int) -> None:
        """Take messages off the count that were claimed and not started."""
        self._claimed -= released

    def claim(self, *, idle: bool) -> list[Claimed]:
        """Claim what there is room for, if it is time to.

        It is a sweep where that is cheap, and sooner if there is capacity to spare; with --drain at
        once if the worker is idle, since then it is done.
        """
        now = time.monotonic()
        if now < self._claim_at or not (limit := self._room()):
            return []
        window = self._window
        sweep = now >= min(window.sweeps.next(), self._sweep_by) or (idle and self._options.drain)
        looks_back = sweep or now >= window.looks_back.next()
        claimed = self._claimer.claim(
            window.lanes(sweep=sweep), limit=limit, slack=LONG_SLACK if looks_back else SLACK
        )
        if sweep:
            window.sweeps.done(began=now)
            self._sweep_by = NEVER
        elif looks_back:
            window.looks_back.done(began=now)
        window.advance(claimed)
        self.pace.note_sizes([len(row.body) for row in claimed])
        self._claimed += len(claimed)
        full = len(claimed) == limit or self._claimer.is_held_up
        self._note_what_is_left(began=now, full=full, swept=sweep)
        return claimed

    def look_ahead(self) -> None:
        """Learn when the next message is due: after the last sweep, and once a poll."""
        now = time.monotonic()
        if not self._is_caught_up or now < self._poll_at or not self._looks_ahead:
            return
        # What was overdue at the claim is locked, so only what came due since is of interest, and
        # what is still to come; at a poll, everything is.
        since = None if self._claim_began is None else now - self._claim_began
        self._claim_began = None
        seconds = self._database.call(store.soonest, self._queues, since=since)
        self._poll_at = now + settings.poll_interval
        if seconds is not None and seconds < settings.poll_interval:
            self._claim_at = min(self._claim_at, time.monotonic() + max(0.0, seconds))
            if since is None:
                self._sweep_by = min(self._sweep_by, self._claim_at)

    def wake_at(self) -> float:
        """Return the `time.monotonic()` at which to claim or to look."""
        moments = [self._claim_at if self._room() else NEVER]
        if self._is_caught_up and self._looks_ahead:
            moments.append(self._poll_at)
        return min(moments)

    def _note_what_is_left(self, *, began: float, full: bool, swept: bool) -> None:
        """Decide when to claim next; a claim that was not full has caught up with its window."""
        self._is_caught_up = not full
        if full:
            self._claim_at = 0.0
            return
        self._poll_at = 0.0
        self._claim_began = began
        if swept:
            self._claim_at = NEVER
        else:
            # There is capacity to spare, so what lies behind the window need not wait until a
            # sweep is cheap.
            sweeps, looks_back = self._window.sweeps, self._window.looks_back
            next_poll = time.monotonic() + settings.poll_interval
            self._sweep_by = min(self._sweep_by, max(next_poll, sweeps.next(SPARE_SHARE)))
            self._claim_at = min(self._sweep_by, sweeps.next(), looks_back.next())

    def _room(self) -> int:
        """Return how many messages to claim now; 0 while it is not worth a statement."""
        if self._is_closed or self.has_reached_max:
            return 0
        now = time.monotonic()
        limit = self._options.batch_size
        if self._options.max_messages is not None:
            limit = min(limit, self._options.max_messages - self._claimed)
        waiting = self._pool.waiting_count
        room = self.pace.room(
            threads=self._options.concurrency,
            running=[now - (delivery.started_at or now) for delivery in self._pool.running],
            waiting=waiting,
            limit=limit,
        )
        return 0 if waiting and room < min(waiting, self._options.batch_size // 2) else max(0, room)

    @property
    def _looks_ahead(self) -> bool:
        return not (self._options.drain or self._is_closed or self.has_reached_max)
