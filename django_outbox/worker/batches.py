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

Take = Callable[[], Delivery | None]


class Broken(Exception):
    """The shared transaction cannot go on."""


def deliver_together(first: Delivery, take: Take) -> dict[Delivery, Outcome]:
    """Deliver in one transaction what `take` gives, one by one, and return how they ended.

    Those that have to be delivered by themselves are missing in the answer.
    """
    taken: list[Delivery] = []
    outcomes: dict[Delivery, Outcome] = {}
    try:
        with first.storage.atomic():
            _deliver_each(first, take, taken, outcomes)
            _remove(first.storage.alias, outcomes)
    except BaseException as error:
        return _after_failure(taken, outcomes, error)
    return outcomes


def _deliver_each(
    first: Delivery, take: Take, taken: list[Delivery], outcomes: dict[Delivery, Outcome]
) -> None:
    alias = first.storage.alias
    delivery: Delivery | None = first
    while delivery is not None:
        taken.append(delivery)
        if store.fence_if_free(alias, delivery.lease):
            outcome = outcomes[delivery] = deliver(delivery, _handle)
            delivery.ended_at = time.monotonic()
            if not store.is_whole(alias, depth=1):
                raise Broken("A handler has broken it.") from getattr(outcome, "exception", None)
        else:
            delivery.part()
        # Session state would reach the next message, so the transaction ends here.
        delivery = None if sessions.is_soiled(alias) else take()


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
            failures.name_of(error),
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
    taken: Sequence[Delivery], outcomes: dict[Delivery, Outcome], error: BaseException
) -> dict[Delivery, Outcome]:
    """Judge a transaction that has ended in an exception.

    What failed in its savepoint stays as it was judged. The others have lost what they wrote.
    """
    undone = [d for d, outcome in outcomes.items() if isinstance(outcome, Done)]
    if any(delivery.is_committed for delivery in undone):
        return outcomes
    for delivery in taken:
        if delivery in undone or delivery not in outcomes:
            outcomes.pop(delivery, None)
            delivery.part()
    logger.warning(
        "%d message(s) are delivered again, as the transaction they shared was undone: %s",
        len(undone),
        failures.name_of(error),
        exc_info=failures.to_log(error),
        extra={"event": "batch_undone", "count": len(undone)},
    )
    return outcomes
