"""Read what is there, for tests and for people."""

from __future__ import annotations

from decimal import Decimal
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
    created_at: Decimal | float
    next_attempt_at: Decimal | float
    expires_at: Decimal | float | None
    max_attempts: int | None
    last_error: str | None

    def __repr__(self) -> str:
        return f"<Stored {self.id} queue={self.queue!r}>"


LIVE = """
SELECT
    id, message_id, queue, payload, headers::text, correlation_id, timer_id,
    attempts_count, deliveries_count,
    extract(epoch FROM created_at), extract(epoch FROM next_attempt_at),
    extract(epoch FROM expires_at), max_attempts, last_error
FROM ONLY django_outbox_message
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
    count(*) FILTER (WHERE next_attempt_at <= clock.now AND is_free),
    count(*) FILTER (WHERE NOT is_free),
    count(*) FILTER (WHERE next_attempt_at > clock.now AND is_free AND attempts_count = 0),
    count(*) FILTER (WHERE next_attempt_at > clock.now AND is_free AND attempts_count > 0),
    extract(epoch FROM min(clock.now))::float8 - extract(
        epoch FROM min(next_attempt_at) FILTER (WHERE next_attempt_at <= clock.now AND is_free)
    )::float8
FROM (SELECT statement_timestamp() AS now) AS clock
CROSS JOIN LATERAL (
    SELECT queue, next_attempt_at, attempts_count,
        lease_expires_at IS NULL OR lease_expires_at < clock.now AS is_free
    FROM ONLY django_outbox_message
) AS message
GROUP BY queue
ORDER BY queue
"""


def counts(cursor: Cursor) -> list[QueueCounts]:
    """Count the messages of every queue that has any, by state."""
    cursor.execute(COUNTS, {})
    return [QueueCounts(*row) for row in cursor.fetchall()]
