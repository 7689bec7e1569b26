"""Pull one message and deliver it with a callable, without a worker; and private named outboxes.

The claim, the dispatch and the settlement are those of a worker.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from . import drafts, names, retries
from .errors import InvalidName
from .handlers import LEASE_TTL, MAX_DELIVERIES, Handler, registry
from .messages import Bury, Message, Seconds
from .publishing import default_alias, store_draft
from .store.storage import storage_for
from .worker.inline import deliver_next

Delivery = Callable[[Message[Any]], Any]

PREFIX = "__outbox:"
MAX_NAME = 240
NAMED_LEASE = 60.0
NAMED_ATTEMPTS = 5
NAMED_RETRY = retries.ExponentialRetry(
    initial_delay_seconds=5, multiplier=2, max_delay_seconds=None, max_attempts=NAMED_ATTEMPTS
)


def run_once(
    queue: str, delivery: Delivery, *, worker_id: str | None = None, using: str | None = None
) -> bool:
    """Claim one message of the queue and deliver it with the callable; False if there is none.

    It is done when the callable returns; on an exception it is retried by the strategy of the
    queue's handler, or the default one, and the answer is True either way. What has expired or was
    delivered too often is buried on the way. Inside `transaction.atomic()` all of it is part of
    that transaction. The lease is not renewed unless the callable calls `message.heartbeat()`.
    """
    queue = names.validate_queue(queue)
    known = registry.get(queue)
    handler = Handler(
        function=delivery,
        queues=(queue,),
        retry=retries.DEFAULT if known is None else known.retry,
        max_deliveries=MAX_DELIVERIES if known is None else known.max_deliveries,
        lease_ttl=LEASE_TTL if known is None else known.lease_ttl,
    )
    return _pull(handler, worker_id, using)


@dataclass(frozen=True, slots=True)
class NamedOutbox:
    """A private outbox: a reserved queue that nothing else can publish to.

    Messages have a lease of 60 s, five attempts, and pauses of 5 s that double, without jitter.
    """

    name: str
    using: str | None = None

    @property
    def queue(self) -> str:
        """The reserved queue behind it."""
        return f"{PREFIX}{self.name}"

    def enqueue(
        self,
        payload: Any,
        *,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        activate_in: Seconds | None = None,
        activate_at: datetime | None = None,
        expires_in: Seconds | None = None,
        max_attempts: int | None = None,
    ) -> int:
        """Store a message in the open transaction and return its id; see `outbox.publish`."""
        draft = drafts.build_draft(
            payload,
            queue=self.queue,
            headers=headers,
            correlation_id=correlation_id,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=None,
            timer_conflict="ignore",
            expires_in=expires_in,
            max_attempts=NAMED_ATTEMPTS if max_attempts is None else max_attempts,
            reserved=True,
        )
        id_ = store_draft(draft, using=self.using)
        assert id_ is not None  # noqa: S101 - only a timer may be there already
        return id_

    def run_once(self, worker_id: str, delivery: Delivery) -> bool:
        """Deliver one message with the callable, as `outbox.run_once` does."""
        handler = Handler(
            function=delivery,
            queues=(self.queue,),
            retry=NAMED_RETRY,
            own_attempts_win=True,
            lease_ttl=NAMED_LEASE,
        )
        return _pull(handler, worker_id, self.using)


def named(name: str, *, using: str | None = None) -> NamedOutbox:
    """Return the private outbox of this name.

    Raises `InvalidName` if the name is empty or over 240 characters, `ReservedName` if it starts
    with `__`.
    """
    name = names.validate_queue(name, kind="outbox's name")
    if len(name) > MAX_NAME:
        raise InvalidName(f"The outbox's name has {len(name)} characters, more than {MAX_NAME}.")
    return NamedOutbox(name, using)


def _check_types(delivery: object, worker_id: object) -> None:
    if not callable(delivery):
        raise TypeError(
            "delivery must be a callable that takes the message, such as a function; it is of type "
            f"{type(delivery).__name__}."
        )
    if worker_id is not None and not isinstance(worker_id, str):
        raise TypeError(f"worker_id must be a str; it is of type {type(worker_id).__name__}.")


def _pull(handler: Handler, worker_id: str | None, using: str | None) -> bool:
    _check_types(handler.function, worker_id)
    if worker_id is None:
        worker_id = f"{socket.gethostname()}:{os.getpid()}"
    elif flaw := names.flaw_in_name(worker_id):
        raise ValueError(f"The worker_id {flaw}.")
    storage = storage_for(default_alias() if using is None else using)
    handlers = {handler.queues[0]: handler}
    while (outcome := deliver_next(storage, handlers, worker_id=worker_id)) is not None:
        if not (isinstance(outcome, Bury) and not outcome.attempted):
            return True
    return False
