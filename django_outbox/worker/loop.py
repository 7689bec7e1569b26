"""The worker's loop: settle, renew, claim, sleep.

Each turn writes what has ended, renews the leases that are due for it, claims into the room there
is, and sleeps until the soonest of: a notification, a handler that ends, the next due message, a
renewal, the poll. Everything here runs in one thread and on one connection.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

import psycopg
from django.db.backends.signals import connection_created

from ..errors import summary
from ..handlers import Handler
from ..messages import Again, Release
from ..pooled import listens_on
from ..presence import Presence
from ..store.storage import DjangoStorage
from ..watchdog import Watchdog, limit_silence
from . import sessions
from .claiming import Claims
from .database import Database, DatabaseAway
from .delivery import Delivery
from .dispatch import deliver
from .leases import Leases
from .listener import Listener
from .moments import NEVER
from .options import Options
from .pool import Pool
from .reporting import Reporter
from .settling import Settler
from .wakeup import Wakeup

__all__ = ["Options", "Worker"]

logger = logging.getLogger("django_outbox")

REFUSED_PAUSE = 1.0
"""Seconds after which a statement that the server has refused is tried again."""


class Worker:
    """Deliver the messages of some queues until stopped.

    `run` blocks; `stop` may be called from a signal handler or another thread.
    """

    def __init__(self, handlers: Mapping[str, Handler], options: Options) -> None:
        self.options = options
        self._handlers = handlers
        self._watchdog = Watchdog()
        self._wakeup = Wakeup()
        self._pool = Pool(options.concurrency, deliver, self._wakeup.wake)
        listen_on = listens_on(options.using)
        self._database = Database(options.using, self._watchdog, listen=listen_on == options.using)
        self._listener = (
            None
            if listen_on in (None, options.using)
            else Listener(listen_on, self._watchdog, self._hear)
        )
        self._presence = Presence(
            "worker", options.worker_id, queues=list(handlers), concurrency=options.concurrency
        )
        self._reporter = Reporter(options.worker_id, self._pool.submit_job, self._presence.note)
        self._settler = Settler(self._database, self._reporter)
        self._leases = Leases(self._database, self._pool, self._reporter, self._wakeup.wake)
        self._claims = Claims(handlers, options, self._database, self._pool)
        self._storage = DjangoStorage(options.using)
        self._heard: deque[set[str] | None] = deque()
        self._refusal: psycopg.Error | None = None
        self._stop_requested = False
        self._stop_deadline = NEVER

    def stop(self) -> None:
        """Claim no more, release what has not started, and finish what runs."""
        self._stop_requested = True
        self._wakeup.wake()

    def run(self) -> int:
        """Work until stopped or done; return the exit code.

        0 when everything in hand was settled, 1 when something had to be left to its lease. Raises
        psycopg's `ProgrammingError` when the database refuses the worker's statements, after
        stopping in good order.
        """
        self._open()
        try:
            while not self._is_done():
                self._turn()
                if not self._is_done():
                    self._sleep()
        finally:
            self._close()
        code = self._exit_code()
        if self._refusal is not None:
            raise self._refusal
        return code

    @property
    def has_stuck_handlers(self) -> bool:
        """Whether handlers still run after `run` has returned."""
        return self._pool.running_count > 0

    def _turn(self) -> None:
        self._begin_stop()
        self._settle()
        self._leases.notice_timeouts()
        self._release(self._leases.overdue())
        try:
            self._database.connect()
            self._leases.renew()
            self._claim()
            self._claims.look_ahead()
            self._beat()
        except DatabaseAway:
            pass  # what is in hand stays so; the next turn tries again at `retry_at`
        except psycopg.ProgrammingError as error:
            self._refusal = error  # privileges or tables that are not ours: waiting mends nothing
            self._stop_requested = True
            self._database.pause(error, seconds=REFUSED_PAUSE)
        except psycopg.Error as error:
            self._database.pause(error, seconds=REFUSED_PAUSE)
        self._take_news()

    def _beat(self) -> None:
        try:
            self._presence.beat(self._database.call, running=self._pool.running_count)
        except psycopg.Error as error:
            # Operators see less; messages are delivered all the same.
            logger.warning(
                "That this worker lives could not be written: %s",
                summary(error),
                extra={"event": "presence_not_written"},
            )

    def _settle(self) -> None:
        ended = self._pool.collect()
        self._claims.pace.note_durations(
            [delivery.duration for delivery, _ in ended if delivery.started_at is not None]
        )
        if ended or self._settler.unsettled:
            self._leases.drop(self._settler.settle(ended))
            if delays := [outcome.delay for _, outcome in ended if isinstance(outcome, Again)]:
                self._claims.expect(min(delays))
            if self.options.drain:
                self._claims.look_again()  # handlers may have published more

    def _claim(self) -> None:
        claimed_at = time.monotonic()
        deliveries = [
            Delivery(
                row,
                self._handlers[row.queue],
                storage=self._storage,
                claimed_at=claimed_at,
                request_renewal=self._leases.request_renewal,
            )
            for row in self._claims.claim(idle=not self._leases)
        ]
        self._leases.take(deliveries)
        self._pool.submit(deliveries)

    def _release(self, deliveries: Iterable[Delivery]) -> None:
        """Let other workers have what no thread has started."""
        withdrawn = [delivery for delivery in deliveries if self._pool.withdraw(delivery)]
        if withdrawn:
            self._claims.uncount(len(withdrawn))
            outcome = Release(refund=True)
            ended = [(delivery, outcome) for delivery in withdrawn]
            self._leases.drop(self._settler.settle(ended))

    def _take_news(self) -> None:
        self._claims.take_news(self._database.take_news())
        while self._heard:
            self._claims.take_news(self._heard.popleft())

    def _hear(self, news: set[str] | None) -> None:
        """Take in what a separate listener has heard; called by its thread."""
        self._heard.append(news)
        self._wakeup.wake()

    def _sleep(self) -> None:
        is_readable = self._wakeup.sleep(
            self._wake_at() - time.monotonic(), socket=self._database.socket, unless=self._has_news
        )
        if is_readable:
            self._database.receive()
        self._take_news()

    def _has_news(self) -> bool:
        """Tell whether a thread or a signal has left something for the next turn."""
        return (
            self._pool.has_ended
            or bool(self._heard)
            or self._has_stop_to_begin
            or self._is_done()  # by a job that has ended
            or (self._leases.is_asked and not self._database.is_away)
        )

    def _wake_at(self) -> float:
        if self._database.is_away:
            return min(self._stop_deadline, self._database.retry_at)
        return min(
            self._stop_deadline,
            self._settler.next_try,
            self._leases.wake_at(),
            self._claims.wake_at(),
            self._presence.next_beat,
        )

    # Starting and stopping

    def _open(self) -> None:
        self._watchdog.start()
        for receiver in (limit_silence, sessions.watch):
            connection_created.connect(receiver, dispatch_uid=(id(self), receiver.__name__))
        self._pool.start()
        if self._listener is not None:
            self._listener.start()

    def _close(self) -> None:
        self._leases.close()
        self._pool.stop(timeout=0.0 if self.has_stuck_handlers else 2.0)
        for receiver in (limit_silence, sessions.watch):
            connection_created.disconnect(dispatch_uid=(id(self), receiver.__name__))
        if self._listener is not None:
            self._listener.stop()
        if not self._database.is_away:
            with suppress(DatabaseAway, psycopg.Error):
                self._presence.leave(self._database.call)
        self._watchdog.stop()
        self._database.close()
        self._wakeup.close()

    @property
    def _has_stop_to_begin(self) -> bool:
        return self._stop_requested and self._stop_deadline == NEVER

    def _begin_stop(self) -> None:
        if not self._has_stop_to_begin:
            return
        timeout = self.options.shutdown_timeout
        self._stop_deadline = time.monotonic() + timeout
        self._watchdog.patience = min(self._watchdog.patience, timeout + 1)
        self._claims.close()
        self._pool.hurry()
        self._release(self._pool.waiting)
        logger.info("Stopping; finishing %d message(s)", self._pool.running_count)

    def _is_done(self) -> bool:
        if self._stop_requested:
            return not self._has_stop_to_begin and (
                self._is_idle or time.monotonic() >= self._stop_deadline
            )
        if self._claims.has_reached_max:
            return self._is_idle
        return self.options.drain and self._is_idle and self._claims.is_exhausted

    @property
    def _is_idle(self) -> bool:
        return not self._leases and self._pool.is_quiet and not self._settler.unsettled

    def _exit_code(self) -> int:
        left = sorted([*self._leases.ids, *self._settler.abandoned])
        if not left:
            return int(self.options.drain and self._claims.has_refused)
        logger.error(
            "Left %d message(s) to their leases: %s",
            len(left),
            left,
            extra={"event": "left_to_lease", "count": len(left)},
        )
        return 1
