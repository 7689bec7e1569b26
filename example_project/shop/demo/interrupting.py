"""Ctrl-C, a closed terminal and `kill` all end the demo the same way, and only once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block at the first signal, and ignore all others.

    A test runner or a terminal may send several; a second one must not cut the clearing up short.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a signal wait until the block is done, so that nothing is started and then forgotten."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in SIGNALS
    }
    try:
        yield
    finally:
        _restore(before)
    if came:
        signal.raise_signal(came[0])


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
