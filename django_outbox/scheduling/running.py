"""The loop of the leader, and of those who stand by.

The loss of the lease is decided upon at the top of each turn and nowhere else: a renewal that fails
in the sleep is only tried, and the next turn finds out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from django.db import (
    DatabaseError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    connections,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from ..errors import LeadershipLost, summary
from ..own_connection import own_connection_in_place
from ..presence import Presence
from ..publishing import default_alias
from ..store import Cursor
from ..store import schedules as store
from ..watchdog import Watchdog, limit_silence
from .declaring import Declaring, declarations
from .leadership import RENEW_EVERY, Leadership
from .registration import Declaration
from .stop_token import StopToken
from .ticking import tick, tick_batch
from .transactions import LOCK_WAIT, will_pass

logger = logging.getLogger("django_outbox")

SLICE = 1.0
"""Seconds after which a sleep looks for new and changed schedules."""

HELD_UP_PAUSE = 0.2
"""Seconds after which a tick is tried again that a lock or another transaction has held up."""

JUST_DUE = 0.05
"""Seconds: what is overdue for longer right after a tick was locked by somebody."""

IDLE_TICK = 60.0
"""Seconds after which the table is read again, come what may."""

P = ParamSpec("P")
R = TypeVar("R")

_declared_on: dict[str, dict[str, Declaration]] = {}
"""What this process has declared to which database."""


def run_schedules(stop: StopToken, *, using: str | None = None) -> None:
    """Write the declared schedules, then lead, and fire schedules, until `stop`.

    On `stop` the lease is given up. Raises `LeadershipLost` if another scheduler leads, at the
    start before anything is fired, or later; also when the database has gone. Raises
    `TransactionManagementError` inside `transaction.atomic()`, which would keep it all uncommitted.
    """
    alias = default_alias() if using is None else using
    _refuse_a_transaction(connections[alias])
    scheduler = Scheduler(alias, stop)
    with scheduler.watched():
        scheduler.lead()


def stand_by(stop: StopToken, *, using: str) -> None:
    """Write the declared schedules, then lead whenever nobody else does, until `stop`."""
    with own_connection_in_place(using):
        scheduler = Scheduler(using, stop)
        with scheduler.watched():
            scheduler.stand_by()


def tick_once(stop: StopToken, *, using: str) -> tuple[int, bool]:
    """Write the declared schedules and fire what is due, without leading.

    Returns how many messages were published, and whether something due had to be left because
    somebody has had it locked for a while.
    """
    Declaring(using).write()
    published = tick(using)
    deadline = time.monotonic() + LOCK_WAIT
    while is_left := _is_overdue(using):
        if time.monotonic() > deadline or stop.wait(0.1):
            break
        published += tick(using)
    return published, is_left


def _is_overdue(using: str) -> bool:
    with connections[using].cursor() as cursor:
        first, _ = store.soonest(cursor, lately=0.0)
    return first is not None and first <= 0


@contextmanager
def scheduler_thread(using: str) -> Iterator[None]:
    """Run a scheduler in a thread while the block runs."""
    stop = StopToken()
    thread = threading.Thread(
        target=stand_by, args=(stop,), kwargs={"using": using}, name="outbox-scheduler", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.stop()
        thread.join(5.0)


class Scheduler:
    """One runner: a claim to lead, and what it does with it."""

    def __init__(self, using: str, stop: StopToken) -> None:
        self._connection = connections[using]
        self._using = using
        self._stop = stop
        # One for all its terms: the lease that a broken connection has left is its own.
        self._leadership = Leadership(using)
        self._declaring = Declaring(using)
        self._watchdog = Watchdog(is_hurried=lambda: stop.stopped)
        self._outage = _Outage()
        self._presence = Presence("scheduler", self._leadership.owner)
        self._has_said = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Have a connection that does not answer be given up while the block runs."""
        self._watchdog.start()
        try:
            yield
        finally:
            with suppress(DatabaseError):
                self._presence.leave(self._execute)
            self._watchdog.stop()

    def stand_by(self) -> None:
        """Lead whenever nobody else does, until stopped."""
        while not self._stop.stopped:
            try:
                self._lead_or_wait()
            except LeadershipLost as lost:
                if lost.__cause__ is None:
                    self._say_standing_by(str(lost))
                    self._stop.wait(0.1)
                else:
                    self._outage.begin(lost.__cause__)
                    self._stop.wait(SLICE)
            except DatabaseError as error:
                self._has_said = False
                self._outage.begin(error)
                self._disconnect()
                self._stop.wait(SLICE)
            except Exception:
                # A scheduler that ends leaves every schedule without one.
                logger.exception(
                    "The scheduler failed, and goes on", extra={"event": "tick_failed"}
                )
                self._stop.wait(SLICE)

    def lead(self) -> None:
        """Lead until stopped; raise `LeadershipLost` if somebody else does, or takes over."""
        try:
            is_leader = self._call(self._leadership.acquire)
            try:
                if is_leader or _declared_on.get(self._using) != declarations():
                    self._declare()
                if not is_leader:
                    raise LeadershipLost("Another scheduler leads.")
                logger.info("Leading as %s", self._leadership.owner, extra={"event": "leading"})
                while not self._stop.stopped:
                    self._turn()
            finally:
                if is_leader:
                    self._give_up()
        except (OperationalError, InterfaceError, InternalError) as error:
            self._disconnect()
            raise LeadershipLost(f"The database does not answer: {summary(error)}") from error

    def _lead_or_wait(self) -> None:
        self._declare()
        wait = min(self._call(self._leadership.seconds_of_others), SLICE)
        if wait > 0:
            self._outage.end()
            self._beat()
            self._say_standing_by("Another scheduler leads.")
            self._stop.wait(wait)
        else:
            self._has_said = False
            self.lead()

    def _declare(self) -> None:
        """Write the declared schedules, once; later if somebody has them locked."""
        self._call(self._declaring.write)
        _declared_on[self._using] = declarations()

    def _turn(self) -> None:
        if not self._call(self._leadership.renew):
            raise LeadershipLost("The lease has run out, or another scheduler has taken it.")
        self._declare()
        try:
            batch = self._call(tick_batch, self._using, owner=self._leadership.owner)
        except OperationalError as error:
            if not will_pass(error):
                raise
            logger.warning(
                "A tick was held up, and is tried again: %s",
                summary(error),
                extra={"event": "tick_held_up"},
            )
            self._stop.wait(HELD_UP_PAUSE)
        else:
            self._outage.end()
            if not batch.has_more:
                self._sleep()

    def _sleep(self) -> None:
        """Sleep until something is due, in slices, renewing the lease meanwhile."""
        now = time.monotonic()
        until, next_renewal = now + IDLE_TICK, now + RENEW_EVERY
        pause = HELD_UP_PAUSE
        while not self._stop.stopped:
            self._beat()
            first, following = self._execute(store.soonest, lately=JUST_DUE)
            left = until - time.monotonic()
            due_in = left if following is None else min(left, following)
            if first is not None and first < -JUST_DUE:
                due_in = min(due_in, pause)  # right after a tick: somebody has locked it
            if due_in <= 0 or self._stop.wait(min(SLICE, due_in)) or due_in <= SLICE:
                return
            pause = 0.0
            if time.monotonic() >= next_renewal:
                self._call(self._leadership.renew)
                next_renewal = time.monotonic() + RENEW_EVERY

    def _beat(self) -> None:
        try:
            self._presence.beat(self._execute)
        except ProgrammingError as error:
            # Operators see less; schedules are fired all the same.
            logger.warning(
                "That this scheduler lives could not be written: %s",
                summary(error),
                extra={"event": "presence_not_written"},
            )

    def _give_up(self) -> None:
        with suppress(DatabaseError):
            if self._call(self._leadership.release):
                logger.info("Gave the lead up", extra={"event": "lead_given_up"})

    def _execute(
        self, operation: Callable[Concatenate[Cursor, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run one store operation."""

        def run() -> R:
            with self._connection.cursor() as cursor:
                return operation(cursor, *args, **kwargs)

        return self._call(run)

    def _call(self, operation: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do something with the database; a connection that does not answer breaks."""
        with self._watchdog.guard(self._raw):
            if self._connection.connection is None:
                self._connection.ensure_connection()
                limit_silence(self._connection)
            return operation(*args, **kwargs)

    def _raw(self) -> psycopg.Connection[Any] | None:
        return self._connection.connection  # type: ignore[no-any-return]

    def _disconnect(self) -> None:
        with suppress(DatabaseError):
            self._connection.close()

    def _say_standing_by(self, why: str) -> None:
        if not self._has_said:
            logger.info("Standing by: %s", why, extra={"event": "standing_by"})
        self._has_said = True


class _Outage:
    """Says once that the database is away, and once that it is back."""

    def __init__(self) -> None:
        self._lasts = False

    def begin(self, error: BaseException) -> None:
        if not self._lasts:
            # It may be there, and a privilege or a table not, which somebody has to mend.
            is_refusal = isinstance(error, ProgrammingError)
            logger.warning(
                "The database does not %s, which tries again until it does: %s",
                "let the scheduler work" if is_refusal else "answer the scheduler",
                summary(error),
                extra={"event": "database_away"},
            )
        self._lasts = True

    def end(self) -> None:
        if self._lasts:
            logger.warning(
                "The database serves the scheduler again", extra={"event": "database_back"}
            )
        self._lasts = False


def _refuse_a_transaction(connection: BaseDatabaseWrapper) -> None:
    """Raise if a transaction is open that is not just a test's."""
    # Django marks the blocks of a TestCase, for its own durable transactions.
    blocks: list[Any] = connection.atomic_blocks
    has_callers = not all(block._from_testcase for block in blocks)  # noqa: SLF001
    if has_callers or not (blocks or connection.get_autocommit()):
        raise TransactionManagementError(
            "run_schedules() makes transactions of its own, and nobody would see what it fires "
            "until the one that is open commits. Call it outside transaction.atomic(), on a "
            "connection in autocommit."
        )
