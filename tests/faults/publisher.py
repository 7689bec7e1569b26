"""A publisher: `python -m tests.faults.publisher NAME JOURNAL MESSAGES SECONDS SEED`.

Each transaction commits business rows together with messages about them, or rolls back. It goes on
through outages and after being killed, until the server has acknowledged so many messages.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random

import django

django.setup()

from django.db import Error, connection, transaction

from django_outbox import outbox
from tests.faults.ledger import Journal
from tests.faults.queues import content

KINDS = {
    "plain": 20,
    "atomic": 10,
    "batch": 8,
    "acked": 8,
    "relay": 6,
    "retrying": 5,
    "retrying_atomic": 5,
    "slow": 2,
    "failing": 1,
    "rejecting": 1,
    "expiring": 3,
    "later": 6,
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
                if is_undone:
                    raise Undo
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
            content(key, seconds=self._chance.uniform(0, 1), failures=self._chance.randint(1, 2)),
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


def _moment(delay: float) -> object:
    """Return when a message is due at the earliest that is published from now on."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp() + %s * interval '1 second'", [delay])
        return cursor.fetchone()[0]


Row = tuple[str, str, int | None, object, str | None]


def _note(*rows: Row) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO faults_publication (key, kind, message_id, due_at, timer_id)"
            " VALUES (%s, %s, %s, %s, %s)",
            rows,
        )


def _note_cancellation(timer_id: str) -> None:
    """Note the message that has had this timer last; only this publisher uses it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO faults_cancellation SELECT message_id FROM faults_publication"
            " WHERE timer_id = %s AND message_id IS NOT NULL ORDER BY id DESC LIMIT 1",
            [timer_id],
        )


def run(publish: Callable[[], None], is_enough: Callable[[], bool], due: Callable[[], int]) -> None:
    """Publish at the pace of `due`, the messages that there should be by now."""
    while not is_enough():
        if due() <= 0:
            time.sleep(0.01)  # the pace, not a wait for something
            continue
        try:
            publish()
        except Error as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            connection.close()
            time.sleep(0.2)  # the pause of any client before it tries again


def main(name: str, path: str, messages: int, seconds: float, seed: str) -> None:
    publisher = Publisher(name, Journal(Path(path)), Random(f"{seed} {name} {os.getpid()}"))
    began, had = time.monotonic(), publisher.acknowledged

    def due() -> int:
        elapsed = time.monotonic() - began
        return had + round(messages * elapsed / seconds) - publisher.acknowledged

    run(publisher.publish, lambda: publisher.acknowledged >= messages, due)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
