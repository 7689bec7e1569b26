"""Handlers that do what the message says and tell the test about it.

`WORKER_JOURNAL` and `WORKER_GATE` name two FIFOs: into the first goes a line for each step, from
the second comes a byte for each handler that may go on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

from django.db import connection

from django_outbox import outbox
from tests.testapp.models import Order


def note(event: str, message: outbox.Message[Any], **what: Any) -> None:
    """Write one line to the journal; lines this short never mix."""
    line = {
        "event": event,
        "pid": os.getpid(),
        "queue": message.queue,
        "id": message.id,
        "message_id": str(message.message_id),
        "attempt": message.attempt,
        "deliveries": message.deliveries_count,
        "payload": message.payload,
        **what,
    }
    journal = os.open(os.environ["WORKER_JOURNAL"], os.O_WRONLY)
    try:
        os.write(journal, json.dumps(line).encode() + b"\n")
    finally:
        os.close(journal)


def wait_at_the_gate() -> None:
    with Path(os.environ["WORKER_GATE"]).open("rb", buffering=0) as gate:
        gate.read(1)


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid: int = cursor.fetchone()[0]
        return pid


@outbox.handler("quick")
def quick(message: outbox.Message[Any]) -> None:
    note("done", message)


@outbox.handler("empty")
def empty(message: outbox.Message[Any]) -> None:
    pass


@outbox.handler("booked")
def booked(message: outbox.Message[Any]) -> None:
    Order.objects.create(name=str(message.payload))


@outbox.handler("booked_once", atomic=True)
def booked_once(message: outbox.Message[Any]) -> None:
    Order.objects.create(name=str(message.payload))


@outbox.handler("gated")
def gated(message: outbox.Message[Any]) -> None:
    note("start", message)
    wait_at_the_gate()
    note("end", message)


@outbox.handler("gated_short", lease_ttl=1.5)
def gated_short(message: outbox.Message[Any]) -> None:
    note("start", message)
    wait_at_the_gate()
    note("end", message)


@outbox.handler("gated_database", "gated_database_2", lease_ttl=30)
def gated_database(message: outbox.Message[Any]) -> None:
    note("start", message, backend=backend())
    wait_at_the_gate()
    Order.objects.create(name=str(message.payload))
    note("end", message)


@outbox.handler("gated_once", atomic=True, lease_ttl=30)
def gated_once(message: outbox.Message[Any]) -> None:
    note("start", message, backend=backend())
    Order.objects.create(name=str(message.payload))
    wait_at_the_gate()


@outbox.handler("gated_batch", atomic=True, atomic_batch=10, lease_ttl=30)
def gated_batch(message: outbox.Message[Any]) -> None:
    Order.objects.create(name=str(message.payload))
    if message.payload == "order 5":
        note("start", message)
        wait_at_the_gate()


@outbox.handler("hung", lease_ttl=1.5)
def hung(message: outbox.Message[Any]) -> None:
    note("start", message)
    if message.deliveries_count == 1:
        threading.Event().wait()
    note("end", message)


@outbox.handler("broken", retry=outbox.ConstantRetry(3600))
def broken(message: outbox.Message[Any]) -> None:
    raise ValueError("broken on purpose")


@outbox.handler("rejecting")
def reject(message: outbox.Message[Any]) -> None:
    raise outbox.Reject("rejected on purpose")


@outbox.handler("numbers")
def take_number(message: outbox.Message[int]) -> None:
    pass


_one_child = threading.Lock()
"""Each start reaps children of other threads too, whose `join` then learns no exit code."""


@outbox.handler("forking")
def fork(message: outbox.Message[Any]) -> None:
    """Start a process that inherits every socket of this one, before and after using its own."""
    Order.objects.create(name=str(message.payload))
    child = multiprocessing.get_context("fork").Process(target=abs, args=[1])
    with _one_child:
        child.start()
        child.join()
    assert child.exitcode == 0
    Order.objects.filter(name=str(message.payload)).update(name=f"{message.payload} done")
