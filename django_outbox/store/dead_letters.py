"""The statements on `django_outbox_dead_letter`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from . import Cursor
from .moments import FIRST, LAST

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

# Else, of a queue whose letters are the newest, a count to some thousand may begin at the other end
# of the table. Bitmaps stay: a search looks into several indexes.
READ_BY_INDEX = """
SELECT
    set_config('enable_seqscan', 'off', true),
    set_config('jit', 'off', true),
    set_config('statement_timeout', %(milliseconds)s, true)
"""

MOMENT_BEFORE = """
SELECT clock_timestamp() - %(seconds)s * interval '1 second'
"""

DISCARD = """
DELETE FROM django_outbox_dead_letter WHERE id = ANY(%(ids)s) RETURNING id
"""

EDIT = """
UPDATE django_outbox_dead_letter SET payload = %(body)s WHERE id = %(id)s RETURNING id
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


def read_by_index(cursor: Cursor, *, seconds: float) -> None:
    """Have what follows in this transaction read by index, and end each statement after a while."""
    cursor.execute(READ_BY_INDEX, {"milliseconds": f"{int(seconds * 1000)}"})


def moment_before(cursor: Cursor, age: timedelta) -> datetime:
    """Return the moment so long before now, on the database's clock."""
    cursor.execute(MOMENT_BEFORE, {"seconds": age.total_seconds()})
    moment: datetime = cursor.fetchone()[0]
    return moment


def discard(cursor: Cursor, ids: Sequence[int]) -> int:
    """Delete these letters and return how many were there."""
    cursor.execute(DISCARD, {"ids": list(ids)})
    return len(cursor.fetchall())


def counts(cursor: Cursor) -> dict[str, int]:
    """Count the dead letters of every queue that has any."""
    cursor.execute(COUNTS, {})
    return dict(cursor.fetchall())


def edit(cursor: Cursor, letter_id: int, body: bytes) -> bool:
    """Write another payload and lock the letter; False if it is gone."""
    cursor.execute(EDIT, {"id": letter_id, "body": body})
    return cursor.fetchone() is not None


# What follows hops from one value to the next along an index, so it costs as many looks at the
# index as there are values, however many letters share them.

QUEUES = """
WITH RECURSIVE found AS (
    (SELECT queue FROM django_outbox_dead_letter ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (
        SELECT letter.queue FROM django_outbox_dead_letter AS letter
        WHERE letter.queue > found.queue ORDER BY letter.queue LIMIT 1
    )
    FROM found
    WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL LIMIT %(most)s
"""

EXCEPTION_CLASSES = """
WITH RECURSIVE found AS (
    (
        SELECT exception_class FROM django_outbox_dead_letter
        WHERE exception_class IS NOT NULL ORDER BY exception_class LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT letter.exception_class FROM django_outbox_dead_letter AS letter
        WHERE letter.exception_class > found.exception_class
        ORDER BY letter.exception_class LIMIT 1
    )
    FROM found
    WHERE found.exception_class IS NOT NULL
)
SELECT exception_class FROM found WHERE exception_class IS NOT NULL LIMIT %(most)s
"""

CAUSES = """
WITH RECURSIVE found AS (
    (
        SELECT queue, failure_reason, fingerprint FROM django_outbox_dead_letter
        WHERE (queue, failure_reason, fingerprint) > (%(queue)s, %(reason)s, %(fingerprint)s)
        ORDER BY queue, failure_reason, fingerprint
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue, following.failure_reason, following.fingerprint
    FROM found
    CROSS JOIN LATERAL (
        SELECT letter.queue, letter.failure_reason, letter.fingerprint
        FROM django_outbox_dead_letter AS letter
        WHERE (letter.queue, letter.failure_reason, letter.fingerprint)
            > (found.queue, found.failure_reason, found.fingerprint)
        ORDER BY letter.queue, letter.failure_reason, letter.fingerprint
        LIMIT 1
    ) AS following
)
SELECT queue, failure_reason, fingerprint FROM found LIMIT %(most)s
"""

GROUPS = """
SELECT
    cause.queue, cause.failure_reason, cause.fingerprint,
    newest.exception_class, newest.head, counted.letters,
    least(greatest(oldest.failed_at, %(first)s), %(last)s),
    least(greatest(newest.failed_at, %(first)s), %(last)s)
FROM unnest(%(queues)s::varchar[], %(reasons)s::varchar[], %(fingerprints)s::varchar[])
    AS cause (queue, failure_reason, fingerprint)
CROSS JOIN LATERAL (
    SELECT exception_class, left(last_exception, %(head)s) AS head, failed_at
    FROM django_outbox_dead_letter AS letter
    WHERE (letter.queue, letter.failure_reason, letter.fingerprint)
        = (cause.queue, cause.failure_reason, cause.fingerprint)
    ORDER BY failed_at DESC
    LIMIT 1
) AS newest
CROSS JOIN LATERAL (
    SELECT failed_at
    FROM django_outbox_dead_letter AS letter
    WHERE (letter.queue, letter.failure_reason, letter.fingerprint)
        = (cause.queue, cause.failure_reason, cause.fingerprint)
    ORDER BY failed_at
    LIMIT 1
) AS oldest
CROSS JOIN LATERAL (
    SELECT count(*) AS letters
    FROM (
        SELECT 1 FROM django_outbox_dead_letter AS letter
        WHERE (letter.queue, letter.failure_reason, letter.fingerprint)
            = (cause.queue, cause.failure_reason, cause.fingerprint)
        LIMIT %(most_counted)s
    ) AS letter
) AS counted
"""


class Cause(NamedTuple):
    """What identifies a group of letters; the empty one comes before all others."""

    queue: str = ""
    failure_reason: str = ""
    fingerprint: str = ""


class Group(NamedTuple):
    """The letters of one cause; class and error are those of the newest."""

    cause: Cause
    exception_class: str | None
    head: str | None
    letters: int
    first_seen: datetime
    last_seen: datetime


def queues(cursor: Cursor, *, most: int) -> list[str]:
    """Return the queues that have letters, in the order of their names."""
    cursor.execute(QUEUES, {"most": most})
    return [queue for (queue,) in cursor.fetchall()]


def exception_classes(cursor: Cursor, *, most: int) -> list[str]:
    """Return the exception classes of letters, in the order of their names."""
    cursor.execute(EXCEPTION_CLASSES, {"most": most})
    return [name for (name,) in cursor.fetchall()]


def causes(cursor: Cursor, *, after: Cause, most: int) -> list[Cause]:
    """Return the causes that letters have, in order, from the one after `after` on."""
    cursor.execute(
        CAUSES,
        {
            "queue": after.queue,
            "reason": after.failure_reason,
            "fingerprint": after.fingerprint,
            "most": most,
        },
    )
    return [Cause._make(row) for row in cursor.fetchall()]


def groups(cursor: Cursor, causes: Sequence[Cause], *, most_counted: int, head: int) -> list[Group]:
    """Return the letters of these causes, each counted up to `most_counted`.

    Of the newest letter's error the first `head` characters are read.
    """
    cursor.execute(
        GROUPS,
        {
            "queues": [cause.queue for cause in causes],
            "reasons": [cause.failure_reason for cause in causes],
            "fingerprints": [cause.fingerprint for cause in causes],
            "most_counted": most_counted,
            "head": head,
            "first": FIRST,
            "last": LAST,
        },
    )
    return [Group(Cause(*row[:3]), *row[3:]) for row in cursor.fetchall()]
