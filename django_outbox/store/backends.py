"""Which of the server's processes a statement reaches."""

from __future__ import annotations

from . import Cursor

OWN = "SELECT pg_backend_pid()"


def own(cursor: Cursor) -> int:
    """Return the process that serves this session, as the server knows it."""
    cursor.execute(OWN, {})
    pid: int = cursor.fetchall()[0][0]
    return pid
