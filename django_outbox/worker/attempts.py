"""A handler thread's attempts at deliveries: whatever goes wrong, the thread lives on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ..messages import Outcome, Release
from . import failures, sessions
from .batches import deliver_together
from .delivery import Delivery

logger = logging.getLogger("django_outbox")

LONGEST_BATCH = 1.0
"""Seconds after which no further message joins a transaction that many share."""

PAUSE_AFTER_FAULT = 60.0
"""Seconds until a message is tried again that could not be delivered for no fault of its own."""


def attempt(delivery: Delivery, run: Callable[[Delivery], Outcome]) -> Outcome:
    """Deliver the message by itself, unless its lease has run out, and return how it ended."""
    if not _begin(delivery):
        return Release(refund=True)  # it could not be renewed; another may have it by now
    try:
        sessions.prepare()
        return run(delivery)
    except BaseException as error:
        # Not the handler's doing, whose exceptions are outcomes.
        _log(error, "Message %s could not be delivered: %s", delivery.claimed.id)
        return Release(refund=False, delay=PAUSE_AFTER_FAULT)


def attempt_together(
    first: Delivery, take: Callable[[], Delivery | None]
) -> dict[Delivery, Outcome]:
    """Deliver in one transaction what `take` gives, until it gives nothing or time is over.

    Those that are missing in the answer are to be delivered again, by themselves.
    """
    taken = [first]
    ends_at = time.monotonic() + LONGEST_BATCH

    def join() -> Delivery | None:
        mate = take() if time.monotonic() < ends_at else None
        if mate is None:
            return None
        taken.append(mate)
        if _begin(mate):
            return mate
        mate.part()  # to be released by itself
        return None

    if not _begin(first):
        first.part()
        return {}
    try:
        sessions.prepare()
        return deliver_together(first, join)
    except BaseException as error:
        message = "%d messages could not be delivered together, so each is by itself: %s"
        _log(error, message, len(taken))
        for delivery in taken:
            delivery.part()
        return {}


def _begin(delivery: Delivery) -> bool:
    """Note that the delivery begins; False if its lease is gone, so that it must not."""
    now = time.monotonic()
    if delivery.lost or now >= delivery.lease_ends_at:
        return False
    delivery.started_at = now
    return True


def guarded(care: Callable[[], None]) -> None:
    """Take care of the thread's connections; if that fails, start with new ones."""
    try:
        care()
    except BaseException as error:
        thread = threading.current_thread().name
        _log(error, "The connections of %s could not be looked after, so it gets new: %s", thread)
        sessions.forget_all()


def do(job: Callable[[], None]) -> None:
    """Do something that is no delivery."""
    try:
        job()
    except BaseException as error:
        _log(error, "A job of %s failed: %s", threading.current_thread().name)


def _log(error: BaseException, message: str, subject: object) -> None:
    """Log an error, if the error and the site's logging let that be done."""
    with suppress(BaseException):
        logger.error(message, subject, failures.name_of(error), exc_info=failures.to_log(error))
