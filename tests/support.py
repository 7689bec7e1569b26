"""What the tests of handlers and workers share.

Everything here runs the real thing: workers on connections of their own, on the test database.
Waiting always has something to wait for, and a deadline at which the test fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import connection, transaction
from django.dispatch import Signal

from django_outbox import handlers, outbox
from django_outbox.models import DeadLetter, OutboxMessage
from django_outbox.worker.loop import Options, Worker

PATIENCE = 10.0
"""Seconds after which what a test waits for will not come."""

committed = pytest.mark.django_db(
    transaction=True, available_apps=["django_outbox", "tests.testapp"]
)
"""For tests whose rows must be committed, as a worker sees them from its own connections."""


def publish(payload: Any = None, queue: str = "orders", **options: Any) -> int:
    """Publish in a transaction of its own and return the id."""
    with transaction.atomic():
        id_ = outbox.publish(payload, queue=queue, **options)
    assert id_ is not None
    return id_


def publish_many(payloads: list[Any], queue: str = "orders", **options: Any) -> list[int]:
    """Publish in a transaction of its own and return the ids."""
    with transaction.atomic():
        return outbox.publish_many(payloads, queue=queue, **options)


def worker(*queues: str, **options: Any) -> Worker:
    """Return a worker for these queues, by default for all that have a handler."""
    registry = handlers.registry
    served = {queue: registry._by_queue[queue] for queue in queues or registry}
    given = {"using": "default", "worker_id": "tester", "concurrency": 1, **options}
    return Worker(served, Options(**given))


def drain(*queues: str, exit_code: int = 0, **options: Any) -> None:
    """Work off in this process what is due."""
    assert worker(*queues, drain=True, **options).run() == exit_code


@contextmanager
def running(*queues: str, exit_code: int = 0, **options: Any) -> Iterator[Worker]:
    """Run a worker in a thread for the block, and stop it in good order afterwards."""
    running_worker = worker(*queues, **options)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(running_worker.run()), daemon=True)
    thread.start()
    try:
        yield running_worker
    finally:
        running_worker.stop()
        thread.join(PATIENCE)
    assert codes == [exit_code]


def wait_until(condition: Callable[[], Any], *, within: float = PATIENCE) -> None:
    """Return when the condition holds; fail when the time is over."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"It did not come true within {within:g} s", pytrace=True)
        time.sleep(0.01)


def wait_for(event: threading.Event, *, within: float = PATIENCE) -> None:
    """Return when the event is set; fail when the time is over."""
    assert event.wait(within), f"It did not happen within {within:g} s"


@contextmanager
def session(**params: Any) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection to the test database that nobody else uses, in autocommit."""
    params = {**connection.get_connection_params(), "cursor_factory": psycopg.Cursor, **params}
    with psycopg.connect(**params, autocommit=True) as own:
        yield own


def steal(id_: int) -> UUID:
    """Lease the message under another token, as another worker's claim does."""
    token = uuid4()
    with session() as other:
        done = other.execute(
            "UPDATE django_outbox_message SET lease_token = %s, leased_by = 'thief',"
            " lease_expires_at = clock_timestamp() + interval '1 minute' WHERE id = %s",
            [token, id_],
        )
        assert done.rowcount == 1
    return token


def make_due(id_: int) -> None:
    """Let the message be due now, whatever retry it waits for."""
    with session() as other:
        other.execute(
            "UPDATE django_outbox_message SET next_attempt_at = clock_timestamp() WHERE id = %s",
            [id_],
        )


def expire_lease(id_: int) -> None:
    """Let the message's lease have run out a moment ago."""
    with session() as other:
        done = other.execute(
            "UPDATE django_outbox_message"
            " SET lease_expires_at = clock_timestamp() - interval '1 millisecond'"
            " WHERE id = %s AND lease_token IS NOT NULL",
            [id_],
        )
        assert done.rowcount == 1


def message_row(id_: int) -> OutboxMessage:
    """Return the live message as it is stored now."""
    return OutboxMessage.objects.get(pk=id_)


def letter_of(id_: int) -> DeadLetter:
    """Return the message's dead letter, and see that the message itself is gone."""
    assert not OutboxMessage.objects.filter(pk=id_).exists()
    return DeadLetter.objects.get(original_id=id_)


@contextmanager
def received(signal: Signal) -> Iterator[list[dict[str, Any]]]:
    """Collect what the signal is sent with during the block."""
    calls: list[dict[str, Any]] = []

    def receive(**kwargs: Any) -> None:
        calls.append(kwargs)

    signal.connect(receive)
    try:
        yield calls
    finally:
        signal.disconnect(receive)


class Gate:
    """A place in a handler where it says that it is there and waits to be let on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def wait(self) -> None:
        """Stop here; called by the handler."""
        self.reached.set()
        assert self.opened.wait(PATIENCE * 3), "Nobody opened the gate"
