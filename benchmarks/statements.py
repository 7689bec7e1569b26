"""Which statements a process sends, as the server names them.

A database whose settings are `LOGGED` tells each session of every statement it runs, in a notice.
That needs no extension and no access to the server's log, only a superuser; and it counts what
really arrived, `BEGIN` and `COMMIT` among it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db.backends.signals import connection_created
from psycopg.errors import Diagnostic

LOGGED = {
    "log_statement": "all",
    "client_min_messages": "log",
    "log_min_messages": "fatal",  # or the server's own log would fill as well
    "lc_messages": "C",
}

_MESSAGE = re.compile(r"(?:statement|execute [^:]*): (.*)", re.DOTALL)
_WRITES = re.compile(
    r"\b(INSERT INTO|UPDATE|DELETE FROM)\s+(?:ONLY\s+)?\"?((?:django_outbox|bench)_\w+)"
)
_READS = re.compile(r"\b(?:FROM|JOIN)\s+(?:ONLY\s+)?\"?((?:django_outbox|bench)_\w+)")

PRESENCE = ("worker", "counter")
"""Tables written every ten seconds, whatever is measured: the clock decides how often."""


def kind(statement: str) -> str:
    """Return a statement's verb and table: `UPDATE message`, `SELECT schedule`, `COMMIT`."""
    writes = [f"{verb.split()[0]} {_short(table)}" for verb, table in _WRITES.findall(statement)]
    if writes:
        return " + ".join(dict.fromkeys(writes))
    words = statement.split(maxsplit=1)
    read = _READS.search(statement)
    if read is not None:
        return f"SELECT {_short(read[1])}"
    return words[0].strip(";").upper() if words else ""


def is_presence(kind: str) -> bool:
    """Tell whether a kind of statement is only about who lives."""
    return kind.split()[-1:] != [] and kind.rsplit(maxsplit=1)[-1] in PRESENCE


@contextmanager
def recording(record: Callable[[str], Any]) -> Iterator[None]:
    """Give `record` the kind of each statement, on all connections that Django opens meanwhile."""

    def hear(notice: Diagnostic) -> None:
        found = _MESSAGE.match(notice.message_primary or "")
        if notice.severity_nonlocalized == "LOG" and found:
            record(kind(found[1]))

    def listen(connection: Any, **_: Any) -> None:
        connection.connection.add_notice_handler(hear)

    connection_created.connect(listen, weak=False)
    try:
        yield
    finally:
        connection_created.disconnect(listen)


def _short(table: str) -> str:
    return table.removeprefix("django_outbox_")
