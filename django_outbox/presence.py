"""How workers and schedulers show that they live, and count what they have done.

One statement each ten seconds, and one when they end in good order. Nothing depends on it but what
operators see: if it cannot be written, work goes on.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import uuid4

from .messages import Again, Bury, Done
from .store import workers as store

logger = logging.getLogger("django_outbox")

BEAT_EVERY = 10.0
"""Seconds between two beats."""

LOST_AFTER = 60.0
"""Seconds of silence after which a process is taken for lost."""

PRUNE_EVERY = 600.0
FORGET_PROCESS_AFTER = 24 * 60 * 60.0
FORGET_COUNTERS_AFTER = 24 * 60 * 60.0


class Execute(Protocol):
    """Runs a store operation on the process's connection."""

    def __call__(self, operation: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


class Presence:
    """One process's row, and its share of the counters."""

    def __init__(
        self, kind: str, worker_id: str, *, queues: Sequence[str] = (), concurrency: int = 0
    ) -> None:
        self.next_beat = 0.0
        self._next_prune = 0.0
        self._id = uuid4()
        self._worker_id = worker_id
        self._kind = kind
        self._queues = queues
        self._concurrency = concurrency
        self._ended: Counter[tuple[str, str]] = Counter()

    def note(self, queue: str, kind: type, number: int) -> None:
        """Count so many deliveries that have ended with this kind of outcome."""
        if (column := _COLUMNS.get(kind)) is not None:
            self._ended[queue, column] += number

    def beat(self, execute: Execute, *, running: int = 0) -> None:
        """Write what there is to say, if it is time to.

        Raises what `execute` raises; what was not written is kept for the next beat.
        """
        now = time.monotonic()
        if now < self.next_beat:
            return
        self.next_beat = now + BEAT_EVERY
        ended = self._ended.copy()
        execute(store.beat, self._describe(running), _tallies(ended))
        self._ended -= ended
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_EVERY
            execute(store.prune, lost=FORGET_PROCESS_AFTER, counters=FORGET_COUNTERS_AFTER)

    def leave(self, execute: Execute) -> None:
        """Write that the process has ended in good order, and what is still to be counted."""
        if self.next_beat:
            self.next_beat = 0.0
            self.beat(execute)
            execute(store.forget, self._id)

    def _describe(self, running: int) -> store.Beat:
        return store.Beat(
            id=self._id,
            worker_id=self._worker_id,
            kind=self._kind,
            host=socket.gethostname()[:255],
            pid=os.getpid(),
            queues=self._queues,
            concurrency=self._concurrency,
            running=running,
        )


_COLUMNS: dict[type, str] = {Done: "completed", Again: "retried", Bury: "buried"}


def _tallies(ended: Counter[tuple[str, str]]) -> dict[str, store.Tally]:
    queues = sorted({queue for queue, _ in ended})
    return {
        queue: store.Tally(**{column: ended[queue, column] for column in _COLUMNS.values()})
        for queue in queues
    }
