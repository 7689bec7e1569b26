"""The leases a worker holds: taken with a claim, renewed while it has the message, given up.

A lease is renewed at a third of its length, whether its message waits, runs, or has ended and is
not settled yet. It is renewed no longer when it is found lost, or when a synchronous handler is
past its timeout: a thread cannot be cancelled, but another worker can be let in.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from ..store import messages as store
from .database import Database
from .delivery import Delivery
from .moments import NEVER
from .pool import Pool
from .reporting import Reporter

MAX_ROWS = 1000
"""Leases that one statement renews at the most."""

RELEASE_AFTER = 5.0
"""Seconds that a claimed message waits for a thread before it is released."""

BUSY_TURN = 0.05
"""Seconds that the loop sleeps at the most while messages wait for a thread.

Threads do not tell it of every short delivery, and some that wait may have to be released.
"""

CANCELLATION_GRACE = 1.0
"""Seconds that an async handler gets to end after its timeout has cancelled it."""


class Leases:
    """The deliveries in hand, and their leases."""

    def __init__(
        self, database: Database, pool: Pool, reporter: Reporter, wake: Callable[[], None]
    ) -> None:
        self._database = database
        self._pool = pool
        self._reporter = reporter
        self._wake = wake
        self._held: dict[Delivery, None] = {}
        self._heartbeats: deque[tuple[Delivery, Future[bool]]] = deque()
        self._next_renewal = NEVER
        self._has_timeouts = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def ids(self) -> list[int]:
        """The ids of the messages in hand, in order."""
        return sorted(delivery.claimed.id for delivery in self._held)

    @property
    def is_asked(self) -> bool:
        """Whether a handler waits for a renewal."""
        return bool(self._heartbeats)

    def take(self, deliveries: Iterable[Delivery]) -> None:
        """Hold the leases of messages that have just been claimed."""
        for delivery in deliveries:
            self._held[delivery] = None
            self._next_renewal = min(self._next_renewal, delivery.renew_at)
            self._has_timeouts |= delivery.handler.timeout is not None

    def drop(self, deliveries: Iterable[Delivery]) -> None:
        """Hold these no longer; they are settled or lost."""
        for delivery in deliveries:
            self._held.pop(delivery, None)

    def overdue(self) -> list[Delivery]:
        """Return what has waited for a thread for too long, to be released."""
        if not self._pool.waiting_count:
            return []
        oldest = time.monotonic() - RELEASE_AFTER
        return [delivery for delivery in self._pool.waiting if delivery.claimed_at <= oldest]

    def request_renewal(self, delivery: Delivery) -> Future[bool]:
        """Have a lease renewed in the loop's next turn; called by handler threads.

        The future says whether the lease stands.
        """
        future: Future[bool] = Future()
        if self._is_closed:
            future.set_result(False)
            return future
        self._heartbeats.append((delivery, future))
        self._wake()
        return future

    def close(self) -> None:
        """Answer the handlers that wait for a renewal, now and later: there will be none."""
        self._is_closed = True
        while self._heartbeats:
            self._heartbeats.popleft()[1].set_result(False)

    def renew(self) -> None:
        """Renew what is due for it and what handlers have asked for."""
        now = time.monotonic()
        asked = list(self._heartbeats)
        if now < self._next_renewal and not asked:
            return
        by_hand = {delivery for delivery, _ in asked}
        due = [d for d in self._held if d in by_hand or now >= _renewal_due(d)]
        standing: set[Delivery] = set()
        for start in range(0, len(due), MAX_ROWS):
            standing |= self._renew_rows(due[start : start + MAX_ROWS], began=now)
        for delivery, future in asked:
            self._heartbeats.popleft()
            future.set_result(delivery in standing)
        self._next_renewal = min(map(_renewal_due, self._held), default=NEVER)

    def notice_timeouts(self) -> None:
        """Stop renewing what is past its timeout."""
        if not self._has_timeouts:
            return
        now = time.monotonic()
        for delivery in self._pool.running:
            if now >= _times_out_at(delivery):
                delivery.timed_out = True
                self._reporter.timed_out(delivery)

    def wake_at(self) -> float:
        """Return the `time.monotonic()` at which something here is due."""
        moments = [self._next_renewal]
        if self._pool.waiting_count:
            moments.append(time.monotonic() + BUSY_TURN)
        if self._has_timeouts:
            moments += map(_times_out_at, self._pool.running)
        return min(moments)

    def _renew_rows(self, due: list[Delivery], *, began: float) -> set[Delivery]:
        """Renew these leases and return those that stand; one that is only locked does."""
        # One that came back after its lease had run out is in hand twice; the last claim counts.
        last = {delivery.claimed.id: delivery for delivery in due}
        leases = [delivery.lease for delivery in last.values()]
        ttls = [delivery.handler.lease_ttl for delivery in last.values()]
        renewed = self._database.call(store.renew, leases, ttls)
        missed = [delivery.lease for id_, delivery in last.items() if id_ not in renewed]
        if missed:
            renewed |= self._database.call(store.still_held, missed)
        standing = {delivery for id_, delivery in last.items() if id_ in renewed}
        self._lose([delivery for delivery in due if delivery not in standing])
        for delivery in due:
            delivery.renew_at = began + delivery.handler.lease_ttl / 3
        return standing

    def _lose(self, missed: list[Delivery]) -> None:
        """Take note of leases that a renewal found lost, and start none of those messages."""
        lost = [d for d in missed if d.ended_at is None and not d.lost and not _may_settle(d)]
        for delivery in lost:
            delivery.lost = True
            if self._pool.withdraw(delivery):
                self._held.pop(delivery, None)
        self._reporter.lost(lost, "renew")


def _may_settle(delivery: Delivery) -> bool:
    """Tell whether the row may be gone for a good reason, of which its handler will tell."""
    return delivery.settles_itself and delivery.started_at is not None


def _renewal_due(delivery: Delivery) -> float:
    return NEVER if delivery.lost or delivery.timed_out else delivery.renew_at


def _times_out_at(delivery: Delivery) -> float:
    """Return when a running handler is past its timeout, if that is still to come.

    An async one has been cancelled by then, and has a moment to end; one that cannot be cancelled
    is treated as a thread is.
    """
    started, timeout = delivery.started_at, delivery.handler.timeout
    if started is None or timeout is None or delivery.timed_out:
        return NEVER
    return started + timeout + (CANCELLATION_GRACE if delivery.handler.is_async else 0.0)
