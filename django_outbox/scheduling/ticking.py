"""The tick: fire what is due and advance the boundaries, in one transaction.

The lease is checked in that transaction, so a leader that was paused and wakes up late is fenced;
and the schedules are locked, so even two tickers without any leadership fire each boundary once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from django.db import DatabaseError, connections, transaction

from .. import names
from ..conf import settings
from ..errors import LeadershipLost, OutboxError
from ..messages import parse_headers
from ..store import leases
from ..store import schedules as store
from ..store.schedules import Advance, Candidate, Fire
from .boundaries import CatchUp, due
from .clocks import as_utc, clock
from .leadership import NAME, TTL
from .specs import parse

logger = logging.getLogger("django_outbox")

BATCH = 1000
"""Schedules that one transaction fires at the most."""


class _NotStored(OutboxError):
    """The database has passed over a message without an error."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What one schedule needs: the messages to insert, and where it goes on."""

    candidate: Candidate
    fires: list[Fire]
    boundaries: tuple[datetime, ...]
    skipped: int
    next_run_at: datetime

    def advance(self, message_ids: Sequence[int]) -> Advance:
        """Return how the schedule stands when these messages have been inserted."""
        return Advance(
            schedule_id=self.candidate.id,
            next_run_at=self.next_run_at,
            planned_for=f"{self.candidate.spec} {self.candidate.timezone}",
            skipped=self.skipped,
            fired_boundary=self.boundaries[-1] if self.boundaries else None,
            message_id=message_ids[-1] if message_ids else None,
        )


def tick(using: str, *, owner: str | None = None, now: datetime | None = None) -> int:
    """Fire everything that is due and return the number of messages published.

    With an `owner` it raises `LeadershipLost` if the lease is not theirs; without one it needs no
    lease. `now` takes the place of the database's clock.
    """
    total = 0
    while True:
        handled, published = _tick_batch(using, owner, now)
        total += published
        if handled < BATCH:
            return total


def _tick_batch(using: str, owner: str | None, now: datetime | None) -> tuple[int, int]:
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        # A leader that is paused here must not hold its row locks against its successor.
        if owner is not None:
            store.bound_idleness(cursor, seconds=TTL * 0.8)
            if not leases.holds(cursor, name=NAME, owner=owner):
                raise LeadershipLost("Another scheduler leads by now, or the lease has run out.")
        moment = now if now is not None else clock(cursor)
        candidates = store.lock_due(cursor, now=moment, limit=BATCH)
        works: list[_Work] = []
        for candidate in candidates:
            try:
                works.append(_work(candidate, moment))
            except (OutboxError, ValueError, OverflowError) as error:
                _record_failure(using, candidate, error)
        return len(candidates), _carry_out(using, works)


def _work(candidate: Candidate, now: datetime) -> _Work:
    """Work out what a schedule needs; raise if it holds what cannot be fired."""
    spec = parse(candidate.spec, default_zone=candidate.timezone)
    if not candidate.is_planned or candidate.next_run_at is None:
        return _Work(candidate, [], (), 0, spec.first(now))
    next_run_at = as_utc(candidate.next_run_at)
    if not candidate.enabled:
        following = due(spec, next_run_at=next_run_at, now=now, catch_up="latest").next_run_at
        return _Work(candidate, [], (), 0, following)
    names.validate_queue(candidate.queue)
    catch_up = cast("CatchUp", candidate.catch_up)
    what = due(spec, next_run_at=next_run_at, now=now, catch_up=catch_up)
    headers = parse_headers(candidate.headers)
    fires = [_fire(candidate, headers, boundary) for boundary in what.fire]
    return _Work(candidate, fires, what.fire, what.skipped, what.next_run_at)


def _fire(candidate: Candidate, headers: dict[str, str], boundary: datetime) -> Fire:
    stamped = {
        **headers,
        "schedule": candidate.name,
        "boundary": boundary.astimezone(UTC).isoformat(),
    }
    return Fire(
        schedule_id=candidate.id,
        queue=candidate.queue,
        body=candidate.body,
        headers=json.dumps(stamped),
        max_attempts=candidate.max_attempts,
        expires_in=candidate.expires_in,
    )


def _carry_out(using: str, works: list[_Work]) -> int:
    """Insert and advance, all at once; one by one if the database refuses something of it."""
    if not works:
        return 0
    try:
        with transaction.atomic(using=using):
            return _write(using, works)
    except (DatabaseError, _NotStored) as error:
        session = connections[using].connection
        if session is None or session.closed:
            raise
        if len(works) == 1:
            _record_failure(using, works[0].candidate, error)
            return 0
        return sum(_carry_out(using, [work]) for work in works)


def _write(using: str, works: list[_Work]) -> int:
    fires = [fire for work in works for fire in work.fires]
    with connections[using].cursor() as cursor:
        stored = store.fire(cursor, fires, notify=settings.notify) if fires else []
        if len(stored) < len(fires):
            raise _NotStored(
                f"The database has stored {len(stored)} of {len(fires)} message(s); a trigger or "
                "rule on django_outbox_message keeps the others out."
            )
        ids = iter(stored)
        advances = [work.advance([next(ids) for _ in work.fires]) for work in works]
        store.advance(cursor, advances)
    return len(fires)


def _record_failure(using: str, candidate: Candidate, error: Exception) -> None:
    text = str(error).replace("\x00", "\ufffd")[:2000] or type(error).__name__
    logger.error(
        "The schedule %r could not be fired: %s",
        candidate.name,
        text,
        extra={"event": "schedule_failed", "schedule": candidate.name},
    )
    with connections[using].cursor() as cursor:
        store.fail(cursor, candidate.id, text)
