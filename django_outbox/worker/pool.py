"""The handler threads: each takes a delivery, runs it, and reports its outcome.

Deliveries wait in one queue for whichever thread is free first, so none waits behind a slow one
while another thread idles. One that no thread has taken can be withdrawn, also where many share a
transaction: each is taken when its turn comes.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..handlers import Handler
from ..messages import Outcome, Release, is_settled
from . import sessions
from .attempts import attempt, attempt_together, do, guarded
from .delivery import Delivery

Job = Callable[[], None]
IDLE_AFTER = 1.0
"""Seconds without work after which a thread closes the connections it need not keep."""

SHORT = 0.001
"""Seconds; handlers that are quicker are told of in groups of up to `MOST_UNTOLD`."""

MOST_UNTOLD = 200


class Pool:
    """`size` threads that run deliveries, and small jobs such as sending signals."""

    def __init__(
        self, size: int, run: Callable[[Delivery], Outcome], wake: Callable[[], None]
    ) -> None:
        self.size = size
        self._run = run
        self._wake = wake
        # Single operations on deques and dicts are atomic between threads. `_running` is a dict
        # used as a set.
        self._waiting: deque[Delivery] = deque()
        self._running: dict[Delivery, bool] = {}
        self._ended: deque[tuple[Delivery, Outcome]] = deque()
        self._jobs: deque[Job] = deque()
        self._open_jobs: dict[Job, bool] = {}
        self._in_hand = 0  # waiting, running or ended; only the loop's thread changes it
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_stopping = False
        self._is_hurried = False
        self._threads = [
            threading.Thread(target=self._work, name=f"outbox-{n}", daemon=True)
            for n in range(1, size + 1)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout: float) -> None:
        """Let the threads end after what they run now, and wait `timeout` seconds for them.

        They are daemons: one that is stuck in its handler does not keep the process alive.
        """
        self._is_stopping = True
        for _ in self._threads:
            self._calls.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def hurry(self) -> None:
        """Let no further message join a transaction that many share."""
        self._is_hurried = True

    def submit(self, deliveries: Sequence[Delivery]) -> None:
        """Queue deliveries."""
        self._in_hand += len(deliveries)
        self._waiting.extend(deliveries)
        self._call()

    def submit_job(self, job: Job) -> None:
        """Queue a job that is no delivery; `is_quiet` waits for it."""
        self._open_jobs[job] = True
        self._jobs.append(job)
        self._call()

    def withdraw(self, delivery: Delivery) -> bool:
        """Tell whether the delivery had not been started; then it will not be."""
        try:
            self._waiting.remove(delivery)
        except ValueError:
            return False
        self._in_hand -= 1
        return True

    def collect(self) -> list[tuple[Delivery, Outcome]]:
        """Return what has ended since the last call, in the order it ended."""
        collected = [self._ended.popleft() for _ in range(len(self._ended))]
        self._in_hand -= len(collected)
        return collected

    @property
    def has_ended(self) -> bool:
        """Whether `collect` would return anything."""
        return bool(self._ended)

    @property
    def waiting(self) -> list[Delivery]:
        """The deliveries no thread has taken yet."""
        while True:
            with suppress(RuntimeError):  # one was taken meanwhile
                return list(self._waiting)

    @property
    def running(self) -> list[Delivery]:
        """The deliveries in their handlers now."""
        return [delivery for delivery in self._running.copy() if delivery.ended_at is None]

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits, runs, or has ended without being collected."""
        return not (self._in_hand or self._open_jobs)

    def _call(self) -> None:
        """Have a call out for each thing to do, as far as there are threads.

        A thread that is done looks for more before it heeds a call, so some find nothing.
        """
        number = min(len(self._waiting) + len(self._jobs), self.size)
        for _ in range(number - self._calls.qsize()):
            self._calls.put(None)

    def _work(self) -> None:
        sessions.begin()
        while True:
            work = self._next()
            if isinstance(work, Delivery):
                self._deliver(work)
            elif work is not None:
                self._do(work)
            elif self._is_stopping:
                break
            else:
                self._await_call()
        guarded(sessions.close_all)

    def _next(self) -> Delivery | Job | None:
        if self._jobs:
            with suppress(IndexError):  # another thread was quicker
                return self._jobs.popleft()
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _await_call(self) -> None:
        try:
            self._calls.get(timeout=IDLE_AFTER)
        except queue.Empty:
            guarded(sessions.close_idle)
            self._calls.get()

    def _deliver(self, delivery: Delivery) -> None:
        if most := self._most_mates(delivery):
            self._deliver_together(delivery, most)
        else:
            self._deliver_alone(delivery)

    def _most_mates(self, delivery: Delivery) -> int:
        """Return how many may share its transaction, leaving other threads their part."""
        if delivery.handler.atomic_batch == 1 or delivery.apart:
            return 0
        return min(delivery.handler.atomic_batch - 1, len(self._waiting) // self.size)

    def _take_mate(self, handler: Handler) -> Delivery | None:
        """Take what waits first, if it may share a transaction of the handler's."""
        while True:
            try:
                mate = self._waiting[0]
            except IndexError:
                return None
            if mate.handler is not handler or mate.apart:
                return None  # what waits behind others must not be served before them
            with suppress(ValueError):  # another thread was quicker
                self._waiting.remove(mate)
                return mate

    def _deliver_together(self, first: Delivery, most: int) -> None:
        batch: list[Delivery] = []

        def begin(delivery: Delivery) -> None:
            self._running[delivery] = True
            batch.append(delivery)

        def take() -> Delivery | None:
            # Not before its turn: what waits can be handed back, and another thread may take it.
            mate = None
            if len(batch) <= most and not self._is_hurried:
                mate = self._take_mate(first.handler)
            if mate is not None:
                begin(mate)
            return mate

        begin(first)
        outcomes = attempt_together(first, take)
        guarded(sessions.tidy)
        parted = [delivery for delivery in batch if delivery not in outcomes]
        if self._is_hurried:
            outcomes |= dict.fromkeys(parted, Release(refund=True))
            parted = []
        self._ended.extend(outcomes.items())
        for delivery in batch:
            del self._running[delivery]
        self._waiting.extendleft(reversed(parted))
        self._call()
        self._wake()

    def _deliver_alone(self, delivery: Delivery) -> None:
        self._running[delivery] = True
        outcome = attempt(delivery, self._run)
        delivery.ended_at = time.monotonic()
        guarded(sessions.tidy)
        self._ended.append((delivery, outcome))
        del self._running[delivery]
        if self._is_worth_a_wake(delivery, outcome):
            self._wake()

    def _is_worth_a_wake(self, delivery: Delivery, outcome: Outcome) -> bool:
        """Tell whether to end the loop's sleep for this outcome.

        While short handlers follow each other, the next of them will do, or the last. One that has
        settled itself leaves the loop nothing to write; it is only told when more work is wanted.
        """
        if len(self._waiting) <= self.size:
            return True
        if is_settled(outcome):
            return False
        return delivery.duration > SHORT or len(self._ended) >= MOST_UNTOLD

    def _do(self, job: Job) -> None:
        do(job)
        guarded(sessions.tidy)
        del self._open_jobs[job]
        self._wake()
