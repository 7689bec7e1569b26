"""Transactions that a scheduler does not stay in for long, and what may hold them up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)

from ..store import Cursor
from ..store import schedules as store
from .leadership import TTL

LOCK_WAIT = 1.0
"""Seconds to wait for a lock."""

STATEMENT_WAIT = TTL * 0.8
"""Seconds that one statement may take, whatever the site allows others: nothing is renewed
meanwhile."""

# A lock was not to be had in time; a statement took too long; another transaction was in the way.
_PASSING = ("55P03", "57014", "40001", "40P01")
# The session has ended, or the server is read-only, out of resources, stopping, or failing.
_AWAY = ("08", "25", "53", "57", "58")


class Frame(NamedTuple):
    """A transaction's cursor, and whether the transaction is ours or the caller's."""

    cursor: Cursor
    is_ours: bool


@contextmanager
def bounded(using: str, *, lock: float = LOCK_WAIT) -> Iterator[Frame]:
    """Open a transaction, or a savepoint in the caller's, that waits for nothing for long.

    Whoever is paused in it must not hold its row locks against the others.
    """
    is_ours = not connections[using].in_atomic_block
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        if is_ours:
            store.bound_waits(cursor, idle=TTL * 0.8, lock=lock, statement=STATEMENT_WAIT)
        yield Frame(cursor, is_ours)


def is_of_the_database(error: Exception) -> bool:
    """Tell whether an error has nothing to do with the values that were to be written."""
    return (_state(error) or "").startswith((*_PASSING, *_AWAY)) or _is_disconnected(error)


def will_pass(error: DatabaseError) -> bool:
    """Tell whether a transaction has met what passes: a lock, a deadlock, another transaction."""
    return _state(error) in _PASSING


def _state(error: Exception) -> str | None:
    return getattr(error.__cause__, "sqlstate", None)


def _is_disconnected(error: Exception) -> bool:
    """Tell whether it was the client who has noticed that the connection is gone."""
    return isinstance(error, OperationalError | InterfaceError) and _state(error) is None
