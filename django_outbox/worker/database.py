"""The loop's own connection: statements that survive a restart, and notifications.

It is a connection of Django's making, so roles, options and custom backends hold for it too, but
it belongs to no thread's `connections`, and its cursors are psycopg's own, in binary.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import psycopg
from django.db import Error as DjangoError
from django.db.backends.base.base import BaseDatabaseWrapper

from ..errors import summary
from ..own_connection import own_connection
from ..store import CHANNEL, Cursor, session
from ..watchdog import Watchdog

logger = logging.getLogger("django_outbox")

P = ParamSpec("P")
R = TypeVar("R")

_RETRY_AT_ONCE = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
# The server ends the session, is not up yet, or has become read-only, as after a failover.
_SESSION_ENDS = ("08", "57P", "25006")
# A prepared statement is gone or somebody else's, as behind a pooler that nobody told of, or its
# result has changed with a migration.
_UNPREPARED = ("26000", "42P05", "0A000")
_TRIES = 5
_MAX_BACKOFF = 5.0
PREPARE_AFTER = 5
"""Runs after which a statement is prepared."""

LOCKED_PAUSE = 0.1
"""Seconds after which what another transaction has locked is tried again."""


class DatabaseAway(Exception):
    """The database cannot be reached now; `Database.retry_at` says when to try again.

    `sent` when the statement was on its way, so that it may have been carried out.
    """

    def __init__(self, *, sent: bool = False) -> None:
        super().__init__()
        self.sent = sent


class RowsLocked(DatabaseAway):
    """A lock was not to be had in time; the connection is as it was."""


class Database:
    """One connection that is made anew when it breaks, after a jittered and growing pause."""

    def __init__(self, alias: str, watchdog: Watchdog, *, listen: bool) -> None:
        self.alias = alias
        self.retry_at = 0.0
        self._watchdog = watchdog
        self._listen = listen
        self._prepares = True
        self._failures = 0  # since a statement last succeeded; connecting alone proves little
        self._is_away = False
        self._wrapper: BaseDatabaseWrapper | None = None
        self._has_missed = False
        self._notified: set[str] = set()

    @property
    def socket(self) -> int | None:
        """The socket to wait on for notifications, None while there is no connection."""
        return self._fd()

    @property
    def is_away(self) -> bool:
        """Whether the last thing tried on it failed, so that `retry_at` is to be waited for."""
        return self._is_away

    def call(
        self, operation: Callable[Concatenate[Cursor, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run one store operation in a transaction of its own.

        Raises `DatabaseAway` when the database cannot be reached, `RowsLocked` when it gave up
        waiting for a lock, and psycopg's own error when the server refuses the statement.
        """
        raw = self.connect()
        for _ in range(_TRIES):
            try:
                with self._watchdog.guard(lambda: raw) as guarded, psycopg.Cursor(raw) as cursor:
                    cursor.format = psycopg.pq.Format.BINARY
                    result = operation(cursor, *args, **kwargs)
            except _RETRY_AT_ONCE:
                continue
            except psycopg.errors.LockNotAvailable as error:
                self._hold_off(LOCKED_PAUSE)
                raise RowsLocked from error
            except psycopg.Error as error:
                is_over = guarded.is_given_up or raw.closed
                if is_over or (error.sqlstate or "").startswith(_SESSION_ENDS):
                    self._drop(error, sent=is_over)
                if error.sqlstate in _UNPREPARED and raw.prepare_threshold is not None:
                    self._prepares = False
                    self._drop(error)
                raise
            else:
                self._note_success()
                return result
        return self._drop(psycopg.OperationalError("the statement could not be serialized"))

    def connect(self) -> psycopg.Connection[Any]:
        """Return the open connection, made anew if need be and if it is time to."""
        raw = self._raw
        is_time = time.monotonic() >= self.retry_at
        if raw is not None and not raw.closed:
            self._is_away &= not is_time
            return raw
        if not is_time:
            raise DatabaseAway
        try:
            return self._open()
        except (psycopg.Error, DjangoError, OSError) as error:
            return self._drop(error)

    def receive(self) -> None:
        """Read what the server has sent unasked: notifications, or the end of the session."""
        raw = self._raw
        if raw is None or raw.closed:
            return
        try:
            raw.pgconn.consume_input()
            while (notification := raw.pgconn.notifies()) is not None:
                self._notified.add(notification.extra.decode(errors="replace"))
        except psycopg.Error as error:
            with suppress(DatabaseAway):
                self._drop(error)

    def take_news(self) -> set[str] | None:
        """Return the queues notified since the last call; None if any may have been missed."""
        if self._has_missed:
            self._has_missed = False
            self._notified.clear()
            return None
        notified, self._notified = self._notified, set()
        return notified

    def close(self) -> None:
        """Close the connection."""
        wrapper, self._wrapper = self._wrapper, None
        if wrapper is not None:
            try:
                wrapper.close()
            except (psycopg.Error, DjangoError):
                logger.debug("Closing a broken connection failed", exc_info=True)

    @property
    def _raw(self) -> psycopg.Connection[Any] | None:
        return None if self._wrapper is None else self._wrapper.connection

    def _note_success(self) -> None:
        if self._failures:
            logger.warning("The database %r is back", self.alias, extra={"event": "database_back"})
        self._failures = 0
        self._is_away = False

    def _open(self) -> psycopg.Connection[Any]:
        self._wrapper = wrapper = own_connection(self.alias)
        with self._watchdog.guard(lambda: self._raw):
            wrapper.connect()
            raw: psycopg.Connection[Any] = wrapper.connection
            raw.add_notify_handler(lambda notification: self._notified.add(notification.payload))
            if self._listen:
                # A session that may listen is not shared. So it can be set up, and its statements
                # prepared: to plan each claim takes a third of an idle worker's time to answer.
                with psycopg.Cursor(raw) as cursor:
                    session.go_along_indexes(cursor)
                raw.execute(f"LISTEN {CHANNEL}")
                if self._prepares and raw.prepare_threshold is None:
                    raw.prepare_threshold = PREPARE_AFTER
                self._note_success()
        self._is_away = False
        self._has_missed = True  # whatever was notified while nobody listened
        return raw

    def _fd(self) -> int | None:
        raw = self._raw
        return None if raw is None or raw.closed else raw.fileno()

    def _drop(self, error: BaseException, *, sent: bool = False) -> NoReturn:
        """Drop the connection, set the time of the next try, and raise `DatabaseAway`."""
        self.close()
        pause = min(0.1 * 2.0 ** min(self._failures, 10), _MAX_BACKOFF)
        self.pause(error, seconds=pause * random.uniform(0.5, 1))  # noqa: S311
        raise DatabaseAway(sent=sent) from error

    def pause(self, error: BaseException, *, seconds: float) -> None:
        """Try nothing more for so long; say so if it went well before."""
        self._hold_off(seconds)
        self._failures += 1
        if self._failures == 1:
            logger.warning(
                "The database %r does not serve the worker, which tries again until it does: %s",
                self.alias,
                summary(error),
                extra={"event": "database_away"},
            )

    def _hold_off(self, seconds: float) -> None:
        self.retry_at = time.monotonic() + seconds
        self._is_away = True
