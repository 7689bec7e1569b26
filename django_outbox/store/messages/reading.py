"""Read what is there, for tests and for people."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from .. import Cursor


class Stored(NamedTuple):
    """A live message as it stands; moments in seconds since 1970."""

    id: int
    message_id: UUID
    queue: str
    body: bytes
    headers: str
    correlation_id: str
    timer_id: str | None
    attempts_count: int
    deliveries_count: int
    created_at: float
    next_attempt_at: float
    expires_at: float | None


LIVE = """
SELECT
    id, message_id, queue, payload, headers::text, correlation_id, timer_id,
    attempts_count, deliveries_count,
    extract(epoch FROM created_at)::float8,
    extract(epoch FROM next_attempt_at)::float8,
    extract(epoch FROM expires_at)::float8
FROM django_outbox_message
ORDER BY next_attempt_at, id
"""


def live(cursor: Cursor) -> list[Stored]:
    """Return all messages in the order of their claims."""
    cursor.execute(LIVE, {})
    return [Stored._make(row) for row in cursor.fetchall()]


class QueueCounts(NamedTuple):
    """What one queue holds; `oldest_ready` is for how many seconds a message has been due."""

    queue: str
    ready: int
    leased: int
    scheduled: int
    retrying: int
    oldest_ready: float | None


COUNTS = """
SELECT
    queue,
    count(*) FILTER (WHERE next_attempt_at <= statement_timestamp()
        AND (lease_expires_at IS NULL OR lease_expires_at < statement_timestamp())),
    count(*) FILTER (WHERE lease_expires_at >= statement_timestamp()),
    count(*) FILTER (WHERE next_attempt_at > statement_timestamp() AND attempts_count = 0
        AND lease_expires_at IS NULL),
    count(*) FILTER (WHERE next_attempt_at > statement_timestamp() AND attempts_count > 0
        AND lease_expires_at IS NULL),
    extract(epoch FROM statement_timestamp())::float8
        - extract(epoch FROM min(next_attempt_at) FILTER (WHERE next_attempt_at <= statement_timestamp()
            AND (lease_expires_at IS NULL OR lease_expires_at < statement_timestamp())))::float8
FROM django_outbox_message
GROUP BY queue
ORDER BY queue
"""


def counts(cursor: Cursor) -> list[QueueCounts]:
    """Count the messages of every queue that has any, by state."""
    cursor.execute(COUNTS, {})
    return [QueueCounts(*row) for row in cursor.fetchall()]
