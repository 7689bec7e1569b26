"""Deliver what a test has published, and look at what it has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from .. import codecs
from ..errors import InvalidPayload
from ..handlers import Handler, registry
from ..messages import Bury, Message, content_type, moment, parse_headers
from ..publishing import default_alias
from ..retries import FOREVER
from ..scheduling.ticking import tick
from ..store.messages import Stored
from ..store.storage import Storage, storage_for
from ..worker.inline import deliver_next

MOST_DELIVERIES = 100_000
"""After as many, `drain` says that handlers publish without end, instead of going on for ever."""

_ANY: Any = object()


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class StoredMessage(Message[Any]):
    """A live message as a test sees it: it also tells when it is due, and why it failed last."""

    next_attempt_at: datetime
    expires_at: datetime | None
    max_attempts: int | None
    last_error: str | None


def drain(*queues: str, advance: timedelta | None = None, using: str | None = None) -> int:
    """Deliver what is due, and what that makes due, until nothing is; return how many ran.

    Serves the named queues, or every queue with a handler. With `advance` it looks that far ahead:
    later deadlines and expiries count as reached, without any clock being touched. A failed
    message is tried again as soon as its retry is due, which `advance` can reach too.

    Runs in the transaction of the test, and each delivery in a savepoint of it: a handler that is
    not atomic keeps what it wrote before it failed, unless the database itself refused something:
    then all that it did is undone, an `ack()` included, which a worker would have committed.
    """
    storage = storage_for(default_alias() if using is None else using)
    return drain_storage(storage, queues, advance=advance)


def drain_storage(storage: Storage, queues: tuple[str, ...], *, advance: timedelta | None) -> int:
    """Deliver from any storage, as `drain` does."""
    handlers = _handlers(queues)
    if advance is not None and not isinstance(advance, timedelta):
        raise TypeError(f"advance must be a timedelta; {advance!r} is not.")
    horizon = time.monotonic() + _seconds_ahead(advance)
    ran = 0
    while True:
        # The horizon stands still while the clock goes on, so what is published anew for that far
        # ahead lies beyond it.
        ahead = max(0.0, horizon - time.monotonic())
        outcome = deliver_next(storage, handlers, worker_id="drain", ahead=ahead)
        if outcome is None:
            return ran
        ran += not (isinstance(outcome, Bury) and not outcome.attempted)
        if ran > MOST_DELIVERIES:
            raise RuntimeError(
                f"{MOST_DELIVERIES:,} deliveries and no end: a handler publishes to itself, "
                "or fails and is tried again, within what `advance` reaches."
            )


def _seconds_ahead(advance: timedelta | None) -> float:
    return 0.0 if advance is None else min(advance.total_seconds(), FOREVER)


def published(queue: str | None = None, *, using: str | None = None) -> list[StoredMessage]:
    """Return the live messages, or those of one queue, in the order of their claims.

    Leased ones and those due later are among them; what was delivered is not.
    """
    storage = storage_for(default_alias() if using is None else using)
    return [view(row) for row in storage.live() if queue in (None, row.queue)]


def assert_published(
    queue: str,
    *,
    payload: Any = _ANY,
    headers: Mapping[str, str] | None = None,
    timer_id: str | None = _ANY,
    count: int = 1,
    using: str | None = None,
) -> None:
    """Fail unless `count` live messages of the queue match what is given.

    A payload is compared as it would be stored, so a UUID matches its text; of the headers only
    those given are compared.
    """
    there = published(queue, using=using)
    matching = [m for m in there if _matches(m, payload, headers or {}, timer_id)]
    if len(matching) == count:
        return
    listing = "".join(f"\n  {_describe(message)}" for message in there) or " none at all"
    wanted = "".join(
        f" {name}={value!r}"
        for name, value in (("payload", payload), ("headers", headers), ("timer_id", timer_id))
        if value is not _ANY and (name, value) != ("headers", None)
    )
    raise AssertionError(
        f"{len(matching)} live message(s) of {queue!r} match{wanted}, and not {count}. "
        f"There are:{listing}"
    )


def tick_schedules(now: datetime | None = None, *, using: str | None = None) -> int:
    """Run one tick of the schedules and return how many messages it published.

    It needs no leadership, and goes by the database's clock or by the aware moment given.
    """
    if now is not None and now.utcoffset() is None:
        raise ValueError("now must be an aware datetime; this one is naive.")
    return tick(default_alias() if using is None else using, now=now)


def view(row: Stored) -> StoredMessage:
    """Return a stored row as a message; its payload is the raw bytes if it cannot be decoded."""
    headers: dict[str, str] = {}
    payload: Any = row.body
    try:
        headers = parse_headers(row.headers)
        payload = codecs.decode(row.body, content_type(headers))
    except InvalidPayload:
        pass
    return StoredMessage(
        id=row.id,
        message_id=row.message_id,
        queue=row.queue,
        payload=payload,
        headers=headers,
        correlation_id=row.correlation_id,
        timer_id=row.timer_id,
        attempt=row.attempts_count + 1,
        deliveries_count=row.deliveries_count,
        created_at=moment(row.created_at),
        body=row.body,
        next_attempt_at=moment(row.next_attempt_at),
        expires_at=None if row.expires_at is None else moment(row.expires_at),
        max_attempts=row.max_attempts,
        last_error=row.last_error,
    )


def _handlers(queues: tuple[str, ...]) -> dict[str, Handler]:
    handlers = {}
    for queue in queues or registry:
        handler = registry.get(queue)
        if handler is None:
            known = ", ".join(registry) or "none"
            raise LookupError(f"No handler is registered for {queue!r}; there is {known}.")
        handlers[queue] = handler
    return handlers


def _matches(
    message: StoredMessage, payload: Any, headers: Mapping[str, str], timer_id: str | None
) -> bool:
    return (
        (payload is _ANY or message.payload == _as_stored(payload))
        and headers.items() <= message.headers.items()
        and (timer_id is _ANY or message.timer_id == timer_id)
    )


def _as_stored(payload: Any) -> Any:
    return codecs.decode(*codecs.encode(payload))


def _describe(message: StoredMessage) -> str:
    timer = "" if message.timer_id is None else f" timer_id={message.timer_id!r}"
    return f"{message.payload!r} headers={message.headers!r}{timer}"
