"""Write outcomes in batches, one statement for all of a kind.

Rows that a statement did not match are looked at again: the lease of a row that is only locked (by
a publisher extending its timer, or by a handler's own open transaction) still stands, so it is
tried again; all others are lost, and nothing more is done about them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, cast

import psycopg

from ..conf import settings
from ..messages import Again, Bury, Done, Lost, Outcome, Release, is_settled
from ..store import messages as store
from .database import LOCKED_PAUSE, Database, DatabaseAway, RowsLocked, summary
from .delivery import Delivery
from .reporting import Reporter

logger = logging.getLogger("django_outbox")

Ended = tuple[Delivery, Outcome]
REFUSED_PAUSE = 5.0
BATCH = 1000

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
        self._pending: list[Ended] = []
        self._locked: list[Ended] = []
        self._locked_until = 0.0
        self._given_up: list[Delivery] = []

    @property
    def unsettled(self) -> int:
        """How many outcomes are still to be written."""
        return len(self._pending) + len(self._locked)

    @property
    def abandoned(self) -> list[int]:
        """The ids of messages that were given up and whose lease has not run out yet."""
        now = time.monotonic()
        self._given_up = [delivery for delivery in self._given_up if delivery.lease_ends_at > now]
        return [delivery.claimed.id for delivery in self._given_up]

    @property
    def next_try(self) -> float:
        """The `time.monotonic()` at which locked rows are tried again; infinite without any."""
        return self._locked_until if self._locked else float("inf")

    def settle(self, ended: Sequence[Ended]) -> list[Delivery]:
        """Write these outcomes and earlier ones still open; return what is out of hand now.

        On `DatabaseAway` everything not yet written is kept for the next call.
        """
        self._pending += ended
        if self._locked and time.monotonic() >= self._locked_until:
            self._pending += self._locked
            self._locked = []
        gone: list[Delivery] = []
        try:
            while self._pending:
                batch = self._take_batch()
                gone += self._write(batch)
        except DatabaseAway:
            logger.debug("%d outcome(s) wait for the database", len(self._pending))
        return gone

    def _take_batch(self) -> list[Ended]:
        """Return outcomes of one kind, which leave the list when they are written.

        No id twice: a message that came back after its lease had run out may be in hand under two
        tokens, and a statement answers with ids.
        """
        kind = type(self._pending[0][1])
        batch: dict[int, Ended] = {}
        for ended in self._pending:
            if type(ended[1]) is kind:
                batch.setdefault(ended[0].claimed.id, ended)
                if len(batch) == BATCH:
                    break
        return list(batch.values())

    def _write(self, batch: list[Ended]) -> list[Delivery]:
        first = batch[0][1]
        if isinstance(first, Lost):
            return self._finish_lost(batch)
        done_already = [ended for ended in batch if is_settled(ended[1])]
        if done_already:
            self._report(done_already)
            return self._finish(done_already)
        try:
            written = self._execute(batch)
            missed = [ended for ended in batch if ended[0].claimed.id not in written]
            locked = self._still_held(missed)
        except RowsLocked:
            self._keep(batch)
            return self._finish(batch, keep={delivery.claimed.id for delivery, _ in batch})
        except DatabaseAway as away:
            for delivery, _ in batch:
                delivery.unsure |= away.sent
            raise
        except psycopg.Error as error:
            return self._write_one_by_one(batch, error)
        self._report([ended for ended in batch if ended[0].claimed.id in written])
        self._keep([ended for ended in missed if ended[0].claimed.id in locked])
        self._lose([ended for ended in missed if ended[0].claimed.id not in locked])
        return self._finish(batch, keep=locked)

    def _execute(self, batch: list[Ended]) -> set[int]:
        leases = [delivery.lease for delivery, _ in batch]
        outcomes: list[Any] = [outcome for _, outcome in batch]
        call = self._database.call
        match outcomes[0]:
            case Done():
                try:
                    return call(store.complete, leases)
                except RowsLocked:
                    return call(store.complete_unlocked, leases)
            case Again():
                return call(store.retry, leases, outcomes)
            case Bury():
                return call(store.bury, leases, outcomes)
            case Release():
                return call(store.release, leases, outcomes, notify=settings.notify)
        raise AssertionError(f"not an outcome to write: {outcomes[0]!r}")

    def _still_held(self, missed: list[Ended]) -> set[int]:
        if not missed:
            return set()
        return self._database.call(store.still_held, [delivery.lease for delivery, _ in missed])

    def _write_one_by_one(self, batch: list[Ended], error: psycopg.Error) -> list[Delivery]:
        """Keep one outcome that the database refuses from holding up the others.

        Where its values or a constraint are at fault it is given up: its lease runs out and the
        message is delivered again. Anything else, such as a full disk, may pass.
        """
        if len(batch) > 1:
            return [delivery for ended in batch for delivery in self._write([ended])]
        delivery, outcome = batch[0]
        is_hopeless = isinstance(error, _HOPELESS)
        logger.error(
            "The %s of message %s was refused, so %s: %s",
            _phase(outcome),
            delivery.claimed.id,
            "its lease runs out" if is_hopeless else "it is tried again",
            summary(error),
            extra={"event": "settlement_refused", "phase": _phase(outcome)},
        )
        if is_hopeless:
            self._given_up.append(delivery)
            return self._finish(batch)
        self._keep(batch, seconds=REFUSED_PAUSE)
        return self._finish(batch, keep={delivery.claimed.id})

    def _finish_lost(self, batch: list[Ended]) -> list[Delivery]:
        by_phase: dict[str, list[Delivery]] = {}
        for delivery, outcome in batch:
            by_phase.setdefault(cast("Lost", outcome).phase, []).append(delivery)
        for phase, deliveries in by_phase.items():
            self._report_lost(deliveries, phase)
        return self._finish(batch)

    def _lose(self, missed: list[Ended]) -> None:
        """Tell the rows that are gone for a good reason from those that were lost."""
        acked = [ended for ended in missed if ended[0].ack_committed]
        unsure = [ended[0] for ended in missed if ended[0].unsure and not ended[0].ack_committed]
        lost = [e[0] for e in missed if not e[0].unsure and not e[0].ack_committed]
        for delivery, _ in acked:
            self._reporter.settled(delivery, Done(settled=True))
        phase = _phase(missed[0][1]) if missed else ""
        if unsure:
            self._reporter.unsure(unsure, phase)
        self._report_lost(lost, phase)

    def _report_lost(self, deliveries: list[Delivery], phase: str) -> None:
        news = [delivery for delivery in deliveries if not delivery.lost]
        for delivery in news:
            delivery.lost = True
        if news:
            self._reporter.lost(news, phase)

    def _keep(self, locked: list[Ended], *, seconds: float = LOCKED_PAUSE) -> None:
        if locked:
            self._locked += locked
            self._locked_until = time.monotonic() + seconds

    def _report(self, written: list[Ended]) -> None:
        for delivery, outcome in written:
            self._reporter.settled(delivery, outcome)

    def _finish(self, batch: list[Ended], keep: set[int] = frozenset()) -> list[Delivery]:  # type: ignore[assignment]
        """Take a batch off the pending ones and return those not kept for another try."""
        handled = {id(delivery) for delivery, _ in batch}
        self._pending = [ended for ended in self._pending if id(ended[0]) not in handled]
        return [delivery for delivery, _ in batch if delivery.claimed.id not in keep]


_PHASES = {Done: "complete", Again: "retry", Bury: "bury", Release: "release"}


def _phase(outcome: Outcome) -> str:
    return outcome.phase if isinstance(outcome, Lost) else _PHASES[type(outcome)]
