"""Moments that Python can hold, of columns that may hold others.

PostgreSQL has `infinity`, which is what people write to park a message, and years beyond 9999. A
page that only shows moments reads them no further off than `FIRST` and `LAST`.
"""

from __future__ import annotations

from datetime import UTC, datetime

# A day and more inside of what Python holds, so that any time zone can show them.
FIRST = datetime(1, 1, 3, tzinfo=UTC)
LAST = datetime(9999, 12, 29, tzinfo=UTC)


def within_reach(column: str) -> str:
    """Return the SQL that reads a column no further off than `FIRST` and `LAST`."""
    return (
        f"CASE WHEN {column} > timestamptz '{LAST.isoformat()}' "
        f"THEN timestamptz '{LAST.isoformat()}' "
        f"WHEN {column} < timestamptz '{FIRST.isoformat()}' "
        f"THEN timestamptz '{FIRST.isoformat()}' "
        f"ELSE {column} END"
    )
