"""Publishing: arguments → a validated `Draft` → one statement on the caller's ORM connection.

Everything that can be wrong with the arguments is found before any SQL runs, so a mistake leaves
the caller's transaction usable. Nothing here commits, opens a savepoint or waits for a commit: the
row is part of whatever transaction is open.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_args
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.transaction import TransactionManagementError

from . import codecs, names
from .conf import settings
from .errors import PayloadTooLarge
from .messages import Draft, OutboxResponse, Seconds, TimerConflict, current_message
from .store import messages as store

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

ROWS_PER_STATEMENT = 10_000
BYTES_PER_STATEMENT = 64 * 1024 * 1024
"""A statement is also ended early by its size, far below what PostgreSQL takes at once (1 GB)."""

MAX_ATTEMPTS = 1_000_000
_TRACEPARENT = "traceparent"

_NOT_ATOMIC = (
    "Publishing needs an open transaction: the message must commit or vanish with the data it "
    "speaks of. Publish inside transaction.atomic() on the database {alias!r}. A signal receiver "
    "may run after the block of its sender has closed: open one block around both, or set "
    "ATOMIC_REQUESTS. OUTBOX['REQUIRE_ATOMIC'] = False allows publishing in autocommit."
)
_ASYNC_NOT_ATOMIC = (
    "Publishing needs an open transaction, and Django cannot open one in async code. Put the "
    "business write and outbox.publish() into a synchronous function that uses "
    "transaction.atomic(), and await sync_to_async(that_function)(). "
    "OUTBOX['REQUIRE_ATOMIC'] = False allows publishing in autocommit."
)


P = ParamSpec("P")
R = TypeVar("R")


class _NotAtomic(TransactionManagementError):
    pass


def _awaitable(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the async twin of `function`.

    It runs where asgiref runs synchronous code: under `async_to_sync` that is the thread whose
    transaction is open, and so the same connection.
    """

    @functools.wraps(function)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await sync_to_async(function)(*args, **kwargs)
        except _NotAtomic:
            raise TransactionManagementError(_ASYNC_NOT_ATOMIC) from None

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
    using: str | None = None,
) -> int | None:
    """Store a message in the open transaction and return its id.

    It is delivered after that transaction commits, and never if it rolls back. `activate_in`
    (a timedelta or seconds) and `activate_at` (an aware datetime) delay it, `expires_in` counts
    from the moment it is due; all of them go by the database's clock. With a `timer_id` there is
    at most one live message per queue and id, and the answer is None when the one that is there
    was left as it is.

    Raises `TransactionManagementError` outside `transaction.atomic()`, and before any SQL
    `InvalidName`, `ReservedName`, `PayloadError`, `PayloadTooLarge`, `ValueError` or `TypeError`
    for a bad argument.
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
    )
    with _connection(using).cursor() as cursor:
        return store.insert(cursor, draft, notify=settings.notify)


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
    options = _Options.checked(
        queue=queue,
        headers=headers,
        activate_in=activate_in,
        activate_at=activate_at,
        expires_in=expires_in,
        max_attempts=max_attempts,
    )
    drafts = [options.draft(payload) for payload in payloads]
    connection = _connection(using)
    ids: list[int] = []
    for chunk in _chunks(drafts):
        with connection.cursor() as cursor:
            ids += store.insert_many(cursor, chunk, notify=settings.notify)
    return ids


def cancel_timer(*, queue: str, timer_id: str, using: str | None = None) -> bool:
    """Delete the pending message with this `timer_id`; False if there is none or it is leased.

    Part of the caller's transaction if one is open.
    """
    names.validate_queue(queue)
    _check_timer(timer_id, "ignore")
    with _postgres(using).cursor() as cursor:
        return store.cancel_timer(cursor, queue=queue, timer_id=timer_id)


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
        return {**self.headers, **_checked_headers(headers)}


def publisher(
    queue: str, *, headers: Mapping[str, str] | None = None, using: str | None = None
) -> OutboxPublisher:
    """Return a publisher to `queue`, with headers that go with each of its messages."""
    return OutboxPublisher(
        names.validate_queue(queue), headers=_checked_headers(headers or {}), using=using
    )


apublish = _awaitable(publish)
apublish_many = _awaitable(publish_many)
acancel_timer = _awaitable(cancel_timer)


def build_draft(
    payload: Any,
    *,
    queue: str,
    headers: Mapping[str, str] | None,
    correlation_id: str | None,
    activate_in: Seconds | None,
    activate_at: datetime | None,
    timer_id: str | None,
    timer_conflict: TimerConflict,
    expires_in: Seconds | None,
    max_attempts: int | None,
) -> Draft:
    """Return the draft of one message; raise for the first argument that cannot be used."""
    options = _Options.checked(
        queue=queue,
        headers=headers,
        activate_in=activate_in,
        activate_at=activate_at,
        expires_in=expires_in,
        max_attempts=max_attempts,
    )
    _check_timer(timer_id, timer_conflict)
    if correlation_id is not None:
        _check_correlation_id(correlation_id)
    return options.draft(
        payload, correlation_id=correlation_id, timer_id=timer_id, timer_conflict=timer_conflict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What `publish` and `publish_many` have in common, checked once."""

    queue: str
    headers: dict[str, str]
    correlation_id: str | None
    activate_in: timedelta
    activate_at: datetime | None
    expires_in: timedelta | None
    max_attempts: int | None

    @classmethod
    def checked(
        cls,
        *,
        queue: str,
        headers: Mapping[str, str] | None,
        activate_in: Seconds | None,
        activate_at: datetime | None,
        expires_in: Seconds | None,
        max_attempts: int | None,
    ) -> _Options:
        names.validate_queue(queue)
        checked = _checked_headers(headers or {})
        message = current_message.get()
        if message is not None and (trace := message.headers.get(_TRACEPARENT)):
            checked.setdefault(_TRACEPARENT, trace)
        delay, moment = _deadline(activate_in, activate_at)
        return cls(
            queue=queue,
            headers=checked,
            correlation_id=None if message is None else message.correlation_id,
            activate_in=delay,
            activate_at=moment,
            expires_in=_lifetime(expires_in, delay=delay, moment=moment),
            max_attempts=_checked_max_attempts(max_attempts),
        )

    def draft(
        self,
        payload: Any,
        *,
        correlation_id: str | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> Draft:
        body, content_type = codecs.encode(payload)
        if len(body) > settings.max_payload_bytes:
            raise PayloadTooLarge(
                f"The payload for {self.queue!r} has {len(body):,} bytes, more than the "
                f"{settings.max_payload_bytes:,} that OUTBOX['MAX_PAYLOAD_BYTES'] allows. "
                "Store it elsewhere and publish where it is."
            )
        headers = self.headers
        if codecs.CONTENT_TYPE not in headers:
            headers = {**headers, codecs.CONTENT_TYPE: content_type}
        elif content_type != codecs.BINARY:
            raise ValueError(
                f"The content-type header {headers[codecs.CONTENT_TYPE]!r} goes with a payload of "
                f"bytes; this one is a {type(payload).__name__} and is stored as {content_type}."
            )
        return Draft(
            queue=self.queue,
            body=body,
            headers=headers,
            correlation_id=correlation_id or self.correlation_id or str(uuid4()),
            timer_id=timer_id,
            timer_conflict=timer_conflict,
            activate_in=self.activate_in,
            activate_at=self.activate_at,
            expires_in=self.expires_in,
            max_attempts=self.max_attempts,
        )


def default_alias() -> str:
    """Return the database that messages go to when nobody says which: the router's choice."""
    from .models import OutboxMessage

    return router.db_for_write(OutboxMessage)


def _connection(using: str | None) -> BaseDatabaseWrapper:
    connection = _postgres(using)
    if settings.require_atomic and not connection.in_atomic_block:
        raise _NotAtomic(_NOT_ATOMIC.format(alias=connection.alias))
    return connection


def _postgres(using: str | None) -> BaseDatabaseWrapper:
    connection = connections[default_alias() if using is None else using]
    if connection.vendor != "postgresql":
        raise ImproperlyConfigured(
            f"django_outbox needs PostgreSQL; the database {connection.alias!r} is "
            f"{connection.display_name}."
        )
    return connection


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


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must map str to str; they are a {type(headers).__name__}.")
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not all(isinstance(text, str) for text in (name, value)):
            raise TypeError(
                f"headers must map str to str; {name!r} is a {type(name).__name__} and its value "
                f"a {type(value).__name__}."
            )
        for what, text in (("name", name), ("value", value)):
            if flaw := names.flaw_in_text(text):
                raise ValueError(f"The {what} of the header {name!r} {flaw}.")
        is_content_type = name.lower() == codecs.CONTENT_TYPE
        checked[codecs.CONTENT_TYPE if is_content_type else name] = value
    return checked


def _check_correlation_id(correlation_id: str) -> None:
    if not isinstance(correlation_id, str):
        raise TypeError(
            f"correlation_id must be a str; it is a {type(correlation_id).__name__}. "
            "Write str(…) around it."
        )
    if flaw := names.flaw_in_name(correlation_id):
        raise ValueError(f"The correlation_id {flaw}.")


def _check_timer(timer_id: str | None, timer_conflict: TimerConflict) -> None:
    if timer_conflict not in get_args(TimerConflict):
        raise ValueError(
            f"timer_conflict must be one of {', '.join(get_args(TimerConflict))}; "
            f"it is {timer_conflict!r}."
        )
    if timer_id is None:
        if timer_conflict != "ignore":
            raise ValueError(f"timer_conflict={timer_conflict!r} needs a timer_id.")
        return
    if not isinstance(timer_id, str):
        raise TypeError(
            f"timer_id must be a str; it is a {type(timer_id).__name__}. Write str(…) around it."
        )
    if flaw := names.flaw_in_name(timer_id):
        raise ValueError(f"The timer_id {flaw}.")


def _checked_max_attempts(max_attempts: object) -> int | None:
    if max_attempts is None:
        return None
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int):
        raise TypeError(f"max_attempts must be an int; it is a {type(max_attempts).__name__}.")
    if not 1 <= max_attempts <= MAX_ATTEMPTS:
        raise ValueError(
            f"max_attempts must lie between 1 and {MAX_ATTEMPTS:,}; it is {max_attempts}."
        )
    return max_attempts


def _deadline(
    activate_in: Seconds | None, activate_at: datetime | None
) -> tuple[timedelta, datetime | None]:
    """Return the delay and the fixed moment, of which the moment wins when there is one."""
    if activate_at is not None:
        if activate_in is not None:
            raise ValueError("Give activate_in or activate_at, not both.")
        return timedelta(), _checked_moment(activate_at)
    if activate_in is None:
        return timedelta(), None
    delay = _duration("activate_in", activate_in)
    _reach("activate_in", datetime.now(UTC), delay)
    return delay, None


def _checked_moment(activate_at: datetime) -> datetime:
    if not isinstance(activate_at, datetime):
        raise TypeError(
            f"activate_at must be an aware datetime; it is a {type(activate_at).__name__}."
        )
    if activate_at.utcoffset() is None:
        raise ValueError(
            "activate_at must be an aware datetime; this one is naive. "
            "django.utils.timezone.make_aware() gives it a zone."
        )
    try:
        return activate_at.astimezone(UTC)
    except OverflowError:
        raise ValueError(
            f"activate_at must lie between the years 1 and 9999 UTC; it is {activate_at}."
        ) from None


def _lifetime(
    expires_in: Seconds | None, *, delay: timedelta, moment: datetime | None
) -> timedelta | None:
    if expires_in is None:
        return None
    lifetime = _duration("expires_in", expires_in)
    if lifetime <= timedelta():
        raise ValueError(f"expires_in must be positive; it is {expires_in}.")
    _reach("expires_in", moment or datetime.now(UTC) + delay, lifetime)
    return lifetime


def _duration(name: str, value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{name} must be a timedelta, or seconds as a number; it is a {type(value).__name__}."
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite; it is {value}.")
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise ValueError(f"{name} is longer than the calendar.") from None


def _reach(name: str, start: datetime, duration: timedelta) -> None:
    """Refuse a duration that leaves the years 1 to 9999, the ones Python can read back."""
    try:
        start + duration
    except OverflowError:
        raise ValueError(
            f"{name} must end between the years 1 and 9999; {duration} from {start:%Y-%m-%d} "
            "does not."
        ) from None
