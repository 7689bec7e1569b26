"""The clock, and how schedules stand, for people to read."""

from __future__ import annotations

from typing import NamedTuple

from .. import Cursor

CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


def clock(cursor: Cursor) -> float:
    """Return the database's clock in seconds since 1970.

    Datetimes would come naive, in the site's zone, where Django's USE_TZ is off.
    """
    cursor.execute(CLOCK, {})
    now: float = cursor.fetchone()[0]
    return now


class Standing(NamedTuple):
    """How a schedule stands, for people to read; moments in seconds since 1970."""

    name: str
    spec: str
    timezone: str
    queue: str
    enabled: bool
    next_run_at: float | None
    last_run_at: float | None
    last_error: str | None
    skipped_count: int


STANDINGS = """
SELECT
    name, spec, timezone, queue, enabled,
    extract(epoch FROM next_run_at)::float8, extract(epoch FROM last_run_at)::float8,
    last_error, skipped_count
FROM django_outbox_schedule
ORDER BY name
"""


def standings(cursor: Cursor) -> list[Standing]:
    """Return how every schedule stands, by name."""
    cursor.execute(STANDINGS, {})
    return [Standing._make(row) for row in cursor.fetchall()]
