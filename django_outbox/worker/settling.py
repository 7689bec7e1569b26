"""Write outcomes in batches, one statement for all of a kind.

Rows that a statement did not match are looked at again: the lease of a row that is only locked (by
a publisher extending its timer, or by a handler's own open transaction) still stands, so it is
tried again; all others are lost, and nothing more is done about them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

import psycopg

from ..conf import settings
from ..errors import summary
from ..messages import Again, Bury, Lost, Outcome, Release, is_settled
from ..store import messages as store
from .database import LOCKED_PAUSE, Database, DatabaseAway, RowsLocked
from .delivery import Delivery
from .moments import NEVER
from .reporting import PHASES, Reporter

logger = logging.getLogger("django_outbox")

Ended = tuple[Delivery, Outcome]

BATCH = 1000
REFUSED_PAUSE = 5.0
"""Seconds after which an outcome is tried again that the database could not take."""

MISSED_FOR = 10.0
"""Seconds for which a row may stand unsettled; then that is logged, and it is tried less often."""

# The values or a constraint are at fault; trying again would end the same.
_HOPELESS = (
    psycopg.ProgrammingError,
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.NotSupportedError,
    psycopg.errors.RaiseException,
)


class Settler:
    """Outcomes that are to be written, kept until they are."""

    def __init__(self, database: Database, reporter: Reporter) -> None:
        self._database = database
        self._reporter = reporter
        self._fresh: dict[type, list[Ended]] = {kind: [] for kind in PHASES}
        self._put_off: list[tuple[float, Ended]] = []  # with the moment to try again
        self._given_up: list[Delivery] = []
        self._finished: list[Delivery] = []

    @property
    def unsettled(self) -> int:
        """How many outcomes are still to be written."""
        return sum(map(len, self._fresh.values())) + len(self._put_off)

    @property
    def next_try(self) -> float:
        """When what was put off is tried again."""
        return min((moment for moment, _ in self._put_off), default=NEVER)

    @property
    def abandoned(self) -> list[int]:
        """The ids of messages that were given up and whose lease has not run out yet."""
        now = time.monotonic()
        self._given_up = [delivery for delivery in self._given_up if delivery.lease_ends_at > now]
        return [delivery.claimed.id for delivery in self._given_up]

    def settle(self, ended: Sequence[Ended]) -> list[Delivery]:
        """Write these outcomes and earlier ones still open; return what is out of hand now.

        While the database is away, what could not be written is kept for the next call.
        """
        for one in ended:
            self._sort(one)
        try:
            for kind in PHASES:
                self._write_all(kind)
            self._try_again()
        except DatabaseAway:
            logger.debug("%d outcome(s) wait for the database", self.unsettled)
        finished, self._finished = self._finished, []
        return finished

    def _sort(self, ended: Ended) -> None:
        delivery, outcome = ended
        if isinstance(outcome, Lost):
            self._lose([delivery], outcome.phase)
            self._finished.append(delivery)
        elif is_settled(outcome):
            self._reporter.settled(delivery, outcome)
            self._finished.append(delivery)
        else:
            self._fresh[type(outcome)].append(ended)

    def _write_all(self, kind: type) -> None:
        while fresh := self._fresh[kind]:
            batch = _without_twins(fresh)
            self._fresh[kind] = _except(fresh, batch)
            self._write_or_keep(kind, batch, self._fresh[kind])

    def _try_again(self) -> None:
        """Write what was locked or refused, apart from the fresh, which must not wait for it."""
        now = time.monotonic()
        due = [ended for moment, ended in self._put_off if moment <= now]
        self._put_off = [(moment, ended) for moment, ended in self._put_off if moment > now]
        kept: list[Ended] = []
        try:
            for kind in PHASES:
                batch = _without_twins([ended for ended in due if type(ended[1]) is kind])
                due = _except(due, batch)
                self._write_or_keep(kind, batch, kept, again=True)
        finally:
            self._put_off += [(now, ended) for ended in [*due, *kept]]

    def _write_or_keep(
        self, kind: type, batch: list[Ended], kept: list[Ended], *, again: bool = False
    ) -> None:
        """Write a batch; if the database goes away meanwhile, keep what is not out of hand yet."""
        if not batch:
            return
        open_ones = {id(ended[0]): ended for ended in batch}
        try:
            self._write(kind, batch, open_ones, again=again)
        finally:
            kept += open_ones.values()

    def _write(
        self, kind: type, batch: list[Ended], open_ones: dict[int, Ended], *, again: bool
    ) -> None:
        """Write one batch, and take from `open_ones` what is finished or put off."""
        try:
            written = self._execute(kind, batch, again=again)
        except RowsLocked:
            self._put(batch, open_ones, off=LOCKED_PAUSE)
        except DatabaseAway as away:
            for delivery, _ in batch:
                delivery.unsure |= away.sent
            raise
        except psycopg.Error as error:
            self._write_apart(kind, batch, open_ones, error, again=again)
        else:
            done = batch
            if len(written) < len(batch):
                done = [ended for ended in batch if ended[0].claimed.id in written]
            self._reporter.all_settled(done)
            self._finish(done, open_ones)
            self._look_at_missed(_except(batch, done), open_ones)

    def _look_at_missed(self, missed: list[Ended], open_ones: dict[int, Ended]) -> None:
        """Put off what is only locked; the rest is gone, for a good reason or not."""
        if not missed:
            return
        leases = [delivery.lease for delivery, _ in missed]
        try:
            held = self._database.call(store.still_held, leases)
        except psycopg.Error as error:
            logger.warning(
                "Whose %d leases are now is asked later: %s", len(missed), summary(error)
            )
            self._put(missed, open_ones, off=REFUSED_PAUSE)
            return
        standing = [ended for ended in missed if ended[0].claimed.id in held]
        gone = _except(missed, standing)
        self._put_off_standing(standing, open_ones)
        self._miss(gone)
        self._finish(gone, open_ones)

    def _put_off_standing(self, standing: list[Ended], open_ones: dict[int, Ended]) -> None:
        """Put off rows that are there and were not matched: locked, or kept by something else."""
        now = time.monotonic()
        kept: list[Ended] = []
        for ended in standing:
            delivery = ended[0]
            delivery.missed_at = now if delivery.missed_at is None else delivery.missed_at
            if now - delivery.missed_at >= MISSED_FOR:
                kept.append(ended)
        if kept:
            ids = [delivery.claimed.id for delivery, _ in kept]
            logger.warning(
                "For %g s messages %s could not be settled: a transaction keeps their rows locked, "
                "or a trigger, rule or policy keeps them as they are. It is tried again.",
                MISSED_FOR,
                ids,
                extra={"event": "settlement_held_up", "ids": ids, "count": len(ids)},
            )
        self._put(_except(standing, kept), open_ones, off=LOCKED_PAUSE)
        self._put(kept, open_ones, off=MISSED_FOR)

    def _execute(self, kind: type, batch: list[Ended], *, again: bool) -> set[int]:
        call = self._database.call
        leases = [delivery.lease for delivery, _ in batch]
        outcomes: list[Any] = [outcome for _, outcome in batch]
        if kind is Again:
            return call(store.retry, leases, outcomes)
        if kind is Bury:
            return call(store.bury, leases, outcomes)
        if kind is Release:
            return call(store.release, leases, outcomes, notify=settings.notify)
        if again:
            return call(store.complete_unlocked, leases)
        try:
            return call(store.complete, leases)
        except RowsLocked:
            return call(store.complete_unlocked, leases)

    def _write_apart(
        self,
        kind: type,
        batch: list[Ended],
        open_ones: dict[int, Ended],
        error: psycopg.Error,
        *,
        again: bool,
    ) -> None:
        """Keep one outcome that the database refuses from holding up the others.

        Where trying again would end the same it is given up: its lease runs out and the message is
        delivered again. Anything else may pass; a full disk has nothing to do with any of them.
        """
        if len(batch) > 1 and not isinstance(error, psycopg.errors.DiskFull):
            for ended in batch:
                self._write(kind, [ended], open_ones, again=again)
            return
        is_hopeless = isinstance(error, _HOPELESS)
        ids = [delivery.claimed.id for delivery, _ in batch]
        logger.error(
            "The %s of %s was refused, so %s: %s",
            PHASES[kind],
            f"message {ids[0]}" if len(ids) == 1 else f"{len(ids):,} messages",
            "its lease runs out" if is_hopeless else "that is tried again",
            summary(error),
            extra={"event": "settlement_refused", "phase": PHASES[kind]},
        )
        if is_hopeless:
            self._given_up += [delivery for delivery, _ in batch]
            self._finish(batch, open_ones)
        else:
            self._put(batch, open_ones, off=REFUSED_PAUSE)

    def _finish(self, batch: Collection[Ended], open_ones: dict[int, Ended]) -> None:
        for delivery, _ in batch:
            self._finished.append(delivery)
            del open_ones[id(delivery)]

    def _put(self, batch: Collection[Ended], open_ones: dict[int, Ended], *, off: float) -> None:
        """Try these again after `off` seconds."""
        moment = time.monotonic() + off
        for ended in batch:
            self._put_off.append((moment, ended))
            del open_ones[id(ended[0])]

    def _miss(self, missed: list[Ended]) -> None:
        """Tell the rows that are gone for a good reason from those that were lost."""
        lost: list[Delivery] = []
        unsure: list[Delivery] = []
        for delivery, outcome in missed:
            if delivery.ack_committed:
                self._reporter.acked(delivery, outcome)
            else:
                (unsure if delivery.unsure else lost).append(delivery)
        if missed:
            phase = PHASES[type(missed[0][1])]
            self._reporter.unsure(unsure, phase)
            self._lose(lost, phase)

    def _lose(self, deliveries: list[Delivery], phase: str) -> None:
        news = [delivery for delivery in deliveries if not delivery.lost]
        for delivery in news:
            delivery.lost = True
        self._reporter.lost(news, phase)


def _except(some: Collection[Ended], others: Collection[Ended]) -> list[Ended]:
    if some is others:
        return []
    left_out = {id(delivery) for delivery, _ in others}
    return [ended for ended in some if id(ended[0]) not in left_out]


def _without_twins(pending: list[Ended]) -> list[Ended]:
    """Return the first of these, no id twice.

    A message that came back after its lease had run out may be in hand under two tokens, and a
    statement answers with ids.
    """
    batch: dict[int, Ended] = {}
    if len(pending) <= BATCH and len({ended[0].claimed.id for ended in pending}) == len(pending):
        return pending
    for ended in pending:
        batch.setdefault(ended[0].claimed.id, ended)
        if len(batch) == BATCH:
            break
    return list(batch.values())
