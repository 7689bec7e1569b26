"""The Django connections of a handler thread, kept fit from one message to the next.

A connection is not refreshed around every message, since with `CONN_MAX_AGE = 0` that would mean
connecting anew each time. It is closed when the thread has nothing to do, when it has reached its
age, when it is broken, and when a handler left something behind on it: an open transaction,
autocommit turned off, or session state.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from django.db import Error as DjangoError
from django.db import InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError
from psycopg.pq import TransactionStatus
from psycopg.sql import Composable

from ..errors import TransactionLeftOpen
from ..store import storage
from .failures import kept

# The server ended the session, is starting or stopping, or has become read-only.
_GONE = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04", "25006"})
_GONE_CLASSES = frozenset({"08"})

# Each alternative ends somewhere, if only at the end of the text, so that a text is read once.
_TEXTS_AND_COMMENTS = re.compile(
    r"""'[^']*(?:'|\Z) | "[^"]*(?:"|\Z) | --[^\n]* | /\*.*?(?:\*/|\Z)""", re.DOTALL | re.VERBOSE
)

_SESSION_STATE = re.compile(
    r"(?:^|;)\s*"
    r"(?:SET\s+(?!LOCAL\b|CONSTRAINTS\b|TRANSACTION\b)|RESET\b|LISTEN\b|PREPARE\b|DO\b|CALL\b"
    r"|CREATE\s+(?:LOCAL\s+|GLOBAL\s+)?TEMP)"
    r"|\bset_config\s*\(|\bpg_(?:try_)?advisory_lock",
    re.IGNORECASE,
)

_TRANSACTION_STATE = re.compile(
    r"(?:^|;)\s*SET\s+(?:LOCAL|CONSTRAINTS|TRANSACTION)\b", re.IGNORECASE
)

_own = threading.local()
"""A handler thread's connections, open or not: Django's own list of them is slow to walk."""


class SessionStateWatcher:
    """An execute wrapper that notes when a statement changes the state of its session."""

    def __init__(self) -> None:
        self.session: Any = None  # as Django has set it up
        self.touched = False
        self.forget_transaction()

    def has_lost_its_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        """Tell whether the transaction that statements were in is over, though its block is not."""
        return self.ended_transaction or (self.began_transaction and _is_idle(connection))

    def forget_transaction(self) -> None:
        """Begin anew: what was noted of a transaction has ended with it."""
        self.touched_transaction = self.began_transaction = self.ended_transaction = False

    def __call__(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any
    ) -> Any:
        text = _text(sql, context["connection"])
        if "--" in text or "/*" in text:
            text = _TEXTS_AND_COMMENTS.sub(" ", text)
        self.touched = self.touched or _SESSION_STATE.search(text) is not None
        if _TRANSACTION_STATE.search(text):
            self.touched_transaction = True
        result = execute(sql, params, many, context)
        if context["connection"].in_atomic_block:
            # The transaction is open after any statement but one that has ended it.
            self.began_transaction = True
            self.ended_transaction = self.ended_transaction or _is_idle(context["connection"])
        return result


def _text(sql: Any, connection: BaseDatabaseWrapper) -> str:
    if isinstance(sql, str):
        return sql
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    if isinstance(sql, Composable):
        return sql.as_string(connection.connection)
    return ""


def watch(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Note from now on what statements do to the connection's session; begin in autocommit.

    A receiver of Django's `connection_created`. A site may have set AUTOCOMMIT to False, but then a
    handler's writes would be rolled back after each message.
    """
    if not connection.autocommit and not connection.in_atomic_block:
        connection.set_autocommit(True)
    known = getattr(_own, "connections", None)
    if known is not None and connection not in known and storage.is_own(connection):
        known.append(connection)
    watcher = _watcher(connection)
    if watcher is None:
        watcher = SessionStateWatcher()
        connection.execute_wrappers.append(watcher)
    watcher.session = connection.connection


def _watcher(connection: BaseDatabaseWrapper) -> SessionStateWatcher | None:
    for wrapper in connection.execute_wrappers:
        if isinstance(wrapper, SessionStateWatcher):
            return wrapper
    return None


def begin() -> None:
    """Know each connection that this thread, which is to run handlers, may come to open.

    To wait for `connection_created` would not do: Django keeps a session that was cut while it was
    set up, and no signal tells of it. It would break one message after the other.
    """
    _own.connections = []
    for alias in connections:
        with suppress(Exception):  # a database that is configured wrongly may be of no interest
            _own.connections.append(connections[alias])


def depths() -> dict[str, int]:
    """Return how deep in transactions each connection of this thread is."""
    return {connection.alias: _depth(connection) for connection in _used()}


def refuse_changed_transactions(before: dict[str, int]) -> None:
    """See that a handler has left transactions as they were.

    Raises `TransactionLeftOpen` if a connection is deeper in transactions than before, and
    `TransactionManagementError` if a statement has ended a transaction that was open before.
    """
    for connection in _used():
        depth = before.get(connection.alias, 0)
        if _depth(connection) > depth or (depth == 0 and _in_transaction(connection)):
            raise TransactionLeftOpen(
                f"The handler returned with a transaction open on {connection.alias!r}; what it "
                "wrote there is rolled back. Close the block, or commit, before returning."
            )
        watcher = _watcher(connection)
        if depth and watcher is not None and watcher.has_lost_its_transaction(connection):
            raise TransactionManagementError(
                f"The handler ended the transaction on {connection.alias!r} that its message is "
                "removed in. To undo what an atomic handler has written, raise an exception."
            )


def session_gone(exception: BaseException) -> bool:
    """Tell whether the exception comes from a session of this thread that the server has ended."""
    return any(isinstance(error, DjangoError) and _says_gone(error) for error in _chain(exception))


def prepare() -> None:
    """Close what has reached its age while the thread was idle, before a message uses it."""
    for connection in _used():
        if _is_too_old(connection):
            connection.close()
        if connection.settings_dict["CONN_HEALTH_CHECKS"]:
            connection.health_check_done = False  # type: ignore[attr-defined]


def tidy() -> None:
    """Leave nothing of one message to the next."""
    for connection in _used():
        watcher = _watcher(connection)
        if (
            watcher is None
            or watcher.session is not connection.connection  # it was not set up to its end
            or watcher.touched
            or connection.in_atomic_block
            or connection.closed_in_transaction
            or _in_transaction(connection)
            or not connection.autocommit
        ):
            discard(connection)
        elif connection.errors_occurred and not _is_fit(connection):
            connection.close()
        if watcher is not None:
            watcher.forget_transaction()
        connection.errors_occurred = False
        if connection.queries_log:
            connection.queries_log.clear()
    if len(known := getattr(_own, "connections", ())) > len(connections.databases):
        # A handler has put others in the place of some, which are nobody's now.
        for connection in known:
            if not storage.is_own(connection):
                storage.discard(connection)
        begin()


def is_soiled(alias: str) -> bool:
    """Tell whether `tidy` would have work to do, apart from the transaction open on `alias`."""
    for connection in _used():
        watcher = _watcher(connection)
        if watcher is not None and (watcher.touched or watcher.touched_transaction):
            return True
        if connection.alias != alias and (_depth(connection) or _in_transaction(connection)):
            return True
    return False


def close_idle() -> None:
    """Close what would not outlive a request: every connection of no or of reached age."""
    for connection in _used():
        if connection.close_at is not None and time.monotonic() >= connection.close_at:
            connection.close()


def close_all() -> None:
    """Close every connection of this thread, whatever its state."""
    for connection in _used():
        discard(connection)


def forget_all() -> None:
    """Let this thread have new connections, whatever becomes of those it has."""
    for alias in connections:
        with suppress(AttributeError):
            del connections[alias]
    begin()


def discard(connection: BaseDatabaseWrapper) -> None:
    """Drop a connection of this thread with whatever is open on it."""
    storage.discard(connection)
    if hasattr(_own, "connections"):
        begin()


def _used() -> list[BaseDatabaseWrapper]:
    known: Sequence[BaseDatabaseWrapper] | None = getattr(_own, "connections", None)
    if known is None:
        known = connections.all(initialized_only=True)
    if not known:
        return []
    return [connection for connection in known if connection.connection is not None]


def _depth(connection: BaseDatabaseWrapper) -> int:
    return connection.in_atomic_block + len(connection.savepoint_ids)


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    raw = connection.connection
    if not isinstance(raw, psycopg.Connection) or raw.closed:
        return False
    return raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def _is_idle(connection: BaseDatabaseWrapper) -> bool:
    raw = connection.connection
    return (
        isinstance(raw, psycopg.Connection)
        and raw.pgconn.transaction_status == TransactionStatus.IDLE
    )


def _is_too_old(connection: BaseDatabaseWrapper) -> bool:
    # With CONN_MAX_AGE = 0 the moment has passed at once; then only idleness closes.
    return (
        connection.settings_dict["CONN_MAX_AGE"] != 0
        and connection.close_at is not None
        and time.monotonic() >= connection.close_at
        and not connection.in_atomic_block
    )


def _is_fit(connection: BaseDatabaseWrapper) -> bool:
    try:
        return bool(connection.is_usable())
    except Exception:
        return False


def _says_gone(error: DjangoError) -> bool:
    cause = error.__cause__
    if isinstance(cause, psycopg.Error) and cause.sqlstate is not None:
        return cause.sqlstate in _GONE or cause.sqlstate[:2] in _GONE_CLASSES
    if isinstance(cause, psycopg.OperationalError):
        return True  # without a state it does not come from the server: the connection broke
    return isinstance(error, OperationalError | InterfaceError) and any(
        _is_broken(connection) for connection in connections.all(initialized_only=True)
    )


def _is_broken(connection: BaseDatabaseWrapper) -> bool:
    if not (connection.errors_occurred or connection.closed_in_transaction):
        return False
    raw: Any = connection.connection
    return raw is None or connection.closed_in_transaction or bool(getattr(raw, "closed", False))


def _chain(exception: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    pending: list[BaseException | None] = [exception]
    while pending:
        error = pending.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        pending.append(kept(error, "__cause__"))
        if not kept(error, "__suppress_context__"):
            pending.append(kept(error, "__context__"))
