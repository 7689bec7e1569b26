"""Deliver many messages of an atomic handler in one transaction, each in its own savepoint.

At the end one statement removes all that are done, by their leases. If one of them has none any
more, or the transaction comes to nothing otherwise, each is delivered by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..messages import SETTLED, Done, Message, Outcome, current_message
from ..store import storage as store
from . import failures, sessions
from .delivery import Delivery
from .dispatch import call, deliver, publish_responses

logger = logging.getLogger("django_outbox")

Begin = Callable[[Delivery], bool]


class Broken(Exception):
    """The shared transaction cannot go on."""


def deliver_together(deliveries: Sequence[Delivery], begin: Begin) -> dict[Delivery, Outcome]:
    """Deliver these in one transaction and return how they ended.

    `begin` is asked before each; those it refuses, and those that have to be delivered by
    themselves, are missing in the answer.
    """
    alias = deliveries[0].storage.alias
    outcomes: dict[Delivery, Outcome] = {}
    try:
        with deliveries[0].storage.atomic():
            _deliver_each(alias, _fenced(alias, deliveries), begin, outcomes)
            _remove(alias, outcomes)
    except BaseException as error:
        return _after_failure(deliveries, outcomes, error)
    return outcomes


def _fenced(alias: str, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Fence the leases where that is needed; those that cannot be go apart."""
    fenced = store.fence_many(alias, [delivery.lease for delivery in deliveries])
    for delivery in deliveries:
        delivery.apart = delivery.lease not in fenced
    return [delivery for delivery in deliveries if not delivery.apart]


def _deliver_each(
    alias: str, deliveries: list[Delivery], begin: Begin, outcomes: dict[Delivery, Outcome]
) -> None:
    for delivery in deliveries:
        # Session state would reach the next message, so the transaction ends here.
        if sessions.is_soiled(alias) or not begin(delivery):
            break
        outcome = outcomes[delivery] = deliver(delivery, _handle)
        delivery.ended_at = time.monotonic()
        if not store.is_whole(alias, depth=1):
            raise Broken("A handler has broken it.") from getattr(outcome, "exception", None)


def _handle(delivery: Delivery, message: Message[Any]) -> Outcome:
    """Run the handler in a savepoint; the row is removed with those of the others."""
    alias = delivery.storage.alias
    with delivery.storage.atomic():
        delivery.storage.on_commit(delivery.note_atomic_commit)
        before = store.hooks(alias)
        publish_responses(delivery, call(delivery, message))
        store.refuse_rollback(alias)
        store.guard_hooks(
            alias, lambda hook: partial(_run_hook, message, hook), since=before, spared=Delivery
        )
    return SETTLED


def _run_hook(message: Message[Any], hook: Callable[[], object]) -> None:
    """Run an on_commit hook as its handler would; if it raises, go on with those of the others."""
    token = current_message.set(message)
    try:
        hook()
    except BaseException as error:
        logger.error(
            "Message %s is done, but an on_commit hook of its handler raised a %s",
            message.id,
            type(error).__name__,
            exc_info=failures.to_log(error),
        )
    finally:
        current_message.reset(token)


def _remove(alias: str, outcomes: dict[Delivery, Outcome]) -> None:
    """Remove what is done and has not removed itself."""
    done = [d for d, outcome in outcomes.items() if isinstance(outcome, Done) and not d.is_acked]
    if done and not store.complete_many(alias, [delivery.lease for delivery in done]):
        raise Broken("The lease of a message is lost.")


def _after_failure(
    deliveries: Sequence[Delivery], outcomes: dict[Delivery, Outcome], error: BaseException
) -> dict[Delivery, Outcome]:
    """Judge a transaction that has ended in an exception.

    What failed in its savepoint stays as it was judged. The others have lost what they wrote.
    """
    undone = [d for d, outcome in outcomes.items() if isinstance(outcome, Done)]
    if any(delivery.is_committed for delivery in undone):
        return outcomes
    for delivery in undone if outcomes else deliveries:
        outcomes.pop(delivery, None)
        delivery.part()
    logger.warning(
        "%d message(s) are delivered again, as the transaction they shared was undone: %s",
        len(undone),
        type(error).__name__,
        exc_info=failures.to_log(error),
        extra={"event": "batch_undone", "count": len(undone)},
    )
    return outcomes
