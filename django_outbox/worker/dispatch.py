"""Run one delivery to its outcome: refuse, decode, handle, publish what comes of it, judge.

Runs in a handler thread. It never raises: whatever a handler does ends in one `Outcome`. Only
handlers that settle in their own transaction write here; all else is left to the loop.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, NoReturn

from .. import retries, signals
from ..errors import InvalidPayload, LeaseLost
from ..handlers import Reject, Retry
from ..messages import (
    DONE,
    SETTLED,
    Again,
    Bury,
    Lost,
    Message,
    OutboxResponse,
    Outcome,
    Reason,
    Release,
    current_message,
)
from ..publishing import publish_response
from . import failures, sessions
from .delivery import Delivery

logger = logging.getLogger("django_outbox")


Handle = Callable[[Delivery, Message[Any]], Outcome]


def deliver(delivery: Delivery, handle: Handle | None = None) -> Outcome:
    """Deliver the message and return how it ended."""
    claimed = delivery.claimed
    if claimed.expired:
        return _unattempted(delivery, "expired")
    if claimed.deliveries_count > delivery.handler.most_deliveries(claimed.max_attempts):
        return _unattempted(delivery, "max_deliveries")
    try:
        message = delivery.decode()
    except InvalidPayload as error:
        return _buried(delivery, "invalid_payload", error)
    except BaseException as error:
        return failed(delivery, error)
    token = current_message.set(message)
    try:
        return (handle or _handle)(delivery, message)
    except BaseException as error:  # a handler's sys.exit() is its failure, not the worker's end
        return failed(delivery, error)
    finally:
        current_message.reset(token)


def _handle(delivery: Delivery, message: Message[Any]) -> Outcome:
    if delivery.handler.atomic:
        return _handle_atomically(delivery, message)
    responses = call(delivery, message)
    if responses:
        return _publish_and_settle(delivery, responses)
    return SETTLED if delivery.ack_committed else DONE


def _handle_atomically(delivery: Delivery, message: Message[Any]) -> Outcome:
    """Run the handler and settle in one transaction."""
    try:
        with delivery.storage.atomic():
            # Registered before any hook of the handler: one that raises must not make a committed
            # delivery look like a failed one.
            delivery.storage.on_commit(delivery.note_atomic_commit)
            _fence(delivery)
            _settle_here(delivery, call(delivery, message))
    except BaseException as error:
        if not delivery.is_committed:
            raise
        logger.error(
            "Message %s is done, but an on_commit hook of its handler raised a %s",
            delivery.claimed.id,
            failures.name_of(error),
            exc_info=failures.to_log(error),
        )
    return SETTLED


def call(delivery: Delivery, message: Message[Any]) -> list[OutboxResponse]:
    """Call the handler, and see that it leaves transactions as they were."""
    before = sessions.depths()
    process = os.getpid()
    try:
        responses = delivery.handler(message)
    except BaseException as error:
        if os.getpid() != process:
            _end_fork(error)
        raise
    if os.getpid() != process:
        _end_fork(None)
    sessions.refuse_changed_transactions(before)
    return responses


def _end_fork(error: BaseException | None) -> NoReturn:
    """End the child of a handler that has forked: only the worker itself may go on from here."""
    code = error.code if isinstance(error, SystemExit) else error
    os._exit(code if isinstance(code, int) else int(code is not None))


def _publish_and_settle(delivery: Delivery, responses: list[OutboxResponse]) -> Outcome:
    delivery.settles_itself = True
    with delivery.storage.atomic():
        _settle_here(delivery, responses)
    return SETTLED


def _settle_here(delivery: Delivery, responses: list[OutboxResponse]) -> None:
    """Remove the message in the open transaction, and publish what its handler returned."""
    if not delivery.storage.complete(delivery.lease) and not delivery.is_acked:
        raise delivery.loss("complete")
    publish_responses(delivery, responses)


def publish_responses(delivery: Delivery, responses: list[OutboxResponse]) -> None:
    """Publish what a handler returned, in the open transaction."""
    for response in responses:
        publish_response(response, using=delivery.storage.alias)


def _fence(delivery: Delivery) -> None:
    if not delivery.storage.fence(delivery.lease):
        raise delivery.loss("complete")


def failed(delivery: Delivery, error: BaseException) -> Outcome:
    """Judge an exception: lost, released, buried, or again after a delay."""
    if isinstance(error, LeaseLost) and delivery.lost_in is not None:
        return Lost(phase=delivery.lost_in)
    if sessions.session_gone(error):
        return Release(refund=False, delay=_pause(delivery), exception=error)
    if isinstance(error, Reject):
        return _buried(delivery, "rejected", error)
    delay = _delay(delivery, error)
    if delay is None:
        return _buried(delivery, "retry_terminal", error)
    text = failures.describe(error).text
    if not signals.message_retried.receivers:
        failures.let_go(error)  # thousands may wait to be settled
    return Again(delay=delay, exception=error, error=text)


def _delay(delivery: Delivery, error: BaseException) -> float | None:
    """Return the seconds until the next attempt, None for no more attempts."""
    strategy = delivery.handler.retry
    attempt = delivery.claimed.attempts_count + 1
    limit = delivery.claimed.max_attempts
    if isinstance(error, Retry):
        exhausted = retries.attempts_exhausted(strategy, attempt=attempt, max_attempts=limit)
        return None if exhausted else error.delay
    try:
        return retries.delay_after(
            strategy,
            attempt=attempt,
            elapsed=delivery.failing_for,
            exception=error,
            max_attempts=limit,
        )
    except BaseException as failure:
        logger.error(
            "The retry strategy of %s raised a %s; burying",
            delivery.handler.name,
            failures.name_of(failure),
            exc_info=failures.to_log(failure),
        )
        return None


def _pause(delivery: Delivery) -> float | None:
    """Return the seconds to wait after a lost session: none at first, then ever more.

    Without a pause a database that stays away would use up `max_deliveries` in no time.
    """
    deliveries = delivery.claimed.deliveries_count
    return None if deliveries <= 2 else min(0.5 * 2.0 ** min(deliveries - 3, 20), 300.0)


def _buried(delivery: Delivery, reason: Reason, error: BaseException) -> Bury:
    failure = failures.describe(error)
    return Bury(
        reason=reason,
        attempted=True,
        exception=error,
        error=failure.text,
        exception_class=failure.exception_class,
        fingerprint=failures.fingerprint(delivery.claimed.queue, reason, failure),
    )


def _unattempted(delivery: Delivery, reason: Reason) -> Bury:
    """Bury without running the handler."""
    return Bury(
        reason=reason,
        attempted=False,
        exception=None,
        error=None,
        exception_class=None,
        fingerprint=failures.fingerprint(delivery.claimed.queue, reason, None),
    )
