"""The handlers that are measured: as little as possible in each."""

from __future__ import annotations

import os
import time
from itertools import count
from typing import Any

from django.db import connection

from benchmarks.marks import MARK_EVERY
from django_outbox import outbox


@outbox.handler("empty")
def empty(message: outbox.Message[Any]) -> None:
    """Do nothing."""


@outbox.handler("atomic", atomic=True)
def atomic(message: outbox.Message[Any]) -> None:
    """Insert one row in the transaction that settles the message."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO bench_effect (message) VALUES (%s)", [message.id])


@outbox.handler("atomic_b10", atomic=True, atomic_batch=10)
def atomic_b10(message: outbox.Message[Any]) -> None:
    """Do the same in a transaction that ten messages share."""
    atomic(message)


@outbox.handler("latency")
def latency(message: outbox.Message[Any]) -> None:
    """Tell the benchmark when this line was reached, by the clock all processes share."""
    os.write(int(os.environ["BENCH_PIPE"]), f"{time.monotonic()}\n".encode())


_handled = count(1)


@outbox.handler("marked")
def marked(message: outbox.Message[Any]) -> None:
    """Tell the benchmark when every thousandth message was reached."""
    if next(_handled) % MARK_EVERY == 0:
        os.write(int(os.environ["BENCH_PIPE"]), f"{time.monotonic()}\n".encode())


@outbox.handler("lateness")
def lateness(message: outbox.Message[Any]) -> None:
    """Tell the benchmark how many milliseconds after its deadline the timer has fired."""
    late = (time.time() - message.payload) * 1000
    os.write(int(os.environ["BENCH_PIPE"]), f"{late}\n".encode())


@outbox.handler("soak")
def soak(message: outbox.Message[Any]) -> None:
    """Tell how many milliseconds ago the message was made."""
    late = (time.monotonic() - message.payload) * 1000
    os.write(int(os.environ["BENCH_PIPE"]), f"{late}\n".encode())


@outbox.handler("soak_failing", retry=outbox.ConstantRetry(1))
def soak_failing(message: outbox.Message[Any]) -> None:
    """Fail once."""
    if message.attempt == 1:
        raise ValueError("the first time")


@outbox.handler("soak_timers", "soak_scheduled")
def soak_quietly(message: outbox.Message[Any]) -> None:
    """Do nothing."""
