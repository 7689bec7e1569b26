"""The ledger: tables beside the outbox that say what was published, delivered and removed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

SQL = (Path(__file__).parent / "ledger.sql").read_text()


class Publication(NamedTuple):
    """A business row that was committed, with the message of the same transaction."""

    key: str
    kind: str
    message_id: int | None
    due_at: datetime


class Delivery(NamedTuple):
    """What a handler wrote: that it has done its work, or is about to fail."""

    key: str
    message_id: int
    queue: str
    done: bool
    intact: bool
    at: datetime


class Stored(NamedTuple):
    """A content that was committed into the outbox, by whomever; a timer may take several."""

    message_id: int
    queue: str
    key: str | None
    schedule: str | None
    boundary: datetime | None


class Removed(NamedTuple):
    """A message that left the outbox; a cancelled one had no lease."""

    message_id: int
    had_lease: bool


class Letter(NamedTuple):
    message_id: int
    reason: str
    attempts: int


class Breach(NamedTuple):
    """A lease that the database saw and that should not have been."""

    message_id: int
    what: str
    at: datetime


class Rhythm(NamedTuple):
    """A schedule as it stands at the end."""

    schedule: str
    next_run_at: datetime
    skipped: int


@dataclass
class Ledger:
    """All of it, for the checks to judge."""

    publications: list[Publication] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    removed: list[Removed] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    breaches: list[Breach] = field(default_factory=list)
    rhythms: list[Rhythm] = field(default_factory=list)
    first_boundaries: dict[str, datetime] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)


class Session(Protocol):
    """A cursor of psycopg or of Django."""

    def execute(self, sql: Any, params: Any = None, /) -> Any: ...
    def fetchall(self) -> list[Any]: ...


_READ: dict[str, tuple[type, str]] = {
    "publications": (
        Publication,
        "SELECT key, kind, message_id, due_at FROM faults_publication ORDER BY id",
    ),
    "deliveries": (
        Delivery,
        "SELECT key, message_id, queue, done, intact, at FROM faults_delivery ORDER BY at",
    ),
    "stored": (
        Stored,
        "SELECT message_id, queue, key, schedule, boundary FROM faults_stored ORDER BY id",
    ),
    "removed": (Removed, "SELECT message_id, had_lease FROM faults_removed"),
    "letters": (
        Letter,
        "SELECT original_id, failure_reason, attempts_count FROM django_outbox_dead_letter",
    ),
    "breaches": (Breach, "SELECT message_id, what, at FROM faults_breach ORDER BY at"),
    "rhythms": (Rhythm, "SELECT name, next_run_at, skipped_count FROM django_outbox_schedule"),
}


def install(session: Session) -> None:
    """Make the tables, and the triggers on those of the outbox."""
    session.execute(SQL)


def read(session: Session) -> Ledger:
    """Return what the tables hold; what the processes alone know is still missing."""
    ledger = Ledger()
    for name, (row, sql) in _READ.items():
        session.execute(sql)
        setattr(ledger, name, [row(*values) for values in session.fetchall()])
    session.execute("SELECT message_id FROM faults_cancellation")
    ledger.cancelled = [id_ for (id_,) in session.fetchall()]
    session.execute("SELECT id FROM django_outbox_message")
    ledger.live = [id_ for (id_,) in session.fetchall()]
    return ledger


class Journal:
    """A publisher's own account, in a file: what the server acknowledged, and what was undone.

    A commit whose answer was lost is in neither; the business row says what became of it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def committed(self, keys: Iterable[str]) -> None:
        self._write("committed", keys)

    def rolled_back(self, keys: Iterable[str]) -> None:
        self._write("rolled_back", keys)

    def read(self, event: str) -> set[str]:
        """Return the keys of all lines about this event; a line cut short by a kill is none."""
        if not self._path.exists():
            return set()
        lines = [line for line in self._path.read_text().splitlines(keepends=True) if "\n" in line]
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return {key for one in events if one["event"] == event for key in one["keys"]}

    def _write(self, event: str, keys: Iterable[str]) -> None:
        line = json.dumps({"event": event, "keys": list(keys)})
        with self._path.open("a") as file:
            file.write(f"{line}\n")
