"""The worker's loop: settle, renew, claim, sleep.

Each turn writes what has ended, renews the leases that are due for it, claims into the room there
is, and sleeps until the soonest of: a notification, a handler that ends, the next due message, a
renewal, the poll. Everything here runs in one thread and on one connection.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from django.db import connections
from django.db.backends.signals import connection_created

from ..conf import settings
from ..handlers import Handler
from ..messages import Release
from ..store import messages as store
from . import sessions
from .claiming import ClaimWindow
from .database import Database, DatabaseAway
from .delivery import Delivery
from .dispatch import deliver
from .pacing import Pace
from .pool import Pool
from .reporting import Reporter
from .settling import Settler
from .wakeup import Wakeup
from .watchdog import Watchdog, limit_silence

logger = logging.getLogger("django_outbox")

COALESCE = 0.01
"""Seconds within which notifications are one wake-up."""

HAND_BACK_AFTER = 5.0
"""Seconds that a claimed message waits for a thread before it is handed back."""

MAX_ROWS = 1000
"""Rows that one statement renews or settles at the most."""

FOREVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a worker runs; what the options of `outbox_worker` say."""

    using: str
    worker_id: str
    concurrency: int = 8
    batch_size: int = 100
    strict: bool = False
    drain: bool = False
    max_messages: int | None = None
    shutdown_timeout: float = 30.0


class Worker:
    """Deliver the messages of some queues until stopped.

    `run` blocks; `stop` may be called from a signal handler or another thread.
    """

    def __init__(self, handlers: Mapping[str, Handler], options: Options) -> None:
        self.options = options
        self._handlers = handlers
        self._queues = list(handlers)
        self._watchdog = Watchdog()
        self._wakeup = Wakeup()
        self._pool = Pool(options.concurrency, deliver, self._wakeup.wake)
        listen_on = settings.listen_database
        self._database = Database(
            options.using, self._watchdog, listen=settings.notify and not _is_pooled(options.using)
        )
        self._listener = (
            Database(listen_on, self._watchdog, listen=True)
            if settings.notify and listen_on not in (None, options.using)
            else self._database
        )
        self._reporter = Reporter(options.worker_id, self._pool.submit_job)
        self._settler = Settler(self._database, self._reporter)
        self._window = ClaimWindow(handlers, strict=options.strict)
        self._pace = Pace()
        self._held: dict[Delivery, None] = {}
        self._heartbeats: deque[tuple[Delivery, Future[bool]]] = deque()
        self._stop_requested = False
        self._stop_deadline = FOREVER
        self._claim_at = 0.0  # when to claim next, if there is room; FOREVER for not before news
        self._poll_at = 0.0
        self._next_renewal = FOREVER
        self._last_news = 0.0
        self._claimed = 0
        self._has_swept = False
        self._dispatch_uids = (f"outbox.silence.{id(self)}", f"outbox.watch.{id(self)}")
        self._has_timeouts = any(
            handler.timeout is not None and not handler.is_async for handler in handlers.values()
        )

    def stop(self) -> None:
        """Claim no more, hand back what has not started, and finish what runs."""
        self._stop_requested = True
        self._wakeup.wake()

    def run(self) -> int:
        """Work until stopped or done; return the exit code.

        0 when everything in hand was settled, 1 when something had to be left to its lease.
        """
        self._watchdog.start()
        connection_created.connect(limit_silence, dispatch_uid=self._dispatch_uids[0])
        connection_created.connect(sessions.watch, dispatch_uid=self._dispatch_uids[1])
        self._pool.start()
        try:
            while not self._is_done():
                self._turn()
                if not self._is_done():
                    self._sleep()
        finally:
            self._close()
        return self._exit_code()

    def _turn(self) -> None:
        self._begin_stop()
        self._settle()
        self._notice_timeouts()
        try:
            self._database.connect()
            self._renew()
            self._hand_back()
            self._claim()
            self._look_ahead()
        except DatabaseAway:
            pass  # what is in hand stays so; the next turn tries again at `retry_at`
        self._listen()

    # Stopping

    def _begin_stop(self) -> None:
        if not self._stop_requested or self._stop_deadline < FOREVER:
            return
        self._stop_deadline = time.monotonic() + self.options.shutdown_timeout
        self._watchdog.patience = min(self._watchdog.patience, self.options.shutdown_timeout + 1)
        self._give_back(self._pool.waiting)
        logger.info("Stopping; finishing %d message(s)", self._pool.running_count)

    def _is_done(self) -> bool:
        if self._stop_deadline < FOREVER:
            return self._is_idle or time.monotonic() >= self._stop_deadline
        if self._reached_max:
            return self._is_idle
        return self.options.drain and self._is_idle and self._claim_at == FOREVER

    @property
    def has_stuck_handlers(self) -> bool:
        """Whether handlers still run after `run` has returned."""
        return self._pool.running_count > 0

    @property
    def _is_idle(self) -> bool:
        return not self._held and self._pool.is_quiet and not self._settler.unsettled

    @property
    def _reached_max(self) -> bool:
        limit = self.options.max_messages
        return limit is not None and self._claimed >= limit

    def _exit_code(self) -> int:
        if self._held or self._settler.unsettled:
            logger.error(
                "Left %d message(s) to their leases: %s",
                len(self._held),
                sorted(delivery.claimed.id for delivery in self._held),
                extra={"event": "left_to_lease", "count": len(self._held)},
            )
            return 1
        return 0

    def _close(self) -> None:
        self._pool.stop(timeout=0.0 if self._pool.running_count else 2.0)
        for dispatch_uid in self._dispatch_uids:
            connection_created.disconnect(dispatch_uid=dispatch_uid)
        self._watchdog.stop()
        self._database.close()
        self._listener.close()
        self._wakeup.close()

    # Settling

    def _settle(self) -> None:
        ended = self._pool.collect()
        for delivery, _ in ended:
            if delivery.started_at is not None:
                self._pace.note(delivery.duration)
        if not ended and not self._settler.unsettled:
            return
        for delivery in self._settler.settle(ended):
            self._held.pop(delivery, None)
        if self.options.drain:
            # What the handlers have published is to be worked off too.
            self._claim_at = min(self._claim_at, time.monotonic())

    # Leases

    def request_renewal(self, delivery: Delivery) -> Future[bool]:
        """Have the delivery's lease renewed in the next turn; called by handler threads.

        The future says whether the lease stands.
        """
        future: Future[bool] = Future()
        self._heartbeats.append((delivery, future))
        self._wakeup.wake()
        return future

    def _renew(self) -> None:
        now = time.monotonic()
        asked = list(self._heartbeats)
        if now < self._next_renewal and not asked:
            return
        by_hand = {delivery for delivery, _ in asked}
        due = [d for d in self._held if d in by_hand or now >= _renewal_due(d)]
        standing: set[Delivery] = set()
        for start in range(0, len(due), MAX_ROWS):
            standing |= self._renew_leases(due[start : start + MAX_ROWS], began=now)
        for delivery, future in asked:
            self._heartbeats.popleft()
            future.set_result(delivery in standing)
        self._next_renewal = min(map(_renewal_due, self._held), default=FOREVER)

    def _renew_leases(self, due: list[Delivery], *, began: float) -> set[Delivery]:
        """Renew these leases and return those that stand; one that is only locked does."""
        leases = [delivery.lease for delivery in due]
        ttls = [delivery.handler.lease_ttl for delivery in due]
        standing = self._database.call(store.renew, leases, ttls)
        missed = [delivery for delivery in due if delivery.claimed.id not in standing]
        if missed:
            standing |= self._database.call(store.still_held, [d.lease for d in missed])
            self._lose([delivery for delivery in missed if delivery.claimed.id not in standing])
        for delivery in due:
            delivery.renew_at = began + delivery.handler.lease_ttl / 3
        return {delivery for delivery in due if delivery.claimed.id in standing}

    def _lose(self, missed: Sequence[Delivery]) -> None:
        """Take note of leases that a renewal found lost, and start none of those messages."""
        # One whose handler settles it itself may be gone for a good reason; it will say so.
        lost = [d for d in missed if d.ended_at is None and not d.settles_itself]
        for delivery in lost:
            delivery.lost = True
            if self._pool.take_back(delivery):
                self._held.pop(delivery, None)
        if lost:
            self._reporter.lost(lost, "renew")

    def _notice_timeouts(self) -> None:
        """Stop renewing what is past its timeout: a thread cannot be cancelled."""
        if not self._has_timeouts:
            return
        now = time.monotonic()
        for delivery in self._pool.running:
            if now >= _times_out_at(delivery):
                delivery.timed_out = True
                self._reporter.timed_out(delivery)

    def _hand_back(self) -> None:
        """Hand back what has waited too long for a thread, for another worker to take."""
        if self._pool.waiting_count:
            now = time.monotonic()
            self._give_back(
                [d for d in self._pool.waiting if now - d.claimed_at >= HAND_BACK_AFTER]
            )

    def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        taken = [delivery for delivery in deliveries if self._pool.take_back(delivery)]
        if not taken:
            return
        self._claimed -= len(taken)
        outcome = Release(refund=True)
        for delivery in self._settler.settle([(delivery, outcome) for delivery in taken]):
            self._held.pop(delivery, None)

    # Claiming

    def _claim(self) -> None:
        now = time.monotonic()
        if now < self._claim_at or not (limit := self._room()):
            return
        sweep = now >= self._window.next_sweep or not self._held
        lanes = self._window.lanes(sweep=sweep)
        claimed = self._database.call(
            store.claim, lanes, limit=limit, worker_id=self.options.worker_id
        )
        if sweep:
            self._window.swept(began=now)
        self._window.advance(claimed)
        self._claimed += len(claimed)
        for row in claimed:
            delivery = Delivery(
                row,
                self._handlers[row.queue],
                using=self.options.using,
                claimed_at=now,
                request_renewal=self.request_renewal,
            )
            self._held[delivery] = None
            self._next_renewal = min(self._next_renewal, delivery.renew_at)
            self._pool.submit(delivery)
        if len(claimed) == limit:
            self._claim_at = 0.0
        elif sweep:
            self._claim_at = FOREVER
            self._poll_at = 0.0
            self._has_swept = True
        else:
            self._claim_at = self._window.next_sweep

    def _room(self) -> int:
        """Return how many messages to claim now; 0 while it is not worth a statement."""
        if self._stop_requested or self._reached_max:
            return 0
        now = time.monotonic()
        limit = self.options.batch_size
        if self.options.max_messages is not None:
            limit = min(limit, self.options.max_messages - self._claimed)
        waiting = self._pool.waiting_count
        room = self._pace.room(
            threads=self.options.concurrency,
            running=[now - (d.started_at or now) for d in self._pool.running],
            waiting=waiting,
            limit=limit,
        )
        if room < 1 or (waiting and room < self.options.batch_size // 2):
            return 0
        return room

    def _look_ahead(self) -> None:
        """Learn when the next message is due, once a poll, when there is nothing to claim."""
        now = time.monotonic()
        if self._claim_at < FOREVER or now < self._poll_at or not self._looks_ahead:
            return
        # What was due has just been claimed or is locked; only what is to come is of interest.
        overdue, self._has_swept = not self._has_swept, False
        seconds = self._database.call(store.soonest, self._queues, overdue=overdue)
        self._poll_at = now + settings.poll_interval
        if seconds is not None and seconds < settings.poll_interval:
            self._claim_at = time.monotonic() + max(0.0, seconds)

    @property
    def _looks_ahead(self) -> bool:
        return not (self.options.drain or self._stop_requested or self._reached_max)

    # Sleeping

    def _listen(self) -> None:
        with suppress(DatabaseAway):
            self._listener.connect()
        self._take_news()

    def _sleep(self) -> None:
        sockets = {s for s in (self._database.socket, self._listener.socket) if s is not None}
        ready = self._wakeup.sleep(
            self._wake_at() - time.monotonic(),
            sockets=sockets,
            unless=lambda: self._pool.has_ended or bool(self._heartbeats),
        )
        for database in {self._database, self._listener}:
            if database.socket in ready:
                database.receive()
        self._take_news()

    def _take_news(self) -> None:
        """Claim soon if a queue of ours was notified; at once, unless it has just been done."""
        news = self._listener.take_news()
        if news is None or not news.isdisjoint(self._handlers):
            now = time.monotonic()
            self._last_news = max(now, self._last_news + COALESCE)
            self._claim_at = min(self._claim_at, self._last_news)

    def _wake_at(self) -> float:
        moments = [self._stop_deadline]
        if self._database.is_away:
            return min(self._stop_deadline, self._database.retry_at)
        if self._listener.is_away:
            moments.append(self._listener.retry_at)
        moments.append(self._next_renewal)
        if (locked := self._settler.next_try) is not None:
            moments.append(locked)
        if self._pool.waiting_count:
            moments.append(time.monotonic() + 1.0)  # some may have to be handed back
        if self._has_timeouts:
            moments += map(_times_out_at, self._pool.running)
        if self._claim_at < FOREVER:
            moments.append(self._claim_at if self._room() else FOREVER)
        elif self._looks_ahead:
            moments.append(self._poll_at)
        return min(moments)


def _renewal_due(delivery: Delivery) -> float:
    """Return when the lease is to be renewed; never if it is lost or not to be held any longer."""
    return FOREVER if delivery.lost or delivery.timed_out else delivery.renew_at


def _times_out_at(delivery: Delivery) -> float:
    """Return when a running synchronous handler is past its timeout, if that is still to come."""
    timeout, started = delivery.handler.timeout, delivery.started_at
    if timeout is None or started is None or delivery.timed_out or delivery.handler.is_async:
        return FOREVER
    return started + timeout


def _is_pooled(alias: str) -> bool:
    """Tell whether the database looks like a transaction-mode pooler, which cannot LISTEN."""
    return bool(connections[alias].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"))
