"""Deliver on the caller's own connection, one message after the other.

What a worker does, without its loop and threads: the claim, the dispatch and the settlement are
the same, in whatever transaction the caller has open.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from ..handlers import Handler
from ..messages import Again, Bury, Claimed, Done, Lost, Outcome, Release
from ..store.messages import Lane
from ..store.storage import Storage
from .delivery import Delivery
from .dispatch import deliver
from .reporting import PHASES, Reporter

MOST_MISSES = 3
"""Claims of a queue that may come back empty though something was due, as another was quicker.

After as many its rows cannot be leased, for a trigger keeps them from it: the queue is passed over.
"""


def deliver_next(
    storage: Storage, handlers: Mapping[str, Handler], *, worker_id: str, ahead: float = 0.0
) -> Outcome | None:
    """Deliver the message that is first to be claimed and return its outcome; None on empty.

    What is due, or expires, within `ahead` seconds counts as due, or expired.
    """
    queues = list(handlers)
    misses: Counter[str] = Counter()
    while (queue := storage.first_due(queues, ahead=ahead)) is not None:
        lane = Lane(queue, handlers[queue].lease_ttl)
        for claimed in storage.claim([lane], limit=1, worker_id=worker_id, ahead=ahead):
            return deliver_claimed(storage, claimed, handlers[queue], worker_id=worker_id)
        misses[queue] += 1
        if misses[queue] == MOST_MISSES:
            queues.remove(queue)
    return None


def deliver_claimed(
    storage: Storage, claimed: Claimed, handler: Handler, *, worker_id: str
) -> Outcome:
    """Deliver a claimed message, write its outcome, and return it."""
    delivery = Delivery(claimed, handler, storage=storage, claimed_at=time.monotonic())
    delivery.depth = storage.depth
    delivery.started_at = time.monotonic()
    with storage.sheltered():
        outcome = deliver(delivery)
    delivery.ended_at = time.monotonic()
    _settle(delivery, outcome, Reporter(worker_id, lambda job: _shelter(storage, job)))
    storage.forget_hooks(delivery)
    return outcome


def _shelter(storage: Storage, job: Callable[[], None]) -> None:
    """Run a job so that what it breaks in the open transaction is mended."""
    with storage.sheltered():
        job()


def _settle(delivery: Delivery, outcome: Outcome, reporter: Reporter) -> None:
    if isinstance(outcome, Lost):
        reporter.lost([delivery], outcome.phase)
    elif _write(delivery, outcome):
        reporter.settled(delivery, outcome)
    elif delivery.is_acked:
        reporter.acked(delivery, outcome)
    else:
        reporter.lost([delivery], PHASES[type(outcome)])


def _write(delivery: Delivery, outcome: Outcome) -> bool:
    storage, lease = delivery.storage, delivery.lease
    match outcome:
        case Done(settled=True):
            return True
        case Done():
            return storage.complete(lease)
        case Again():
            return storage.retry(lease, outcome)
        case Bury():
            return storage.bury(lease, outcome)
        case Release():
            return storage.release(lease, outcome)
    raise AssertionError(f"not an outcome to write: {outcome!r}")
