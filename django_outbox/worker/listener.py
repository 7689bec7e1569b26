"""Listening on a database of its own, for workers whose own goes through a transaction pooler.

It has a thread to itself: notifications only make a worker quicker, so a listener that cannot
connect must never hold up the loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ..watchdog import Watchdog
from .database import Database, DatabaseAway
from .moments import NEVER
from .wakeup import Wakeup


class Listener:
    """A thread that listens, and calls `tell` with the queues notified.

    None instead of queues stands for notifications that may have been missed.
    """

    def __init__(
        self, alias: str, watchdog: Watchdog, tell: Callable[[set[str] | None], None]
    ) -> None:
        self._database = Database(alias, watchdog, listen=True)
        self._tell = tell
        self._wakeup = Wakeup()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="outbox-listener", daemon=True)

    def start(self) -> None:
        """Start listening."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, without waiting for a connection that is being tried."""
        self._is_stopped = True
        self._wakeup.wake()
        self._thread.join(0.5)

    def _run(self) -> None:
        while not self._is_stopped:
            with suppress(DatabaseAway):
                self._database.connect()
            news = self._database.take_news()
            if news is None or news:
                self._tell(news)
            fd = self._database.socket
            until = self._database.retry_at if fd is None else NEVER
            if self._wakeup.sleep(
                until - time.monotonic(), socket=fd, unless=lambda: self._is_stopped
            ):
                self._database.receive()
        self._database.close()
        self._wakeup.close()
