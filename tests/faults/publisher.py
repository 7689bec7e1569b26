"""A publisher: each transaction commits business rows with messages about them, or rolls back."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime, timedelta
from random import Random

from django.db import connection, transaction

from django_outbox import outbox
from tests.faults.ledger import Journal
from tests.faults.queues import content

KINDS = {
    "plain": 200,
    "atomic": 100,
    "batch": 80,
    "acked": 80,
    "relay": 60,
    "retrying": 50,
    "retrying_atomic": 50,
    "slow": 8,
    "slow_atomic": 12,
    "failing": 10,
    "rejecting": 10,
    "expiring": 30,
    "later": 60,
}
"""How often each kind of message is published by itself, of all of them."""

TIMERS = 20
MOVE = 3.0
"""Seconds to which a timer is extended. To replace one takes less, so an extension is always later
than what is stored, and takes effect unless a worker has the timer in hand."""


class Undo(Exception):
    """Raised to roll back on purpose."""


class Publisher:
    def __init__(self, name: str, journal: Journal, chance: Random) -> None:
        self._name = name
        self._journal = journal
        self._chance = chance
        self._count = 0
        self.acknowledged = len(journal.read("committed"))

    def publish(self) -> None:
        """Publish in one transaction, and note what came of it."""
        deed = self._chance.choices([self._one, self._many, self._timer], [12, 1, 2])[0]
        is_undone = self._chance.random() < 0.05
        keys: list[str] = []
        try:
            with transaction.atomic():
                deed(keys)
                _undo(is_undone)
        except Undo:
            self._journal.rolled_back(keys)
        else:
            self._journal.committed(keys)
            self.acknowledged += len(keys)

    def _one(self, keys: list[str]) -> None:
        kind = self._chance.choices([*KINDS], [*KINDS.values()])[0]
        if self._chance.random() < 0.05:
            self._undone_savepoint(kind)
        key = self._key(keys)
        delay = self._chance.uniform(0.2, 5) if kind == "later" else 0
        due_at = _moment(delay)
        id_ = outbox.publish(
            content(key, seconds=self._chance.uniform(1, 5), failures=self._chance.randint(1, 2)),
            queue=kind,
            activate_in=timedelta(seconds=delay) if delay else None,
            expires_in=2 if kind == "expiring" else None,
        )
        _note((key, kind, id_, due_at, None))

    def _undone_savepoint(self, kind: str) -> None:
        keys: list[str] = []
        with suppress(Undo), transaction.atomic():
            outbox.publish(content(self._key(keys), seconds=0, failures=0), queue=kind)
            raise Undo
        self._journal.rolled_back(keys)

    def _many(self, keys: list[str]) -> None:
        kind = self._chance.choice(["plain", "atomic", "batch"])
        for _ in range(self._chance.randint(10, 60)):
            self._key(keys)
        due_at = _moment(0)
        ids = outbox.publish_many([content(key) for key in keys], queue=kind)
        _note(*((key, kind, id_, due_at, None) for key, id_ in zip(keys, ids, strict=True)))

    def _timer(self, keys: list[str]) -> None:
        timer_id = f"{self._name}-{self._chance.randrange(TIMERS)}"
        move = self._chance.choice(["ignore", "extend", "extend", "replace", "cancel"])
        if move == "cancel":
            if outbox.cancel_timer(queue="timer", timer_id=timer_id):
                _note_cancellation(timer_id)
            return
        delay = MOVE if move == "extend" else self._chance.uniform(0.2, MOVE)
        key = self._key(keys)
        due_at = _moment(delay)
        id_ = outbox.publish(
            content(key),
            queue="timer",
            activate_in=timedelta(seconds=delay),
            timer_id=timer_id,
            timer_conflict=move,  # type: ignore[arg-type]
        )
        _note((key, "timer", id_, due_at, timer_id))

    def _key(self, keys: list[str]) -> str:
        self._count += 1
        key = f"{self._name}.{os.getpid()}.{self._count}"
        keys.append(key)
        return key


def _moment(delay: float) -> datetime:
    """Return when a message is due at the earliest that is published from now on."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp() + %s * interval '1 second'", [delay])
        moment: datetime = cursor.fetchone()[0]
        return moment


def _undo(is_wanted: bool) -> None:
    if is_wanted:
        raise Undo


Row = tuple[str, str, int | None, datetime, str | None]


def _note(*rows: Row) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO faults_publication (key, kind, message_id, due_at, timer_id)"
            " VALUES (%s, %s, %s, %s, %s)",
            list(rows),
        )


def _note_cancellation(timer_id: str) -> None:
    """Note the message that has had this timer last; only this publisher uses it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO faults_cancellation SELECT message_id FROM faults_publication"
            " WHERE timer_id = %s AND message_id IS NOT NULL ORDER BY id DESC LIMIT 1",
            [timer_id],
        )
