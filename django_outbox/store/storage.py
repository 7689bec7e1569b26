"""Where messages are kept: PostgreSQL through a Django connection, or a test's memory.

What publishes, delivers and settles on the caller's own connection does so through a `Storage`, so
that a test can put another one in its place. The worker's loop does not: it has a connection of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from ..conf import settings
from ..messages import Again, Bury, Claimed, Draft, Lease, Release
from . import Cursor, messages
from .messages import Lane, Stored


class Storage(Protocol):
    """The messages of one database, in whatever transaction is open there.

    What settles returns False if the lease is lost.
    """

    alias: str

    @property
    def depth(self) -> int:
        """How many transaction blocks are open, one inside the other."""

    def has_opened(self, depth: int) -> bool:
        """Tell whether a block has been opened, and not closed, since there were `depth`."""

    def atomic(self) -> AbstractContextManager[Any]:
        """Open a transaction, or a savepoint in the open one."""

    def sheltered(self) -> AbstractContextManager[Any]:
        """Keep what breaks the open transaction in the block from breaking it for good."""

    def on_commit(self, hook: Callable[[], None]) -> None:
        """Call `hook` when the open transaction has been committed."""

    def awaits_commit(self, hook: Callable[[], None]) -> bool:
        """Tell whether what `on_commit` was given is still to be called."""

    def forget_hooks(self, owner: object) -> None:
        """Let no method of `owner` be called on commit."""

    def insert(self, draft: Draft) -> int | None:
        """Store a draft; None if its timer is there already and stays as it is."""

    def insert_many(self, drafts: Sequence[Draft]) -> list[int]:
        """Store drafts that differ only in content."""

    def cancel_timer(self, *, queue: str, timer_id: str) -> bool:
        """Delete a timer unless it is leased."""

    def live(self) -> list[Stored]:
        """Return every message, in the order of their claims."""

    def first_due(self, queues: Sequence[str], *, ahead: float) -> str | None:
        """Return the queue of the message that is to be claimed first, None if none is due."""

    def claim(
        self, lanes: Sequence[Lane], *, limit: int, worker_id: str, ahead: float
    ) -> list[Claimed]:
        """Lease what is due, or will be within `ahead` seconds."""

    def fence(self, lease: Lease) -> bool:
        """Keep the lease from changing until the open transaction ends, where that is needed."""

    def complete(self, lease: Lease) -> bool:
        """Remove a delivered message."""

    def retry(self, lease: Lease, outcome: Again) -> bool:
        """Count a failed attempt and put the message off."""

    def bury(self, lease: Lease, outcome: Bury) -> bool:
        """Move a message to the dead letters."""

    def release(self, lease: Lease, outcome: Release) -> bool:
        """Hand a message back."""

    def renew(self, lease: Lease, *, ttl: float) -> bool:
        """Let a lease last `ttl` seconds from now."""


class DjangoStorage:
    """The messages of a PostgreSQL database, on this thread's connection to it."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def depth(self) -> int:
        connection = connections[self.alias]
        return connection.in_atomic_block + len(connection.savepoint_ids)

    def has_opened(self, depth: int) -> bool:
        return self.depth > depth

    def atomic(self) -> AbstractContextManager[Any]:
        return transaction.atomic(using=self.alias)

    @contextmanager
    def sheltered(self) -> Iterator[None]:
        connection = connections[self.alias]
        blocks = list(connection.atomic_blocks)
        savepoints = list(connection.savepoint_ids)
        savepoint = connection.savepoint() if blocks else None
        yield
        if savepoint is None and not blocks and not self.depth:
            connection.close_if_unusable_or_obsolete()  # the handler's session may have gone
            return
        if self.depth > len(savepoints) + bool(blocks):
            # Somebody has left a block open. What was written in it is lost, and the block with it.
            if savepoint is None:
                discard(connection)
                return
            connection.atomic_blocks[:] = blocks
            connection.savepoint_ids[:] = savepoints
            connection.needs_rollback = True
        if savepoint is None:
            return
        if self._is_broken():
            transaction.set_rollback(False, using=self.alias)
            connection.savepoint_rollback(savepoint)
        else:
            connection.savepoint_commit(savepoint)

    def on_commit(self, hook: Callable[[], None]) -> None:
        transaction.on_commit(hook, using=self.alias, robust=True)
        # A hook that raises keeps Django from calling those after it.
        hooks = connections[self.alias].run_on_commit
        if hooks:
            hooks.insert(0, hooks.pop())

    def awaits_commit(self, hook: Callable[[], None]) -> bool:
        # Django drops a hook with the savepoint or transaction that it was registered in.
        return any(hook == pending for _, pending, *_ in connections[self.alias].run_on_commit)

    def forget_hooks(self, owner: object) -> None:
        connection = connections[self.alias]
        connection.run_on_commit = [
            entry for entry in connection.run_on_commit if _owner(entry[1]) is not owner
        ]

    def insert(self, draft: Draft) -> int | None:
        with self._cursor() as cursor:
            return messages.insert(cursor, draft, notify=settings.notify)

    def insert_many(self, drafts: Sequence[Draft]) -> list[int]:
        with self._cursor() as cursor:
            return messages.insert_many(cursor, drafts, notify=settings.notify)

    def cancel_timer(self, *, queue: str, timer_id: str) -> bool:
        with self._cursor() as cursor:
            return messages.cancel_timer(cursor, queue=queue, timer_id=timer_id)

    def live(self) -> list[Stored]:
        with self._cursor() as cursor:
            return messages.live(cursor)

    def first_due(self, queues: Sequence[str], *, ahead: float) -> str | None:
        with self._cursor() as cursor:
            return messages.first_due(cursor, queues, ahead=ahead)

    def claim(
        self, lanes: Sequence[Lane], *, limit: int, worker_id: str, ahead: float
    ) -> list[Claimed]:
        with self._cursor() as cursor:
            return messages.claim(cursor, lanes, limit=limit, worker_id=worker_id, ahead=ahead)

    def fence(self, lease: Lease) -> bool:
        # Under REPEATABLE READ a renewal of the lease in the meantime would make the removal at
        # the end fail to serialize, every time. A renewal skips a locked row.
        with self._cursor() as cursor:
            if not _sees_only_its_snapshot(connections[self.alias].connection, cursor):
                return True
            return messages.lock(cursor, lease)

    def complete(self, lease: Lease) -> bool:
        with self._cursor() as cursor:
            return messages.complete_one(cursor, lease)

    def retry(self, lease: Lease, outcome: Again) -> bool:
        with self._cursor() as cursor:
            return bool(messages.retry(cursor, [lease], [outcome]))

    def bury(self, lease: Lease, outcome: Bury) -> bool:
        with self._cursor() as cursor:
            return bool(messages.bury(cursor, [lease], [outcome]))

    def release(self, lease: Lease, outcome: Release) -> bool:
        with self._cursor() as cursor:
            return bool(messages.release(cursor, [lease], [outcome], notify=settings.notify))

    def renew(self, lease: Lease, *, ttl: float) -> bool:
        with self._cursor() as cursor:
            return bool(messages.renew(cursor, [lease], [ttl]))

    def _is_broken(self) -> bool:
        connection = connections[self.alias]
        status = connection.connection.info.transaction_status
        return connection.needs_rollback or status == TransactionStatus.INERROR

    def _cursor(self) -> AbstractContextManager[Cursor]:
        return connections[self.alias].cursor()


def fence_if_free(alias: str, lease: Lease) -> bool:
    """Keep a lease from changing where `DjangoStorage.fence` would.

    Returns False if it is looked at, and is lost or its row is locked.
    """
    connection = connections[alias]
    if _snapshots.get(connection.connection) is False:
        return True  # as a rule, and spares a cursor for each message
    with connection.cursor() as cursor:
        if not _sees_only_its_snapshot(connection.connection, cursor):
            return True
        return messages.lock_free(cursor, lease)


def complete_many(alias: str, leases: Sequence[Lease]) -> bool:
    """Remove delivered messages in the open transaction; False if one of them was not there."""
    with connections[alias].cursor() as cursor:
        return len(messages.complete_here(cursor, leases)) == len(leases)


def is_whole(alias: str, *, depth: int) -> bool:
    """Tell whether the open transaction can go on, so many blocks deep."""
    connection = connections[alias]
    raw = connection.connection
    return (
        not (connection.needs_rollback or connection.closed_in_transaction)
        and raw is not None
        and raw.info.transaction_status == TransactionStatus.INTRANS
        and connection.in_atomic_block + len(connection.savepoint_ids) == depth
    )


def refuse_rollback(alias: str) -> None:
    """Raise `TransactionManagementError` if the innermost block is to be rolled back."""
    connections[alias].validate_no_broken_transaction()


Hook = Callable[[], object]


def hooks(alias: str) -> list[Any]:
    """Return what is to be called on commit, for `guard_hooks`."""
    return list(connections[alias].run_on_commit)


def guard_hooks(
    alias: str, guard: Callable[[Hook], Hook], *, since: Sequence[Any], spared: type
) -> None:
    """Wrap what is to be called on commit and was not there before, except methods of `spared`."""
    connection = connections[alias]
    # The entries are made anew when a savepoint is rolled back; what they call is not.
    before = {id(hook) for _, hook, *_ in since}
    guarded: list[Any] = []
    for entry in connection.run_on_commit:
        is_known = id(entry[1]) in before or isinstance(_owner(entry[1]), spared)
        guarded.append(entry if is_known else (entry[0], guard(entry[1]), *entry[2:]))
    connection.run_on_commit = guarded


def discard(connection: BaseDatabaseWrapper) -> None:
    """Drop a connection with whatever is open on it; the next use makes a new one.

    `close()` would not do: in an atomic block it leaves the wrapper unusable for good.
    """
    raw: Any = connection.connection
    if raw is not None:
        with suppress(psycopg.Error):
            raw.close()
        if (pool := getattr(connection, "pool", None)) is not None:
            with suppress(ValueError, psycopg.Error):
                pool.putconn(raw)
    if is_own(connection):
        del connections[connection.alias]


def is_own(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether Django has given this thread the connection for its alias.

    It has not if somebody has made one beside it with `connections.create_connection()`.
    """
    return connection.alias in connections and connections[connection.alias] is connection


def _owner(hook: Callable[[], object]) -> object:
    return getattr(hook, "__self__", None)


_snapshots: WeakKeyDictionary[psycopg.Connection[Any], bool] = WeakKeyDictionary()


def _sees_only_its_snapshot(session: psycopg.Connection[Any], cursor: Cursor) -> bool:
    """Tell whether transactions of this session run above READ COMMITTED; asked once for each.

    The level may be set in OPTIONS, but also for the role or the database.
    """
    if session not in _snapshots:
        cursor.execute("SHOW transaction_isolation", {})
        _snapshots[session] = cursor.fetchone()[0] in ("repeatable read", "serializable")
    return _snapshots[session]


Substitute = Callable[[str], Storage]
_substitutes: list[Substitute] = []


def require_postgres(alias: str) -> None:
    """Raise `ImproperlyConfigured` if the database is not PostgreSQL."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise ImproperlyConfigured(
            f"django_outbox needs PostgreSQL, and the database {alias!r} is "
            f"{connection.display_name}. Name another with using=…, or point DATABASES[{alias!r}] "
            "to a PostgreSQL server."
        )


def storage_for(alias: str) -> Storage:
    """Return the storage of a database; raise `ImproperlyConfigured` if it is not PostgreSQL."""
    if _substitutes:
        return _substitutes[-1](alias)
    require_postgres(alias)
    return DjangoStorage(alias)


@contextmanager
def substituted(substitute: Substitute) -> Iterator[None]:
    """Keep messages elsewhere while the block runs."""
    _substitutes.append(substitute)
    try:
        yield
    finally:
        _substitutes.remove(substitute)
