"""Whether what a worker tells its session would reach others, as behind a transaction-mode pooler.

A worker that listens takes a session for its own. Where a pooler gives it to somebody else after
each transaction, planner settings and prepared statements would go with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from django.db import Error as DatabaseError
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from .conf import settings
from .own_connection import own_connection
from .store import backends
from .watchdog import Watchdog

TRIES = 10
PATIENCE = 3.0
"""Seconds after which a pooler is taken to have no session left, so that it shares none."""


class Flaw(NamedTuple):
    """What is wrong, and what mends it."""

    what: str
    mend: str


def says_pooled(alias: str) -> bool:
    """Tell whether the settings of a database say that its sessions are shared."""
    return bool(connections[alias].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"))


def listens_on(alias: str) -> str | None:
    """Return where the workers of a database take a session for their own, None if nowhere."""
    listen_on = settings.listen_database or alias
    if not settings.notify or (listen_on == alias and says_pooled(alias)):
        return None
    return listen_on


def shares_sessions(alias: str) -> bool:
    """Tell whether two connections to a database have been seen to get the same session.

    A pooler tells its clients of other backends than the server does. Whether it is in session
    mode, where each has its own, only a second connection can tell; a pooler so busy that the two
    never meet is not found out.
    """
    with _connection(alias) as first:
        if _backend(first) == first.connection.info.backend_pid:
            return False
        with suppress(DatabaseError), _connection(alias) as second:
            return any(_backend(first) == _backend(second) for _ in range(TRIES))
    return False


def flaw(alias: str) -> Flaw | None:
    """Return what is wrong with the session that the workers of a database take, if anything."""
    listen_on = listens_on(alias)
    if listen_on is None or not shares_sessions(listen_on):
        return None
    what = (
        f"The database {listen_on!r} gives its sessions to other clients between two transactions, "
        "as a pooler in transaction mode does, and a worker would leave LISTEN, planner settings "
        "and prepared statements in them."
    )
    if listen_on != alias:
        mend = "Set OUTBOX['LISTEN_DATABASE'] to an alias that connects directly, or to None."
    else:
        mend = (
            f"Set DISABLE_SERVER_SIDE_CURSORS to True in DATABASES[{alias!r}], and "
            "OUTBOX['LISTEN_DATABASE'] to an alias that connects directly."
        )
    return Flaw(what, mend)


@contextmanager
def _connection(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """Open a connection for the block, on which nothing is waited for beyond reason."""
    connection = own_connection(alias)
    watchdog = Watchdog()
    watchdog.patience = PATIENCE
    watchdog.start()
    try:
        connection.ensure_connection()
        with watchdog.guard(lambda: connection.connection):
            yield connection
    finally:
        watchdog.stop()
        connection.close()


def _backend(connection: BaseDatabaseWrapper) -> int:
    with connection.cursor() as cursor:
        return backends.own(cursor)
