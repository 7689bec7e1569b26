"""What there is about one model object: its live messages and its dead letters, the newest first.

Both statements look at a bounded number of rows, along the index on `ref`; they are materialized,
or the planner may go back along another index to find the newest few.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from . import Cursor
from .moments import within_reach

# Of an error a page shows one line.
MESSAGES = f"""
WITH about AS MATERIALIZED (
    SELECT
        id, queue, timer_id,
        {within_reach("created_at")} AS created_at,
        {within_reach("next_attempt_at")} AS next_attempt_at,
        {within_reach("expires_at")} AS expires_at,
        attempts_count,
        {within_reach("lease_expires_at")} AS lease_expires_at,
        leased_by, left(last_error, 500)
    FROM ONLY django_outbox_message
    WHERE ref = %(ref)s
    LIMIT %(look_at)s
)
SELECT about.*, clock_timestamp() FROM about ORDER BY created_at DESC, id DESC LIMIT %(most)s
"""  # noqa: S608 - nothing but our own text goes into it

LETTERS = f"""
WITH about AS MATERIALIZED (
    SELECT
        id, original_id, queue, timer_id,
        {within_reach("failed_at")} AS failed_at,
        failure_reason, attempts_count, left(last_exception, 500)
    FROM django_outbox_dead_letter
    WHERE ref = %(ref)s
    LIMIT %(look_at)s
)
SELECT about.*, clock_timestamp() FROM about ORDER BY failed_at DESC, id DESC LIMIT %(most)s
"""  # noqa: S608 - nothing but our own text goes into it


class Live(NamedTuple):
    """A message, and the database's clock."""

    id: int
    queue: str
    timer_id: str | None
    created_at: datetime
    next_attempt_at: datetime
    expires_at: datetime | None
    attempts_count: int
    lease_expires_at: datetime | None
    leased_by: str | None
    last_error: str | None
    now: datetime


class Dead(NamedTuple):
    """A dead letter, and the database's clock."""

    id: int
    original_id: int
    queue: str
    timer_id: str | None
    failed_at: datetime
    failure_reason: str
    attempts_count: int
    last_exception: str | None
    now: datetime


def messages(cursor: Cursor, ref: str, *, look_at: int, most: int) -> list[Live]:
    """Return the newest messages about an object, of the `look_at` that are looked at."""
    cursor.execute(MESSAGES, {"ref": ref, "look_at": look_at, "most": most})
    return [Live._make(row) for row in cursor.fetchall()]


def letters(cursor: Cursor, ref: str, *, look_at: int, most: int) -> list[Dead]:
    """Return the newest dead letters about an object, of the `look_at` that are looked at."""
    cursor.execute(LETTERS, {"ref": ref, "look_at": look_at, "most": most})
    return [Dead._make(row) for row in cursor.fetchall()]
