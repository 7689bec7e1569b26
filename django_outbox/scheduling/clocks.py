"""The database's clock, as an aware datetime in UTC whatever Django is set to."""

from __future__ import annotations

from datetime import UTC, datetime

from ..store import Cursor
from ..store import schedules as store


def clock(cursor: Cursor) -> datetime:
    """Return the database's clock."""
    return as_utc(store.clock(cursor))


def as_utc(epoch: float) -> datetime:
    """Return seconds since 1970 as a datetime."""
    return datetime.fromtimestamp(epoch, UTC)
