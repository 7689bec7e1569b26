"""What a tick has to do for one schedule: the boundaries to fire, and where it goes on. Pure.

A row may hold anything that somebody has written into the table by hand, so everything is checked
here; what cannot be fired raises `OutboxError`, `ValueError` or `OverflowError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

from .. import names
from ..drafts import MAX_ATTEMPTS, checked_lifetime, checked_max_attempts
from ..handlers import registry
from ..messages import parse_headers
from ..store.schedules import Advance, Candidate, Fire, planned_for
from .boundaries import CATCH_UPS, CatchUp, due, in_step
from .clocks import as_utc
from .specs import Spec, parse


@dataclass(frozen=True, slots=True)
class Work:
    """What one schedule needs: the boundaries to fire, and where it goes on."""

    candidate: Candidate
    boundaries: tuple[datetime, ...]
    skipped: int
    next_run_at: datetime

    @property
    def size(self) -> int:
        """How many bytes of payload its messages have in all."""
        return len(self.boundaries) * self.candidate.payload_size

    @property
    def fires(self) -> list[Fire]:
        """The messages to insert, oldest boundary first."""
        id_, default = self.candidate.id, default_attempts(self.candidate.queue)
        return [
            Fire(id_, boundary.astimezone(UTC).isoformat(), default) for boundary in self.boundaries
        ]

    def advance(self, message_ids: Sequence[int]) -> Advance:
        """Return how the schedule stands when these messages have been inserted."""
        return Advance(
            schedule_id=self.candidate.id,
            next_run_at=self.next_run_at,
            planned_for=planned_for(self.candidate.spec, self.candidate.timezone),
            skipped=self.skipped,
            fired_boundary=self.boundaries[-1] if self.boundaries else None,
            message_id=message_ids[-1] if message_ids else None,
        )


def work_out(candidate: Candidate, now: datetime) -> Work:
    """Return what a schedule that is due needs at `now`; raise if it holds what cannot be fired."""
    spec = parse(candidate.spec, default_zone=candidate.timezone)
    check_message(candidate, now)
    if candidate.catch_up not in CATCH_UPS:
        raise ValueError(
            f"catch_up must be one of {', '.join(CATCH_UPS)}; it is {candidate.catch_up!r}."
        )
    what = due(
        spec,
        next_run_at=next_boundary(candidate, spec, now),
        now=now,
        catch_up=cast("CatchUp", candidate.catch_up),
    )
    return Work(candidate, what.fire, what.skipped, what.next_run_at)


def check_message(candidate: Candidate, now: datetime) -> None:
    """Raise if the row holds what no message can have that is published at `now`."""
    names.validate_queue(candidate.queue)
    parse_headers(candidate.headers)
    checked_max_attempts(candidate.max_attempts)
    checked_lifetime(candidate.expires_in, delay=timedelta(), moment=now)


def next_boundary(candidate: Candidate, spec: Spec, now: datetime) -> datetime:
    """Return the boundary to go on with, which is yet to be worked out after some changes."""
    start = now
    if candidate.plan_from is not None:
        start = min(_within_the_calendar("plan_from", candidate.plan_from), now)
    plan = planned_for(candidate.spec, candidate.timezone)
    if candidate.next_run_at is None or candidate.planned_for != plan:
        return spec.first(start)
    next_run_at = _within_the_calendar("next_run_at", candidate.next_run_at)
    return next_run_at if candidate.plan_from is None else in_step(spec, next_run_at, start)


def _within_the_calendar(column: str, epoch: float) -> datetime:
    """Return the moment in a column; raise if it is none that a calendar has."""
    try:
        return as_utc(epoch)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{column} lies outside of the years 1 to 9999.") from None


def default_attempts(queue: str) -> int | None:
    """Return how often the queue's handler tries, None if it does not say or is not known here."""
    handler = registry.get(queue)
    attempts = None if handler is None else getattr(handler.retry, "max_attempts", None)
    return attempts if isinstance(attempts, int) and 1 <= attempts <= MAX_ATTEMPTS else None
