"""Give up connections that do not answer.

A peer that has vanished without a word keeps a blocking call waiting for as long as TCP pleases.
The watchdog shuts the socket down at a deadline, which ends the call with an ordinary connection
error; the kernel does the same for the connections of handlers, whose queries may take their time
but whose packets must be acknowledged.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

import psycopg

PATIENCE = 25.0
"""Seconds that what is guarded may take before its connection is given up."""

HURRIED = 3.0
"""Seconds it is still given when whoever waits for it is to stop."""


class Watchdog:
    """Shut a socket down when what is done on it takes too long."""

    def __init__(self, *, is_hurried: Callable[[], bool] = lambda: False) -> None:
        self.patience = PATIENCE
        self._is_hurried = is_hurried
        self._guarded: dict[object, tuple[float, Callable[[], int | None]]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outbox-watchdog", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    @contextmanager
    def guard(self, fd: Callable[[], int | None]) -> Iterator[None]:
        """Shut the socket down if the block takes longer than the patience.

        `fd` is asked only then, since a connection that is being made has no socket at first.
        """
        key = object()
        self._guarded[key] = (time.monotonic() + self.patience, fd)
        try:
            yield
        finally:
            self._guarded.pop(key, None)

    def _watch(self) -> None:
        hurried_at = inf
        while not self._stopped.wait(1.0):
            now = time.monotonic()
            if hurried_at == inf and self._is_hurried():
                hurried_at = now + HURRIED
            for key, (deadline, fd) in list(self._guarded.items()):
                if now > min(deadline, hurried_at) and _shut_down(fd):
                    self._guarded.pop(key, None)


def _shut_down(find: Callable[[], int | None]) -> bool:
    """Shut a socket down; False if there is none yet."""
    with suppress(OSError, psycopg.Error):
        fd = find()
        if fd is None:
            return False
        with socket.socket(fileno=os.dup(fd)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
    return True


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
