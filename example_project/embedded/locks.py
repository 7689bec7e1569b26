"""Advisory file locks.

A lock belongs to the open file, not to the process: it is shared with forked and with chosen child
processes, and the system drops it when the last of them has closed the file or died. So nothing
here unlocks; closing does.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def take(path: Path, *, shared: bool = False) -> int:
    """Wait for the lock and return the file descriptor that holds it."""
    descriptor = _open(path)
    fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    return descriptor


def try_take(path: Path) -> int | None:
    """Return the file descriptor that holds the lock, or ``None`` while another does."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold the lock for the length of a block."""
    descriptor = take(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
