"""The worker's loop: settle, renew, claim, sleep.

Each turn writes what has ended, renews the leases that are due for it, claims into the room there
is, and sleeps until the soonest of: a notification, a handler that ends, the next due message, a
renewal, the poll. Everything here runs in one thread and on one connection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

import psycopg
from django.db import connections
from django.db.backends.signals import connection_created

from ..conf import settings
from ..handlers import Handler
from ..messages import Release
from ..store.storage import DjangoStorage
from . import sessions
from .database import Database, DatabaseAway
from .delivery import Delivery
from .dispatch import deliver
from .intake import Intake
from .leases import Leases
from .options import Options
from .pool import Pool
from .reporting import Reporter
from .settling import Settler
from .wakeup import Wakeup
from .watchdog import Watchdog, limit_silence

__all__ = ["Options", "Worker"]

logger = logging.getLogger("django_outbox")

NEVER = float("inf")
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
        self._database = Database(options.using, self._watchdog, listen=_can_listen(options.using))
        self._listener = self._listening_database()
        self._reporter = Reporter(options.worker_id, self._pool.submit_job)
        self._settler = Settler(self._database, self._reporter)
        self._leases = Leases(self._database, self._pool, self._reporter, self._wakeup.wake)
        self._intake = Intake(handlers, options, self._database, self._pool)
        self._storage = DjangoStorage(options.using)
        self._stop_requested = False
        self._stop_deadline = NEVER

    def stop(self) -> None:
        """Claim no more, hand back what has not started, and finish what runs."""
        self._stop_requested = True
        self._wakeup.wake()

    def run(self) -> int:
        """Work until stopped or done; return the exit code.

        0 when everything in hand was settled, 1 when something had to be left to its lease.
        """
        self._open()
        try:
            while not self._is_done():
                self._turn()
                if not self._is_done():
                    self._sleep()
        finally:
            self._close()
        return self._exit_code()

    @property
    def has_stuck_handlers(self) -> bool:
        """Whether handlers still run after `run` has returned."""
        return self._pool.running_count > 0

    def _turn(self) -> None:
        self._begin_stop()
        self._settle()
        self._leases.notice_timeouts()
        try:
            self._database.connect()
            self._leases.renew()
            self._give_back(self._leases.overdue())
            self._claim()
            self._intake.look_ahead()
        except DatabaseAway:
            pass  # what is in hand stays so; the next turn tries again at `retry_at`
        except psycopg.ProgrammingError:
            raise  # privileges or tables that are not ours: no waiting mends that
        except psycopg.Error as error:
            self._database.pause(error, seconds=REFUSED_PAUSE)
        with suppress(DatabaseAway):
            self._listener.connect()
        self._intake.take_news(self._listener.take_news())

    def _settle(self) -> None:
        ended = self._pool.collect()
        for delivery, _ in ended:
            if delivery.started_at is not None:
                self._intake.pace.note(delivery.duration)
        if ended or self._settler.unsettled:
            self._leases.drop(self._settler.settle(ended))
            if self.options.drain:
                self._intake.look_again()  # handlers may have published more

    def _claim(self) -> None:
        claimed_at = time.monotonic()
        for row in self._intake.claim(idle=not self._leases):
            delivery = Delivery(
                row,
                self._handlers[row.queue],
                storage=self._storage,
                claimed_at=claimed_at,
                request_renewal=self._leases.request_renewal,
            )
            self._leases.take(delivery)
            self._pool.submit(delivery)

    def _give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Hand back, for another worker to take, what no thread has started."""
        taken = [delivery for delivery in deliveries if self._pool.take_back(delivery)]
        if taken:
            self._intake.give_back(len(taken))
            outcome = Release(refund=True)
            self._leases.drop(self._settler.settle([(delivery, outcome) for delivery in taken]))

    def _sleep(self) -> None:
        sockets = {s for s in (self._database.socket, self._listener.socket) if s is not None}
        ready = self._wakeup.sleep(
            self._wake_at() - time.monotonic(),
            sockets=sockets,
            unless=lambda: self._pool.has_ended or self._leases.is_asked or self._has_stop_to_begin,
        )
        for database in {self._database, self._listener}:
            if database.socket in ready:
                database.receive()
        self._intake.take_news(self._listener.take_news())

    def _wake_at(self) -> float:
        if self._database.is_away:
            return min(self._stop_deadline, self._database.retry_at)
        listening = self._listener.retry_at if self._listener.is_away else NEVER
        return min(
            self._stop_deadline,
            listening,
            self._settler.next_try,
            self._leases.wake_at(),
            self._intake.wake_at(),
        )

    # Starting and stopping

    def _open(self) -> None:
        self._watchdog.start()
        for receiver in (limit_silence, sessions.watch):
            connection_created.connect(receiver, dispatch_uid=(id(self), receiver.__name__))
        self._pool.start()

    def _close(self) -> None:
        self._pool.stop(timeout=0.0 if self.has_stuck_handlers else 2.0)
        for receiver in (limit_silence, sessions.watch):
            connection_created.disconnect(dispatch_uid=(id(self), receiver.__name__))
        self._watchdog.stop()
        self._database.close()
        self._listener.close()
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
        self._intake.close()
        self._give_back(self._pool.waiting)
        logger.info("Stopping; finishing %d message(s)", self._pool.running_count)

    def _is_done(self) -> bool:
        if self._stop_requested:
            return not self._has_stop_to_begin and (
                self._is_idle or time.monotonic() >= self._stop_deadline
            )
        if self._intake.has_reached_max:
            return self._is_idle
        return self.options.drain and self._is_idle and self._intake.is_exhausted

    @property
    def _is_idle(self) -> bool:
        return not self._leases and self._pool.is_quiet and not self._settler.unsettled

    def _exit_code(self) -> int:
        left = sorted([*self._leases.ids, *self._settler.abandoned])
        if not left:
            return 0
        logger.error(
            "Left %d message(s) to their leases: %s",
            len(left),
            left,
            extra={"event": "left_to_lease", "count": len(left)},
        )
        return 1

    def _listening_database(self) -> Database:
        """Return the connection that LISTENs: the worker's own unless the settings name another."""
        alias = settings.listen_database
        if not settings.notify or alias in (None, self.options.using):
            return self._database
        return Database(alias, self._watchdog, listen=True)


def _can_listen(alias: str) -> bool:
    """Tell whether to LISTEN on a database: not if it looks like a transaction-mode pooler."""
    pooled = connections[alias].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    return settings.notify and not pooled
