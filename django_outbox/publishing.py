"""Publishing: arguments → a validated `Draft` → one statement on the caller's ORM connection.

Nothing here commits, opens a savepoint or waits for a commit: the row is part of whatever
transaction is open.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import router
from django.db.models import Model

from . import names
from .conf import settings
from .drafts import DraftOptions, build_draft, check_timer, checked_headers
from .errors import NotStored, PayloadError, PayloadTooLarge, TransactionRequired
from .messages import Draft, OutboxResponse, Seconds, TimerConflict
from .store.storage import Storage, storage_for

ROWS_PER_STATEMENT = 10_000
BYTES_PER_STATEMENT = 64 * 1024 * 1024
"""A statement is also ended early by its size, far below what PostgreSQL takes at once (1 GB)."""

_NOT_ATOMIC = (
    "Publishing needs an open transaction: the message must commit or vanish with the data it "
    "speaks of. Publish inside transaction.atomic() on the database ALIAS. A signal receiver "
    "may run after the block of its sender has closed: open one block around both, or set "
    "ATOMIC_REQUESTS. OUTBOX['REQUIRE_ATOMIC'] = False allows publishing in autocommit."
)
_ASYNC_NOT_ATOMIC = (
    "Publishing needs an open transaction, and Django cannot open one in async code. Put the "
    "business write and outbox.publish() into a synchronous function that uses "
    "transaction.atomic(), and await sync_to_async(that_function)(). "
    "OUTBOX['REQUIRE_ATOMIC'] = False allows publishing in autocommit."
)

_PASSED = "a trigger, rule or policy on django_outbox_message keeps it out."


P = ParamSpec("P")
R = TypeVar("R")


def _awaitable(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the async twin of `function`.

    It runs where asgiref runs synchronous code: under `async_to_sync` that is the thread whose
    transaction is open, and so the same connection.
    """

    @functools.wraps(function)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await sync_to_async(function)(*args, **kwargs)
        except TransactionRequired:
            raise TransactionRequired(_ASYNC_NOT_ATOMIC) from None

    twin.__name__ = twin.__qualname__ = f"a{function.__name__}"
    return twin


def publish(
    payload: Any,
    *,
    queue: str,
    headers: Mapping[str, str] | None = None,
    correlation_id: str | None = None,
    activate_in: Seconds | None = None,
    activate_at: datetime | None = None,
    timer_id: str | None = None,
    timer_conflict: TimerConflict = "ignore",
    expires_in: Seconds | None = None,
    max_attempts: int | None = None,
    ref: Model | None = None,
    using: str | None = None,
) -> int | None:
    """Store a message in the open transaction and return its id.

    It is delivered after that transaction commits, and never if it rolls back. `activate_in`
    (a timedelta or seconds) and `activate_at` (an aware datetime) delay it, `expires_in` counts
    from the moment it is due; all of them go by the database's clock. With a `timer_id` there is
    at most one live message per queue and id, and the answer is None when the one that is there
    was left as it is. `ref` is the saved object that it is about, for the admin to show.

    Raises `TransactionRequired`, a `TransactionManagementError`, outside `transaction.atomic()`,
    and before any SQL `InvalidName`, `ReservedName`, `PayloadError`, `PayloadTooLarge`,
    `ValueError` or `TypeError` for a bad argument.
    """
    draft = build_draft(
        payload,
        queue=queue,
        headers=headers,
        correlation_id=correlation_id,
        activate_in=activate_in,
        activate_at=activate_at,
        timer_id=timer_id,
        timer_conflict=timer_conflict,
        expires_in=expires_in,
        max_attempts=max_attempts,
        ref=ref,
    )
    return store_draft(draft, using=using)


def publish_many(
    payloads: Iterable[Any],
    *,
    queue: str,
    headers: Mapping[str, str] | None = None,
    activate_in: Seconds | None = None,
    activate_at: datetime | None = None,
    expires_in: Seconds | None = None,
    max_attempts: int | None = None,
    using: str | None = None,
) -> list[int]:
    """Store one message per payload and return their ids in the order given.

    One statement per 10,000 messages; all payloads are encoded before the first one runs. The
    arguments and errors are those of `publish`; they are checked for an empty iterable too, which
    then runs nothing.
    """
    options = DraftOptions.checked(
        queue=queue,
        headers=headers,
        activate_in=activate_in,
        activate_at=activate_at,
        expires_in=expires_in,
        max_attempts=max_attempts,
    )
    if isinstance(payloads, str | bytes | bytearray | Mapping):
        raise TypeError(
            f"publish_many() takes an iterable of payloads; this is one {type(payloads).__name__}. "
            "Use publish() for it, or put it into a list."
        )
    drafts = [_nth_draft(options, n, payload) for n, payload in enumerate(payloads)]
    storage = _transaction(using)
    ids = [id_ for chunk in _chunks(drafts) for id_ in storage.insert_many(chunk)]
    if len(ids) < len(drafts):
        raise NotStored(f"The database has stored {len(ids)} of {len(drafts)} messages; {_PASSED}")
    return ids


def cancel_timer(*, queue: str, timer_id: str, using: str | None = None) -> bool:
    """Delete the pending message with this `timer_id`; False if there is none or it is leased.

    Part of the caller's transaction if one is open.
    """
    queue = names.validate_queue(queue)
    check_timer(timer_id, "ignore")
    return storage_for(using or default_alias()).cancel_timer(queue=queue, timer_id=timer_id)


def publish_response(response: OutboxResponse, *, using: str) -> int | None:
    """Publish what a handler returned, in the transaction that settles its message."""
    return publish(
        response.payload,
        queue=response.queue,
        headers=response.headers,
        correlation_id=response.correlation_id,
        activate_in=response.activate_in,
        activate_at=response.activate_at,
        timer_id=response.timer_id,
        timer_conflict=response.timer_conflict,
        expires_in=response.expires_in,
        max_attempts=response.max_attempts,
        ref=response.ref,
        using=using,
    )


@dataclass(frozen=True, slots=True)
class OutboxPublisher:
    """`publish` with the queue, some headers and the database filled in.

    Headers of a call are merged over the publisher's own.
    """

    queue: str
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    using: str | None = field(default=None, kw_only=True)

    def publish(
        self,
        payload: Any,
        *,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        activate_in: Seconds | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
        expires_in: Seconds | None = None,
        max_attempts: int | None = None,
        ref: Model | None = None,
    ) -> int | None:
        """Publish to this publisher's queue; see `outbox.publish`."""
        return publish(
            payload,
            queue=self.queue,
            headers=self._merged(headers),
            correlation_id=correlation_id,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
            expires_in=expires_in,
            max_attempts=max_attempts,
            ref=ref,
            using=self.using,
        )

    def publish_many(
        self,
        payloads: Iterable[Any],
        *,
        headers: Mapping[str, str] | None = None,
        activate_in: Seconds | None = None,
        activate_at: datetime | None = None,
        expires_in: Seconds | None = None,
        max_attempts: int | None = None,
    ) -> list[int]:
        """Publish many to this publisher's queue; see `outbox.publish_many`."""
        return publish_many(
            payloads,
            queue=self.queue,
            headers=self._merged(headers),
            activate_in=activate_in,
            activate_at=activate_at,
            expires_in=expires_in,
            max_attempts=max_attempts,
            using=self.using,
        )

    def cancel_timer(self, *, timer_id: str) -> bool:
        """Cancel a timer of this publisher's queue; see `outbox.cancel_timer`."""
        return cancel_timer(queue=self.queue, timer_id=timer_id, using=self.using)

    apublish = _awaitable(publish)
    apublish_many = _awaitable(publish_many)
    acancel_timer = _awaitable(cancel_timer)

    def _merged(self, headers: Mapping[str, str] | None) -> Mapping[str, str]:
        if headers is None:
            return self.headers
        return {**self.headers, **checked_headers(headers)}


def publisher(
    queue: str, *, headers: Mapping[str, str] | None = None, using: str | None = None
) -> OutboxPublisher:
    """Return a publisher to `queue`, with headers that go with each of its messages."""
    return OutboxPublisher(
        names.validate_queue(queue),
        headers=checked_headers({} if headers is None else headers),
        using=using,
    )


apublish = _awaitable(publish)
apublish_many = _awaitable(publish_many)
acancel_timer = _awaitable(cancel_timer)


def default_alias() -> str:
    """Return the database that messages go to when nobody says which: the router's choice."""
    try:
        message = apps.get_model("django_outbox", "OutboxMessage")
    except LookupError:
        raise ImproperlyConfigured(
            "Add 'django_outbox' to INSTALLED_APPS, and run migrate."
        ) from None
    return router.db_for_write(message)


def store_draft(draft: Draft, *, using: str | None) -> int | None:
    """Store a draft in the open transaction; None if its timer stays as it is."""
    id_ = _transaction(using).insert(draft)
    if id_ is None and draft.timer_id is None:
        raise NotStored(f"The database has not stored the message; {_PASSED}")
    return id_


def _transaction(using: str | None) -> Storage:
    """Return the storage to publish to, which must have a transaction open."""
    storage = storage_for(using or default_alias())
    if not storage.depth and settings.require_atomic:
        if _in_event_loop():
            raise TransactionRequired(_ASYNC_NOT_ATOMIC)
        raise TransactionRequired(_NOT_ATOMIC.replace("ALIAS", repr(storage.alias)))
    return storage


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _nth_draft(options: DraftOptions, n: int, payload: Any) -> Draft:
    try:
        return options.draft(payload)
    except (PayloadError, PayloadTooLarge) as error:
        raise type(error)(f"payloads[{n}]: {error}") from error


def _chunks(drafts: list[Draft]) -> Iterator[list[Draft]]:
    chunk: list[Draft] = []
    size = 0
    for draft in drafts:
        full = len(chunk) == ROWS_PER_STATEMENT or size + len(draft.body) > BYTES_PER_STATEMENT
        if chunk and full:
            yield chunk
            chunk, size = [], 0
        chunk.append(draft)
        size += len(draft.body)
    if chunk:
        yield chunk
