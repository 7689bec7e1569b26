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
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..store import CHANNEL, Cursor
from .watchdog import Watchdog

logger = logging.getLogger("django_outbox")

P = ParamSpec("P")
R = TypeVar("R")

_RETRY_AT_ONCE = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
_REFUSALS = (
    psycopg.ProgrammingError,
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.NotSupportedError,
    psycopg.errors.RaiseException,
)
_TRIES = 5
_MAX_BACKOFF = 5.0
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
        self._failures = 0  # since a statement last succeeded; connecting alone proves little
        self._is_away = False
        self._wrapper: BaseDatabaseWrapper | None = None
        self._has_missed = False
        self._notified: set[str] = set()

    @property
    def socket(self) -> int | None:
        """The socket to wait on for notifications, None while there is no connection."""
        raw = self._raw
        return None if raw is None or raw.closed else raw.fileno()

    @property
    def is_away(self) -> bool:
        """Whether the last thing tried on it failed."""
        return self._is_away

    def call(
        self, operation: Callable[Concatenate[Cursor, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run one store operation in a transaction of its own.

        Raises `DatabaseAway` when the database cannot be reached, `RowsLocked` when it gave up
        waiting for a lock, and psycopg's own error when the statement itself is refused.
        """
        raw = self.connect()
        for _ in range(_TRIES):
            try:
                with self._watchdog.guard(raw.fileno()), psycopg.Cursor(raw) as cursor:
                    cursor.format = psycopg.pq.Format.BINARY
                    result = operation(cursor, *args, **kwargs)
            except _RETRY_AT_ONCE:
                continue
            except psycopg.errors.LockNotAvailable as error:
                self.retry_at = time.monotonic() + LOCKED_PAUSE
                self._is_away = True
                raise RowsLocked from error
            except _REFUSALS:
                raise
            except psycopg.Error as error:
                self._lose(error, sent=True)
            else:
                self._failures = 0
                self._is_away = False
                return result
        return self._lose(psycopg.OperationalError("the statement could not be serialized"))

    def connect(self) -> psycopg.Connection[Any]:
        """Return the open connection, made anew if need be and if it is time to."""
        raw = self._raw
        if raw is not None and not raw.closed:
            return raw
        if time.monotonic() < self.retry_at:
            raise DatabaseAway
        try:
            return self._open()
        except (psycopg.Error, DjangoError, OSError) as error:
            return self._lose(error)

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
                self._lose(error)

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

    def _open(self) -> psycopg.Connection[Any]:
        wrapper = connections.create_connection(self.alias)
        options = {"connect_timeout": 10, **wrapper.settings_dict.get("OPTIONS", {})}
        wrapper.settings_dict = {**wrapper.settings_dict, "OPTIONS": options}
        wrapper.connect()
        raw: psycopg.Connection[Any] = wrapper.connection
        self._wrapper = wrapper
        raw.add_notify_handler(lambda notification: self._notified.add(notification.payload))
        if self._listen:
            with self._watchdog.guard(raw.fileno()):
                raw.execute(f"LISTEN {CHANNEL}")
        if self._is_away:
            logger.warning("The database %r is back", self.alias, extra={"event": "database_back"})
        self._is_away = False
        self._has_missed = True  # whatever was notified while nobody listened
        return raw

    def _lose(self, error: BaseException, *, sent: bool = False) -> NoReturn:
        """Drop the connection, set the time of the next try, and raise `DatabaseAway`."""
        self.close()
        pause = min(0.1 * 2.0 ** min(self._failures, 10), _MAX_BACKOFF) * random.uniform(0.5, 1)  # noqa: S311
        self.retry_at = time.monotonic() + pause
        if not self._is_away:
            logger.warning(
                "The database %r is away, trying again until it is back: %s",
                self.alias,
                str(error).strip() or type(error).__name__,
                extra={"event": "database_away"},
            )
        self._failures += 1
        self._is_away = True
        raise DatabaseAway(sent=sent) from error
