"""Run a schedule by hand: one message at once, and nothing about its boundaries changes."""

from __future__ import annotations

from django.db import connections, transaction

from ..conf import settings
from ..errors import OutboxError
from ..store import schedules as store
from ..store.schedules import Fire
from .clocks import clock
from .planning import check_message, default_attempts


def run_now(schedule_id: int, *, using: str) -> int | None:
    """Publish a schedule's message now and return its id; None if there is no such schedule.

    It does not matter whether the schedule is enabled, nor what its spec says; the `boundary` in
    the message's headers is this moment on the database's clock. Raises `OutboxError`,
    `ValueError` or `OverflowError` for a row whose message cannot be published.
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        if not store.hold(cursor, schedule_id):
            return None
        (candidate,) = store.read(cursor, [schedule_id])
        now = clock(cursor)
        check_message(candidate, now)
        fire = Fire(candidate.id, now.isoformat(), default_attempts(candidate.queue))
        stored = store.fire(cursor, [fire], notify=settings.notify)
        if not stored:
            raise OutboxError(
                "The database has not stored the message; a trigger or rule on "
                "django_outbox_message keeps it out."
            )
        return stored[0]
