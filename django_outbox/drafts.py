"""The arguments of publishing → a validated `Draft`.

Everything that can be wrong with them is found here, before any SQL runs, so that a mistake leaves
the caller's transaction usable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, get_args
from uuid import uuid4

from django.db.models import Model

from . import codecs, names
from .conf import settings
from .errors import PayloadTooLarge
from .messages import Draft, Seconds, TimerConflict, current_message
from .refs import ref_to

MAX_ATTEMPTS = 1_000_000
_TIMER_CONFLICTS = get_args(TimerConflict)
_TRACEPARENT = "traceparent"


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
    ref: Model | None = None,
    reserved: bool = False,
) -> Draft:
    """Return the draft of one message; raise for the first argument that cannot be used.

    A `reserved` queue is the package's own and need not be checked.
    """
    options = DraftOptions.checked(
        queue=queue,
        headers=headers,
        activate_in=activate_in,
        activate_at=activate_at,
        expires_in=expires_in,
        max_attempts=max_attempts,
        reserved=reserved,
    )
    check_timer(timer_id, timer_conflict)
    if correlation_id is not None:
        _check_correlation_id(correlation_id)
    return options.draft(
        payload,
        correlation_id=correlation_id,
        timer_id=timer_id,
        timer_conflict=timer_conflict,
        ref=None if ref is None else ref_to(ref),
    )


class DraftOptions(NamedTuple):
    """What `publish` and `publish_many` have in common, checked once."""

    queue: str
    headers: dict[str, str]
    correlation_id: str | None
    activate_in: timedelta
    activate_at: datetime | None
    expires_in: timedelta | None
    max_attempts: int | None
    max_payload_bytes: int

    def __repr__(self) -> str:
        return f"<DraftOptions queue={self.queue!r}>"

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
        reserved: bool = False,
    ) -> DraftOptions:
        if not reserved:
            queue = names.validate_queue(queue)
        checked = {} if headers is None else checked_headers(headers)
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
            expires_in=checked_lifetime(expires_in, delay=delay, moment=moment),
            max_attempts=checked_max_attempts(max_attempts),
            max_payload_bytes=settings.max_payload_bytes,
        )

    def draft(
        self,
        payload: Any,
        *,
        correlation_id: str | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
        ref: str | None = None,
    ) -> Draft:
        body, content_type = codecs.encode(payload)
        if len(body) > self.max_payload_bytes:
            raise PayloadTooLarge(
                f"The payload for {self.queue!r} has {len(body):,} bytes, more than the "
                f"{self.max_payload_bytes:,} that OUTBOX['MAX_PAYLOAD_BYTES'] allows. "
                "Store it elsewhere and publish where it is."
            )
        headers = self.headers
        if codecs.CONTENT_TYPE not in headers:
            headers = {**headers, codecs.CONTENT_TYPE: content_type}
        elif content_type != codecs.BINARY:
            raise ValueError(
                f"The content-type header {headers[codecs.CONTENT_TYPE]!r} goes with a payload of "
                f"bytes; this one is of type {type(payload).__name__}, stored as {content_type}."
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
            ref=ref,
        )


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must map str to str; they are of type {type(headers).__name__}.")
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not all(isinstance(text, str) for text in (name, value)):
            raise TypeError(
                f"headers must map str to str; {name!r} is of type {type(name).__name__}, and its "
                f"value of type {type(value).__name__}."
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
            f"correlation_id must be a str; it is of type {type(correlation_id).__name__}. "
            "Write str(…) around it."
        )
    if flaw := names.flaw_in_name(correlation_id):
        raise ValueError(f"The correlation_id {flaw}.")


def check_timer(timer_id: str | None, timer_conflict: TimerConflict) -> None:
    if timer_conflict not in _TIMER_CONFLICTS:
        raise ValueError(
            f"timer_conflict must be one of {', '.join(_TIMER_CONFLICTS)}; "
            f"it is {timer_conflict!r}."
        )
    if timer_id is None:
        if timer_conflict != "ignore":
            raise ValueError(f"timer_conflict={timer_conflict!r} needs a timer_id.")
        return
    if not isinstance(timer_id, str):
        raise TypeError(
            f"timer_id must be a str; it is of type {type(timer_id).__name__}. "
            "Write str(…) around it."
        )
    if flaw := names.flaw_in_name(timer_id):
        raise ValueError(f"The timer_id {flaw}.")


def checked_max_attempts(max_attempts: object) -> int | None:
    if max_attempts is None:
        return None
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int):
        raise TypeError(
            f"max_attempts must be an int; it is of type {type(max_attempts).__name__}."
        )
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
            f"activate_at must be an aware datetime; it is of type {type(activate_at).__name__}."
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


def checked_lifetime(
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
            f"{name} must be a timedelta, or seconds as a number; it is of type "
            f"{type(value).__name__}."
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
