"""The statements on `django_outbox_dead_letter`."""

from __future__ import annotations

from collections.abc import Sequence

from . import Cursor

# A message gets a new id from the sequence before it is inserted, so that the letters that became
# messages can be told from those that met a live timer. Letters locked by another replay are its.
REPLAY = """
WITH letters AS MATERIALIZED (
    SELECT
        dead.*,
        nextval(pg_get_serial_sequence('django_outbox_message', 'id')) AS new_id,
        row_number() OVER (ORDER BY dead.id) AS position
    FROM (
        SELECT * FROM django_outbox_dead_letter
        WHERE id = ANY(%(ids)s)
        ORDER BY id
        FOR UPDATE SKIP LOCKED
    ) AS dead
),
replayed AS (
    INSERT INTO django_outbox_message
        (id, message_id, queue, payload, headers, correlation_id, ref, timer_id, created_at,
         next_attempt_at)
    SELECT
        new_id, message_id, queue, payload, headers, correlation_id, ref, timer_id, created_at,
        clock_timestamp() + (%(first)s + position - 1) * %(step)s * interval '1 second'
    FROM letters
    ORDER BY position
    ON CONFLICT DO NOTHING
    RETURNING id, queue, next_attempt_at
),
removed AS (
    DELETE FROM django_outbox_dead_letter AS dead
    USING letters JOIN replayed ON replayed.id = letters.new_id
    WHERE dead.id = letters.id
),
announced AS MATERIALIZED (
    SELECT pg_notify('django_outbox', queue)
    FROM (
        SELECT DISTINCT queue FROM replayed WHERE next_attempt_at <= clock_timestamp()
    ) AS due
    WHERE %(notify)s
)
SELECT
    (SELECT count(*) FROM replayed),
    (SELECT count(*) FROM letters),
    (SELECT count(*) FROM announced)
"""

DISCARD = """
DELETE FROM django_outbox_dead_letter WHERE id = ANY(%(ids)s) RETURNING id
"""

COUNTS = """
SELECT queue, count(*) FROM django_outbox_dead_letter GROUP BY queue ORDER BY queue
"""


def replay(
    cursor: Cursor, ids: Sequence[int], *, step: float, first: int, notify: bool
) -> tuple[int, int]:
    """Make messages of these letters and return how many, and how many a live timer kept.

    Message number n of the batch is due `(first + n) * step` seconds from now.
    """
    cursor.execute(REPLAY, {"ids": list(ids), "step": step, "first": first, "notify": notify})
    replayed, found, _ = cursor.fetchone()
    return replayed, found - replayed


def discard(cursor: Cursor, ids: Sequence[int]) -> int:
    """Delete these letters and return how many were there."""
    cursor.execute(DISCARD, {"ids": list(ids)})
    return len(cursor.fetchall())


def counts(cursor: Cursor) -> dict[str, int]:
    """Count the dead letters of every queue that has any."""
    cursor.execute(COUNTS, {})
    return dict(cursor.fetchall())
