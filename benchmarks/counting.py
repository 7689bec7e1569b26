"""Count what some work costs the database: statements, rows, and WAL.

Each work is done twice, for a number of messages and for twice as many. The difference is what the
messages cost; what starting and stopping cost is in both and drops out. Nothing is timed meanwhile.

Full-page images are kept out: after one checkpoint the work is done once to no account, which
writes those of the catalogs, and each pass has its tables emptied, so that their pages are new.
Images that come nevertheless are shown apart. Autovacuum, which writes WAL when it pleases, is off
for the tables.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import ProgramFailed, execute, query, running
from benchmarks.scenario import Counted, Work
from benchmarks.statements import LOGGED, PRESENCE, is_presence, recording

PER = 1_000
"""Counters are given for so many messages."""

TABLES = "django_outbox_message", "django_outbox_dead_letter", "django_outbox_schedule"

ALL_TABLES = """
SELECT array_agg(relname::text) FROM pg_stat_user_tables
WHERE relname LIKE 'django!_outbox!_%' ESCAPE '!' OR relname LIKE 'bench!_%' ESCAPE '!'
"""

STATEMENTS = "statements, "
FREE = "free-running "

Counters = dict[str, float]

ROWS = """
SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del FROM pg_stat_user_tables
"""
ROW_COUNTERS = ("inserted", "updated", "HOT-updated", "deleted")

WAL = """
SELECT wal_records::float8, wal_bytes::float8, wal_fpi::float8 FROM pg_stat_wal
"""
WAL_COUNTERS = ("WAL records", "WAL bytes", "full-page images")

OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def count(counted: Counted, *, free_messages: int) -> Counters:
    """Return the counters of some work, for `PER` messages."""
    with _prepared_database():
        _pass(counted, counted.work, counted.messages // 5)
        once = _pass(counted, counted.work, counted.messages)
        twice = _pass(counted, counted.work, 2 * counted.messages)
        twice.subtract(once)
        counters = _per(twice, counted.messages)
        if counted.free is not None:
            counters |= _free(_per(_pass(counted, counted.free, free_messages), free_messages))
    return counters


def _pass(counted: Counted, work: Work, messages: int) -> Counter[str]:
    execute(f"TRUNCATE {', '.join(query(ALL_TABLES))}")
    counted.prepare(messages)
    before = _read_server()
    statements = work(messages)
    found = _read_server()
    found.subtract(before)
    for kind, times in statements.items():
        if not is_presence(kind):
            found[f"{STATEMENTS}{kind}"] += times
    return found


def _per(found: Counter[str], messages: int) -> Counters:
    per = {name: round(found[name] / messages * PER, 3) for name in sorted(found)}
    return {name: value for name, value in per.items() if value}


def _free(counters: Counters) -> Counters:
    """Return of a free-running worker's counters what can be held below a bound."""
    statements = sum(n for name, n in counters.items() if name.startswith(STATEMENTS))
    wal = {f"{FREE}{name}": counters[name] for name in WAL_COUNTERS if name in counters}
    return {f"{FREE}statements": round(statements, 3), **wal}


def _read_server() -> Counter[str]:
    """Return the server's own counters, once all sessions that write them have ended."""
    _new_session()
    while query(OTHERS):
        time.sleep(0.01)
    _new_session()
    counters: Counter[str] = Counter()
    for table, *values in _rows(ROWS):
        short = table.removeprefix("django_outbox_")
        if short not in PRESENCE:
            counters.update(
                {f"{short} rows {n}": v for n, v in zip(ROW_COUNTERS, values, strict=True)}
            )
    [wal] = _rows(WAL)
    counters.update(dict(zip(WAL_COUNTERS, wal, strict=True)))
    return counters


def _rows(sql: str) -> list[tuple[Any, ...]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def _new_session() -> None:
    from django.db import connection

    connection.close()


@contextmanager
def _prepared_database() -> Iterator[None]:
    """Have new sessions told of their statements, and no autovacuum, while the block runs."""
    for table in TABLES:
        execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    try:
        with logged():
            execute("CHECKPOINT")
            yield
    finally:
        for table in TABLES:
            execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


@contextmanager
def logged() -> Iterator[None]:
    """Have new sessions told of their statements while the block runs."""
    name = query("SELECT quote_ident(current_database())")
    for setting, value in LOGGED.items():
        execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    _new_session()
    try:
        yield
    finally:
        execute(f"ALTER DATABASE {name} RESET ALL")
        _new_session()


# Whose statements are counted


def of_this_process(work: Callable[[int], object]) -> Work:
    """Return the work so that it returns its statements."""

    def recorded(messages: int) -> Counter[str]:
        kinds: list[str] = []
        _new_session()
        with recording(kinds.append):
            work(messages)
        _new_session()
        return Counter(kinds)

    return recorded


def of_a_worker(*arguments: str, lockstep: bool = True) -> Work:
    """Return a function that lets a worker drain the queue, and returns its statements."""

    def recorded(_messages: int) -> Counter[str]:
        with noting("outbox_worker", "--no-reload", "--drain", *arguments, lockstep=lockstep) as (
            process,
            notes,
        ):
            if code := process.wait():
                raise ProgramFailed(f"The worker ended with {code}.")
            return read_notes(notes)

    return recorded


@contextmanager
def noting(
    command: str, *arguments: str, lockstep: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a management command that notes its statements in the file that is given."""
    with tempfile.NamedTemporaryFile() as notes:
        environment = {"BENCH_STATEMENTS": notes.name, "BENCH_LOCKSTEP": "1" if lockstep else ""}
        full = [sys.executable, "-m", "benchmarks.counted", command, *arguments]
        with running(full, environment) as process:
            yield process, Path(notes.name)


def read_notes(notes: Path) -> Counter[str]:
    """Return how many statements of each kind were noted so far."""
    return Counter(notes.read_text().splitlines())
