"""The loop of the leader, and of those who stand by.

The loss of the lease is decided upon at the top of each turn and nowhere else: a renewal that fails
in the sleep is only tried, and the next turn finds out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.db import (
    DatabaseError,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
)

from ..errors import LeadershipLost
from ..publishing import default_alias
from ..store import schedules as store
from .declaring import write_declared
from .leadership import RENEW_EVERY, Leadership
from .stop_token import StopToken
from .ticking import tick_batch, will_pass

logger = logging.getLogger("django_outbox")

SLICE = 1.0
"""Seconds after which a sleep looks for new and changed schedules."""

SHORTEST = 0.02
"""Seconds to sleep at the least: what is overdue right after a tick is locked by somebody."""

HELD_UP_PAUSE = 0.2
"""Seconds after which a tick is tried again that a lock or another transaction has held up."""

IDLE_TICK = 60.0
"""Seconds after which the table is read again, come what may."""


def run_schedules(stop: StopToken, *, using: str | None = None) -> None:
    """Write the declared schedules, then lead, and fire schedules, until `stop`.

    On `stop` the lease is given up. Raises `LeadershipLost` if another scheduler leads, at the
    start before anything is fired, or later; also when the database has gone.
    """
    alias = default_alias() if using is None else using
    leadership = Leadership(alias)
    with _database_loss_is_lost_leadership(alias):
        write_declared(alias)
        _lead(leadership, stop, alias, _Outage())


def stand_by(stop: StopToken, *, using: str) -> None:
    """Write the declared schedules, then lead whenever nobody else does, until `stop`."""
    has_declared = has_said = False
    outage = _Outage()
    leadership = Leadership(using)  # one for all turns: what a broken connection left is our own
    while not stop.stopped:
        try:
            if not has_declared:
                write_declared(using)
                has_declared = True
            wait = min(leadership.seconds_of_others(), SLICE)
            if wait > 0:
                outage.end()
                if not has_said:
                    _say_standing_by("another scheduler leads.")
                    has_said = True
                stop.wait(wait)
                continue
            has_said = False
            with _database_loss_is_lost_leadership(using):
                _lead(leadership, stop, using, outage)
        except LeadershipLost as lost:
            if lost.__cause__ is not None:
                outage.begin(lost.__cause__)
            else:
                _say_standing_by(lost)
                has_said = True
            stop.wait(0.1)
        except DatabaseError as error:
            has_said = False
            outage.begin(error)
            with suppress(DatabaseError):
                connections[using].close()
            stop.wait(SLICE)
        except Exception:
            # A scheduler that ends leaves every schedule without one.
            logger.exception("The scheduler failed, and goes on", extra={"event": "tick_failed"})
            stop.wait(SLICE)


@contextmanager
def scheduler_thread(using: str) -> Iterator[None]:
    """Run a scheduler in a thread while the block runs."""
    stop = StopToken()
    thread = threading.Thread(
        target=_stand_by_in_thread, args=(stop, using), name="outbox-scheduler", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.stop()
        thread.join(5.0)


def _stand_by_in_thread(stop: StopToken, using: str) -> None:
    try:
        stand_by(stop, using=using)
    except Exception:
        logger.exception("The scheduler has ended", extra={"event": "scheduler_ended"})
    finally:
        connections[using].close()


@contextmanager
def _database_loss_is_lost_leadership(using: str) -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, InternalError) as error:
        connections[using].close()
        raise LeadershipLost(f"The database does not answer: {error}") from error


def _lead(leadership: Leadership, stop: StopToken, using: str, outage: _Outage) -> None:
    if not leadership.acquire():
        raise LeadershipLost("Another scheduler leads.")
    outage.end()
    logger.info("Leading as %s", leadership.owner, extra={"event": "leading"})
    try:
        while not stop.stopped:
            _turn(using, leadership, stop)
    finally:
        _give_up(leadership)


def _turn(using: str, leadership: Leadership, stop: StopToken) -> None:
    if not leadership.renew():
        raise LeadershipLost("The lease has run out, or another scheduler has taken it.")
    try:
        has_more = tick_batch(using, owner=leadership.owner).has_more
    except OperationalError as error:
        if not will_pass(error):
            raise
        logger.warning(
            "A tick was held up, and is tried again: %s", error, extra={"event": "tick_held_up"}
        )
        stop.wait(HELD_UP_PAUSE)
        return
    if not has_more:
        _sleep(using, leadership, stop)


def _sleep(using: str, leadership: Leadership, stop: StopToken) -> None:
    """Sleep until something is due, in slices, renewing the lease meanwhile."""
    now = time.monotonic()
    until, next_renewal = now + IDLE_TICK, now + RENEW_EVERY
    while not stop.stopped:
        with connections[using].cursor() as cursor:
            seconds = store.soonest(cursor)
        left = until - time.monotonic()
        due_in = left if seconds is None else max(seconds, SHORTEST)
        if left <= 0 or stop.wait(min(SLICE, left, due_in)) or due_in <= SLICE:
            return
        if time.monotonic() >= next_renewal:
            leadership.renew()
            next_renewal = time.monotonic() + RENEW_EVERY


def _give_up(leadership: Leadership) -> None:
    with suppress(DatabaseError):
        leadership.release()
        logger.info("Gave the lead up", extra={"event": "lead_given_up"})


class _Outage:
    """Says once that the database is away, and once that it is back."""

    def __init__(self) -> None:
        self._lasts = False

    def begin(self, error: BaseException) -> None:
        if not self._lasts:
            logger.warning(
                "The database does not answer the scheduler, which tries again until it does: %s",
                error,
                extra={"event": "database_away"},
            )
        self._lasts = True

    def end(self) -> None:
        if self._lasts:
            logger.warning(
                "The database answers the scheduler again", extra={"event": "database_back"}
            )
        self._lasts = False


def _say_standing_by(why: object) -> None:
    logger.info("Standing by: %s", why, extra={"event": "standing_by"})
