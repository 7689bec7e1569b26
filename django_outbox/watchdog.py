"""Give up connections that do not answer.

A peer that has vanished without a word keeps a blocking call waiting for as long as TCP pleases.
The watchdog shuts the socket down at a deadline, which ends the call with an ordinary connection
error; the kernel does the same for the connections of handlers, whose queries may take their time
but whose packets must be acknowledged.

A server that is there, and only waits for a lock, would not notice: one session after the other
would wait with it, and each would carry its statement out in the end, for nobody. So it is told
first to cancel what it is at.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

import psycopg

Connection: TypeAlias = psycopg.Connection[Any]
Find: TypeAlias = Callable[[], Connection | None]

PATIENCE = 25.0
"""Seconds that what is guarded may take before its connection is given up."""

CANCELLING = 2.0
"""Seconds that the server is given to cancel a statement before its connection is shut down."""

HURRIED = 3.0
"""Seconds it is still given when whoever waits for it is to stop."""


@dataclass(slots=True, eq=False)
class Guarded:
    """A block that is not to take for ever, and whether the watchdog has ended it."""

    find: Find
    deadline: float
    is_given_up: bool = False


class Watchdog:
    """Shut a socket down when what is done on it takes too long."""

    def __init__(self, *, is_hurried: Callable[[], bool] = lambda: False) -> None:
        self.patience = PATIENCE
        self._is_hurried = is_hurried
        self._guarded: dict[int, Guarded] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outbox-watchdog", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    @contextmanager
    def guard(self, find: Find) -> Iterator[Guarded]:
        """Give the connection up if the block takes longer than the patience.

        `find` is asked only then, since a connection that is being made is not there at first.
        """
        guarded = Guarded(find, deadline=time.monotonic() + self.patience)
        self._guarded[id(guarded)] = guarded
        try:
            yield guarded
        finally:
            self._guarded.pop(id(guarded), None)

    def _watch(self) -> None:
        hurried_at = inf
        while not self._stopped.wait(1.0):
            now = time.monotonic()
            if hurried_at == inf and self._is_hurried():
                hurried_at = now + HURRIED
            for guarded in list(self._guarded.values()):
                if now > min(guarded.deadline, hurried_at):
                    _give_up(guarded)


def _give_up(guarded: Guarded) -> None:
    """Have the server cancel what it is at, and shut the socket down, if there is one yet."""
    raw = guarded.find()
    if guarded.is_given_up or raw is None or raw.closed:
        return
    guarded.is_given_up = True
    # The server may be as silent to this as to the statement, and not for seconds only.
    cancelling = threading.Thread(target=_cancel, args=(raw,), daemon=True)
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(raw.fileno())) as duplicate:
        cancelling.start()
        cancelling.join(CANCELLING)
        duplicate.shutdown(socket.SHUT_RDWR)


def _cancel(raw: Connection) -> None:
    with suppress(OSError, psycopg.Error):
        raw.cancel_safe(timeout=CANCELLING)


def limit_silence(connection: Any, **kwargs: Any) -> None:
    """Have the kernel end a TCP connection whose peer acknowledges nothing for half a minute.

    A receiver of Django's `connection_created`; other databases than PostgreSQL are left alone.
    """
    if connection.vendor != "postgresql":
        return
    raw: Any = connection.connection
    options = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
    with suppress(OSError), socket.socket(fileno=os.dup(raw.fileno())) as duplicate:
        if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
            return
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                duplicate.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
