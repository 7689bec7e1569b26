"""The tick: fire what is due and advance the boundaries, in one transaction.

The lease is checked in that transaction, so a leader that was paused and wakes up late is fenced;
and the schedules are locked, so even two tickers without any leadership fire each boundary once.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, cast

from django.db import DatabaseError, OperationalError, connections, transaction
from psycopg.errors import LockNotAvailable

from .. import names
from ..conf import settings
from ..drafts import checked_lifetime, checked_max_attempts
from ..errors import LeadershipLost, OutboxError
from ..messages import parse_headers
from ..store import leases
from ..store import schedules as store
from ..store.schedules import Advance, Candidate, Fire, planned_for
from .boundaries import CATCH_UPS, CatchUp, due, in_step
from .clocks import as_utc, clock
from .leadership import NAME, TTL
from .specs import Spec, parse

logger = logging.getLogger("django_outbox")

LOCK_WAIT = 1.0
"""Seconds that a tick waits for a schedule that somebody has locked."""

BATCH = 1000
"""Schedules that one transaction fires at the most."""

PATIENCE = 2.0
"""Seconds after which a transaction takes on no more schedules; after a long outage some take a
while to be caught up with, and the server ends a transaction that is silent for too long."""


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
            planned_for=planned_for(self.candidate.spec, self.candidate.timezone),
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
        batch = tick_batch(using, owner=owner, now=now)
        total += batch.published
        if not batch.has_more:
            return total


class Batch(NamedTuple):
    """How many messages one transaction has published, and whether more schedules are due."""

    published: int
    has_more: bool


def tick_batch(using: str, *, owner: str | None = None, now: datetime | None = None) -> Batch:
    """Do what one transaction may of a tick; the arguments are those of `tick`."""
    try:
        return _tick_once(using, owner, now, lock=store.lock_due)
    except OperationalError as error:
        if not isinstance(error.__cause__, LockNotAvailable):
            raise
    # Somebody edits a schedule and takes their time; the others need not wait for it.
    return _tick_once(using, owner, now, lock=store.lock_free)


def _tick_once(
    using: str, owner: str | None, now: datetime | None, *, lock: Callable[..., list[int]]
) -> Batch:
    is_ours = not connections[using].in_atomic_block
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        if is_ours:
            # Whoever is paused here must not hold its row locks against the others.
            store.bound_waits(cursor, idle=TTL * 0.8, lock=LOCK_WAIT)
        if owner is not None and not leases.holds(cursor, name=NAME, owner=owner):
            raise LeadershipLost("Another scheduler leads by now, or the lease has run out.")
        ids = lock(cursor, now=now if now is not None else clock(cursor), limit=BATCH)
        candidates = store.read(cursor, ids) if ids else []
        moment = now if now is not None else clock(cursor)  # the locks may have taken a while
        works: list[_Work] = []
        began, handled = time.monotonic(), 0
        for candidate in candidates:
            try:
                works.append(_work(candidate, moment))
            except (OutboxError, ValueError, OverflowError) as error:
                _record_failure(using, candidate, error)
            handled += 1
            if time.monotonic() - began > PATIENCE:
                break
        published = _carry_out(using, works, is_ours=is_ours)
        return Batch(published, has_more=handled < len(candidates) or handled == BATCH)


def _work(candidate: Candidate, now: datetime) -> _Work:
    """Work out what a schedule needs; raise if it holds what cannot be fired."""
    spec = parse(candidate.spec, default_zone=candidate.timezone)
    names.validate_queue(candidate.queue)
    checked_max_attempts(candidate.max_attempts)
    checked_lifetime(candidate.expires_in, delay=timedelta(), moment=now)
    if candidate.catch_up not in CATCH_UPS:
        raise ValueError(
            f"catch_up must be one of {', '.join(CATCH_UPS)}; it is {candidate.catch_up!r}."
        )
    catch_up = cast("CatchUp", candidate.catch_up)
    what = due(spec, next_run_at=_next_boundary(candidate, spec, now), now=now, catch_up=catch_up)
    headers = parse_headers(candidate.headers)
    fires = [_fire(candidate, headers, boundary) for boundary in what.fire]
    return _Work(candidate, fires, what.fire, what.skipped, what.next_run_at)


def _next_boundary(candidate: Candidate, spec: Spec, now: datetime) -> datetime:
    """Return the boundary to go on with, which is yet to be worked out after some changes."""
    start = now if candidate.plan_from is None else min(as_utc(candidate.plan_from), now)
    plan = planned_for(candidate.spec, candidate.timezone)
    if candidate.next_run_at is None or candidate.planned_for != plan:
        return spec.first(start)
    next_run_at = as_utc(candidate.next_run_at)
    return next_run_at if candidate.plan_from is None else in_step(spec, next_run_at, start)


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


def _carry_out(using: str, works: list[_Work], *, is_ours: bool) -> int:
    """Insert and advance, all at once; one by one if the database refuses something of it."""
    if not works:
        return 0
    try:
        with transaction.atomic(using=using):
            return _write(using, works, is_ours=is_ours)
    except (DatabaseError, _NotStored) as error:
        session = connections[using].connection
        if session is None or session.closed:
            raise
        if len(works) == 1:
            _record_failure(using, works[0].candidate, error)
            return 0
        return sum(_carry_out(using, [work], is_ours=is_ours) for work in works)


def _write(using: str, works: list[_Work], *, is_ours: bool) -> int:
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
        if is_ours:
            store.check_now(cursor)
    transaction.on_commit(partial(_log, works, stored), using=using)
    return len(fires)


def _log(works: list[_Work], message_ids: Sequence[int]) -> None:
    """Log what has been committed."""
    ids = iter(message_ids)
    for work in works:
        name = work.candidate.name
        for boundary, message_id in zip(work.boundaries, ids, strict=False):
            logger.debug(
                "The schedule %r has published message %s for %s.",
                name,
                message_id,
                boundary.isoformat(),
                extra={
                    "event": "schedule_fired",
                    "schedule": name,
                    "boundary": boundary.isoformat(),
                    "id": message_id,
                },
            )
        if work.skipped:
            logger.info(
                "The schedule %r has passed over missed boundaries: %d.",
                name,
                work.skipped,
                extra={"event": "boundaries_skipped", "schedule": name, "count": work.skipped},
            )


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
