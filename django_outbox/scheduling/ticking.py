"""The tick: fire what is due and advance the boundaries, in one transaction.

The lease is checked in that transaction, so a leader that was paused and wakes up late is fenced;
and the schedules are locked, so even two tickers without any leadership fire each boundary once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from django.db import DatabaseError, connections, transaction

from ..conf import settings
from ..errors import LeadershipLost, NotStored, OutboxError, summary
from ..store import leases
from ..store import schedules as store
from ..store.schedules import Candidate
from .clocks import clock
from .leadership import NAME
from .planning import Work, work_out
from .transactions import bounded, is_of_the_database

logger = logging.getLogger("django_outbox")

BATCH = 1000
"""Schedules that one transaction fires at the most, and messages after which it takes on no more.

After an outage each schedule may have 64, and what is inserted at once has to be done in time.
"""

BATCH_SECONDS = 2.0
"""Seconds after which a transaction takes on no more schedules. After a long outage some take a
while to work out, and the server ends a transaction that is silent for too long."""

BATCH_BYTES = 64 * 1024 * 1024
"""Bytes of payload after which a transaction takes on no more schedules."""


class Batch(NamedTuple):
    """How many messages one transaction has published, and whether more schedules are due."""

    published: int
    has_more: bool


class _Frame(NamedTuple):
    """A transaction's moment, whether it is ours alone, and when it should come to its end."""

    now: datetime
    is_ours: bool
    ends_at: float


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


def tick_batch(using: str, *, owner: str | None = None, now: datetime | None = None) -> Batch:
    """Do what one transaction may of a tick; the arguments are those of `tick`."""
    with bounded(using) as (cursor, is_ours):
        ends_at = time.monotonic() + 2 * BATCH_SECONDS
        if owner is not None and not leases.holds(cursor, name=NAME, owner=owner):
            raise LeadershipLost("Another scheduler leads by now, or the lease has run out.")
        moment = now if now is not None else clock(cursor)
        ids = store.lock_due(cursor, now=moment, limit=BATCH)
        candidates = store.read(cursor, ids) if ids else []
        works, handled = _take_on(using, candidates, moment)
        done = _carry_out(using, works, _Frame(moment, is_ours=is_ours, ends_at=ends_at))
        is_full = handled < len(candidates) or handled == BATCH
        return Batch(done.published, has_more=done.has_more or is_full)


def _take_on(using: str, candidates: Sequence[Candidate], now: datetime) -> tuple[list[Work], int]:
    """Work out what one transaction may do, and return it with the number of schedules handled."""
    works: list[Work] = []
    messages, size, began = 0, 0, time.monotonic()
    for handled, candidate in enumerate(candidates, start=1):
        try:
            work = work_out(candidate, now)
        except (OutboxError, ValueError, OverflowError) as error:
            _record_failure(using, candidate, error, now)
        else:
            works.append(work)
            messages += len(work.boundaries)
            size += work.size
        is_full = messages >= BATCH or size >= BATCH_BYTES
        if is_full or time.monotonic() - began >= BATCH_SECONDS:
            return works, handled
    return works, len(candidates)


def _carry_out(using: str, works: list[Work], frame: _Frame) -> Batch:
    """Insert and advance, all at once; if the database refuses something of it, by halves."""
    if not works:
        return Batch(0, has_more=False)
    try:
        with transaction.atomic(using=using):
            return Batch(_write(using, works, is_ours=frame.is_ours), has_more=False)
    except (DatabaseError, NotStored) as error:
        if is_of_the_database(error):
            raise
        if len(works) == 1:
            _record_failure(using, works[0].candidate, error, frame.now)
            return Batch(0, has_more=False)
    half = len(works) // 2
    first = _carry_out(using, works[:half], frame)
    if time.monotonic() > frame.ends_at:  # but the first half is done: each tick gets further
        return Batch(first.published, has_more=True)
    second = _carry_out(using, works[half:], frame)
    return Batch(first.published + second.published, first.has_more or second.has_more)


def _write(using: str, works: list[Work], *, is_ours: bool) -> int:
    fires = [fire for work in works for fire in work.fires]
    with connections[using].cursor() as cursor:
        stored = store.fire(cursor, fires, notify=settings.notify) if fires else []
        if len(stored) < len(fires):
            raise NotStored(
                f"The database has stored {len(stored)} of {len(fires)} message(s); a trigger or "
                "rule on django_outbox_message keeps the others out."
            )
        ids = iter(stored)
        advances = [work.advance([next(ids) for _ in work.fires]) for work in works]
        if store.advance(cursor, advances) < len(advances):
            raise NotStored(
                "The database has not advanced the schedule; a trigger, rule or policy on "
                "django_outbox_schedule keeps it as it is."
            )
        if is_ours:  # a caller's own constraints are the caller's business
            store.check_now(cursor)
    transaction.on_commit(partial(_log, works, stored), using=using)
    return len(fires)


def _log(works: list[Work], message_ids: Sequence[int]) -> None:
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


def _record_failure(using: str, candidate: Candidate, error: Exception, now: datetime) -> None:
    text = summary(error).replace("\x00", "\ufffd")[:2000]
    logger.error(
        "The schedule %r could not be fired: %s",
        candidate.name,
        text,
        extra={"event": "schedule_failed", "schedule": candidate.name},
    )
    with connections[using].cursor() as cursor:
        store.fail(cursor, candidate.id, text, now=now)
