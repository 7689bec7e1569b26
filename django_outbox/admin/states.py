"""In which state a message is, as a coloured word.

All by the database's clock. "Expired" is only ever said of a message past its `expires_at`; a
lease "has run out", and then the message is ready again, or what else it would be without one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Protocol

from django.db.models import Q
from django.utils.safestring import SafeString

from ..functions import ClockTimestamp
from .details import word

State = Literal["ready", "leased", "scheduled", "retrying", "expired"]

COLOURS: dict[State, str] = {
    "ready": "good",
    "leased": "busy",
    "scheduled": "wait",
    "retrying": "warn",
    "expired": "bad",
}


class HasState(Protocol):
    """The columns that make a message's state, and the database's clock when they were read."""

    @property
    def next_attempt_at(self) -> datetime: ...
    @property
    def expires_at(self) -> datetime | None: ...
    @property
    def attempts_count(self) -> int: ...
    @property
    def lease_expires_at(self) -> datetime | None: ...
    @property
    def now(self) -> datetime: ...


def state_of(message: HasState) -> State:
    """Return the state as `store.messages.operating.in_state` judges it."""
    if message.lease_expires_at is not None and message.lease_expires_at >= message.now:
        return "leased"
    if message.expires_at is not None and message.expires_at <= message.now:
        return "expired"
    if message.next_attempt_at <= message.now:
        return "ready"
    return "retrying" if message.attempts_count else "scheduled"


def is_in(state: State) -> Q:
    """Return what asks whether messages are in a state: of a few that are known, not of a table."""
    is_leased = Q(lease_expires_at__gte=ClockTimestamp())
    is_expired = Q(expires_at__lte=ClockTimestamp())
    is_due = Q(next_attempt_at__lte=ClockTimestamp())
    questions = {
        "leased": is_leased,
        "expired": ~is_leased & is_expired,
        "ready": ~is_leased & ~is_expired & is_due,
        "retrying": ~is_leased & ~is_expired & ~is_due & Q(attempts_count__gt=0),
        "scheduled": ~is_leased & ~is_expired & ~is_due & Q(attempts_count=0),
    }
    return questions[state]


def state_word(message: HasState) -> SafeString:
    """Return the state as a word in its colour."""
    state = state_of(message)
    return word(state, COLOURS[state])
