"""The values that flow: a draft is published, claimed, delivered as a message, and has an outcome.

None of them shows its payload in its repr, so none can leak one into a log.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from django.db.models import Model

from . import codecs
from .errors import InvalidPayload

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

T = TypeVar("T", default=Any)

FIRST_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MOMENT = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)

TimerConflict: TypeAlias = Literal["ignore", "extend", "replace"]
Seconds: TypeAlias = timedelta | float
Reason: TypeAlias = Literal[
    "retry_terminal", "rejected", "max_deliveries", "expired", "invalid_payload"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message that is validated and encoded, and not stored yet."""

    queue: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    correlation_id: str
    timer_id: str | None = None
    timer_conflict: TimerConflict = "ignore"
    activate_in: timedelta = timedelta()
    activate_at: datetime | None = None
    expires_in: timedelta | None = None
    max_attempts: int | None = None
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class OutboxResponse:
    """What a handler returns to publish a message in the transaction that settles its own.

    The arguments are those of `publish`.
    """

    payload: Any = field(repr=False)
    queue: str = field(kw_only=True)
    headers: Mapping[str, str] | None = field(default=None, kw_only=True, repr=False)
    correlation_id: str | None = field(default=None, kw_only=True)
    activate_in: Seconds | None = field(default=None, kw_only=True)
    activate_at: datetime | None = field(default=None, kw_only=True)
    timer_id: str | None = field(default=None, kw_only=True)
    timer_conflict: TimerConflict = field(default="ignore", kw_only=True)
    expires_in: Seconds | None = field(default=None, kw_only=True)
    max_attempts: int | None = field(default=None, kw_only=True)
    ref: Model | None = field(default=None, kw_only=True, repr=False)


class Lease(NamedTuple):
    """A worker's hold on a message: whoever has the token may settle it."""

    id: int
    token: str


class Claimed(NamedTuple):
    """A row as the claim returns it, in the order of its RETURNING list; then its queue and lease.

    Moments come as seconds, not datetimes, so that no value that somebody wrote into the table by
    hand can fail to load and stop the claim for all others.
    """

    id: int
    message_id: UUID
    body: bytes
    headers: str
    correlation_id: str
    timer_id: str | None
    max_attempts: int | None
    attempts_count: int
    deliveries_count: int
    created_at: float
    failing_for: float | None
    expired: bool
    due_at: float
    rank: int
    queue: str
    lease: Lease

    def read_headers(self) -> dict[str, str]:
        """Return the headers; raise `InvalidPayload` if the column does not hold str → str."""
        return parse_headers(self.headers)

    def __repr__(self) -> str:
        return f"<Claimed {self.id} queue={self.queue!r}>"


def parse_headers(text: str) -> dict[str, str]:
    """Return stored headers; raise `InvalidPayload` if they are not str → str."""
    return dict(_parse_headers(text))


@functools.lru_cache(maxsize=64)
def _parse_headers(text: str) -> Mapping[str, str]:
    """Parse headers once for all messages that have the same, as most of a queue do."""
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError):  # jsonb holds numbers and nesting that Python does not
        headers = None
    if isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values()):
        return headers
    raise InvalidPayload("The headers column must hold an object of strings.")


class Hold(Protocol):
    """What stands behind `Message.ack` and `Message.heartbeat` during a delivery."""

    def ack(self) -> None: ...

    def heartbeat(self) -> bool: ...


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Message(Generic[T]):
    """A message as its handler gets it.

    `attempt` is 1 in the first delivery and grows with each failed attempt; `deliveries_count`
    also counts deliveries that ended with the worker. `message_id` stays the same for ever:
    deduplicate on it. `body` is the payload's raw bytes.
    """

    id: int
    message_id: UUID
    queue: str
    payload: T
    headers: dict[str, str]
    correlation_id: str
    timer_id: str | None
    attempt: int
    deliveries_count: int
    created_at: datetime
    body: bytes
    _hold: Hold | None = None

    def ack(self) -> None:
        """Settle the message in the transaction that is open: both commit, or neither does.

        Raises `TransactionManagementError` outside `transaction.atomic()` and `LeaseLost`, which
        should roll the block back, if another worker has the message by now.
        """
        self._held().ack()

    def heartbeat(self) -> bool:
        """Renew the lease now; return False if it is lost."""
        return self._held().heartbeat()

    def _held(self) -> Hold:
        if self._hold is None:
            raise RuntimeError(f"{self!r} is not being delivered, so there is no lease to use.")
        return self._hold

    def __repr__(self) -> str:
        return f"<Message {self.id} queue={self.queue!r} attempt={self.attempt}>"


def receive(claimed: Claimed, *, payload: Any, headers: dict[str, str], hold: Hold) -> Message[Any]:
    """Return the message a handler is given for `claimed`."""
    return Message(
        id=claimed.id,
        message_id=claimed.message_id,
        queue=claimed.queue,
        payload=payload,
        headers=headers,
        correlation_id=claimed.correlation_id,
        timer_id=claimed.timer_id,
        attempt=claimed.attempts_count + 1,
        deliveries_count=claimed.deliveries_count,
        created_at=moment(claimed.created_at),
        body=claimed.body,
        _hold=hold,
    )


def content_type(headers: Mapping[str, str]) -> str:
    """Return the media type of the body; bytes if the headers name none."""
    return headers.get(codecs.CONTENT_TYPE, codecs.BINARY)


def moment(epoch: float | Decimal) -> datetime:
    """Return seconds since 1970 as an aware UTC datetime, at the ends of the calendar if beyond."""
    try:
        if isinstance(epoch, float):
            return datetime.fromtimestamp(epoch, UTC)
    except (ValueError, OverflowError, OSError):
        pass  # not every platform's C library knows moments before 1970
    try:
        return _EPOCH + timedelta(microseconds=round(epoch * 1_000_000))
    except (ValueError, OverflowError):
        return LAST_MOMENT if epoch > 0 else FIRST_MOMENT


current_message: ContextVar[Message[Any] | None] = ContextVar("django_outbox_message", default=None)
"""The message being handled; what its handler publishes inherits its correlation id and trace."""


@dataclass(frozen=True, slots=True)
class Done:
    """Handled. `settled` when the handler's own transaction has removed the row already."""

    settled: bool = False


DONE = Done()
SETTLED = Done(settled=True)


@dataclass(frozen=True, slots=True)
class Again:
    """Failed; to be tried once more after `delay` seconds."""

    delay: float
    exception: BaseException
    error: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bury:
    """Not to be tried again. `attempted` when the burying failure counts as an attempt."""

    reason: Reason
    attempted: bool
    exception: BaseException | None
    error: str | None = field(repr=False)
    exception_class: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Release:
    """Handed back unharmed, due `delay` seconds from now; `refund` if it had not been started."""

    refund: bool
    delay: float | None = None
    exception: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Found, while settling, to be another worker's by now."""

    phase: str


Outcome: TypeAlias = Done | Again | Bury | Release | Lost


def is_settled(outcome: Outcome) -> bool:
    """Tell whether the delivery has removed its message itself."""
    return isinstance(outcome, Done) and outcome.settled


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How many letters are messages again, and how many stayed because of a live timer."""

    replayed: int = 0
    skipped: int = 0

    def __add__(self, other: ReplayResult) -> ReplayResult:
        return ReplayResult(self.replayed + other.replayed, self.skipped + other.skipped)
