"""What the tests do to a real database: claim and fail as a worker does, listen, run at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import psycopg
import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_outbox.messages import Again, Claimed
from django_outbox.models import OutboxMessage
from django_outbox.store import messages as store

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds to wait for what must come, before a test fails."""

committed = pytest.mark.django_db(
    transaction=True, available_apps=["django_outbox", "tests.testapp"]
)
"""For tests whose transactions must really commit."""


def row(message_id: int | None, using: str = "default") -> OutboxMessage:
    """Return the message as it is stored now."""
    assert message_id is not None
    return OutboxMessage.objects.using(using).get(pk=message_id)


def stored_payload(message_id: int | None, using: str = "default") -> Any:
    """Return the stored JSON as Python values."""
    return json.loads(bytes(row(message_id, using).payload))


def database_clock(using: str = "default") -> datetime:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
        return moment


def claim(queue: str, *, lease_ttl: float = 60.0, limit: int = 1) -> list[Claimed]:
    """Claim due messages as a worker does, in the transaction that is open."""
    with connections["default"].cursor() as cursor:
        return store.claim(
            cursor, [store.Lane(queue, lease_ttl)], limit=limit, worker_id="a worker"
        )


def fail(claimed: Claimed, *, delay: float, error: str = "it broke") -> None:
    """Settle a claimed message as failed, to be tried again after `delay` seconds."""
    with connections["default"].cursor() as cursor:
        failure = Again(delay=delay, exception=RuntimeError(error), error=error)
        assert store.retry(cursor, [claimed.lease], [failure]) == {claimed.id}


def complete(claimed: Claimed) -> None:
    """Settle a claimed message as done."""
    with connections["default"].cursor() as cursor:
        assert store.complete_one(cursor, claimed.lease)


@contextmanager
def without_sql(using: str = "default") -> Iterator[None]:
    """Fail if the block runs any statement."""
    with CaptureQueriesContext(connections[using]) as queries:
        yield
    assert [query["sql"] for query in queries] == []


class Listener:
    """A session of its own that LISTENs as a worker does."""

    def __init__(self, using: str = "default") -> None:
        params = connections[using].get_connection_params()
        self._session = psycopg.connect(**params, autocommit=True)
        self._session.execute("LISTEN django_outbox")

    def heard(self) -> list[str]:
        """Return the payloads of the notifications committed since the last call.

        Notifications arrive in the order of their commits, so a last one of our own marks the end.
        """
        self._session.execute("NOTIFY django_outbox, '(the end)'")
        payloads: list[str] = []
        for notification in self._session.notifies(timeout=PATIENCE):
            if notification.payload == "(the end)":
                return payloads
            payloads.append(notification.payload)
        raise AssertionError("PostgreSQL does not deliver notifications")

    def close(self) -> None:
        self._session.close()


class Together:
    """Functions that run at the same time, each in a thread with its own connections."""

    def __init__(self, threads: int = 10) -> None:
        self._pool = ThreadPoolExecutor(threads)

    def start(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        def run() -> T:
            try:
                return function(*args, **kwargs)
            finally:
                connections.close_all()

        return self._pool.submit(run)

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Run them all and return what they return, in their order."""
        return [future.result(PATIENCE) for future in [self.start(f) for f in functions]]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def wait_until_blocked(future: Future[Any], by: int) -> None:
    """Return when some session waits for a lock that the backend `by` holds.

    Not read from pg_stat_activity, which stands still inside a transaction.
    """
    deadline = time.monotonic() + PATIENCE
    with connections["default"].cursor() as cursor:
        while time.monotonic() < deadline:
            assert not future.done(), f"It did not wait: {future.result()!r}"
            cursor.execute(
                "SELECT count(*) FROM pg_locks"
                " WHERE NOT granted AND %s = ANY(pg_blocking_pids(pid))",
                [by],
            )
            if cursor.fetchone()[0]:
                return
    raise AssertionError("It never waited for the lock")


def backend_pid() -> int:
    """Return the process id of this thread's database session."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid: int = cursor.fetchone()[0]
        return pid
