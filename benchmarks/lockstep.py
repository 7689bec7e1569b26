"""A worker whose loop waits for its handlers, so that the same work is the same statements.

How many messages one claim takes, and how many outcomes one settlement, depends on which thread was
quicker. Here the loop wakes only when all threads of its process have come to rest: what was
claimed together has ended by then, and is settled together. That is a loop on a slow processor;
what the worker does is not changed. The wait is put before each of the loop's sleeps, also those
that news cut short, and rest is read from the threads themselves. A process whose loop has never
waited here fails, so that a worker which sleeps elsewhere one day is not counted as if it did.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from django_outbox.worker.wakeup import Wakeup

GLANCE = 0.003
"""Seconds between two looks; a thread that waits for the interpreter wakes each millisecond."""

TASKS = Path("/proc/self/task")

_in_database: dict[int, bool] = {}
_waits = count()


class NotInLockstep(Exception):
    """The worker's loop has passed by what should have held it."""


def is_possible() -> bool:
    """Tell whether the system says what a thread does."""
    return TASKS.exists()


@contextmanager
def kept() -> Iterator[None]:
    """Keep this process in lockstep while the block runs; fail if its loop has never waited."""
    sys.setswitchinterval(GLANCE / 3)
    # A thread that waits for an answer of the database looks like one at rest.
    psycopg.connect = _marked(psycopg.connect)
    psycopg.Connection.wait = _marked(psycopg.Connection.wait)  # type: ignore[method-assign]
    sleep = Wakeup.sleep

    @functools.wraps(sleep)
    def sleep_at_rest(*args: Any, **kwargs: Any) -> bool:
        if threading.current_thread() is threading.main_thread():
            next(_waits)
            _wait_for_rest()
        return sleep(*args, **kwargs)

    Wakeup.sleep = sleep_at_rest  # type: ignore[method-assign]
    try:
        yield
    finally:
        if next(_waits) == 0:
            raise NotInLockstep("The worker's loop has not slept in Wakeup.sleep.")


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_native_id()
        _in_database[thread] = True
        try:
            return function(*args, **kwargs)
        finally:
            del _in_database[thread]

    return marked


def _wait_for_rest() -> None:
    """Wait until no other thread has run, or waited for anything but work, between two looks."""
    before = None
    while (now := _look()) is None or now != before:
        before = now
        time.sleep(GLANCE)


def _look() -> tuple[str, ...] | None:
    """Return how often each other thread has been on a processor; None if one is, or may soon."""
    own = str(threading.get_native_id())
    if any(str(thread) != own for thread in list(_in_database)):
        return None
    seen = []
    for task in TASKS.iterdir():
        if task.name == own:
            continue
        try:
            status = (task / "status").read_text()
        except OSError:
            return None  # it has just ended
        if "\nState:\tS" not in status:
            return None
        seen.append(task.name + status[status.index("voluntary_ctxt_switches") :])
    return tuple(sorted(seen))
