"""Insert messages, and move or cancel timers.

The deadline is taken once in each statement, from `clock_timestamp()`: `now()` stands still inside
the caller's transaction. Durations come as seconds, since an interval of days would follow the
session's time zone through a change to or from summer time.

Django's cursor prepares nothing, so that PostgreSQL parses and plans each statement anew: for one
message that is much of the work. So the statement that most messages take is the shortest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from json.encoder import encode_basestring_ascii as quoted

from ...messages import Draft
from .. import Cursor
from ..arrays import array_of_bytes

# One of the moment and the delay is NULL, which LEAST passes over.
DEADLINE = """LEAST(
        %(activate_at)s::timestamptz,
        clock_timestamp() + %(activate_in)s::float8 * interval '1 second',
        '9999-12-31 23:59:59.999999Z'
    )"""

RETURNING = """RETURNING id,
    CASE WHEN %(notify)s AND next_attempt_at <= clock_timestamp()
        THEN pg_notify('django_outbox', queue)
    END"""

INSERT = f"""
INSERT INTO django_outbox_message
    (queue, payload, headers, correlation_id, ref, max_attempts, next_attempt_at)
VALUES (
    %(queue)s, %(body)s, %(headers)s::jsonb, %(correlation_id)s, %(ref)s,
    %(max_attempts)s::integer, {DEADLINE}
)
{RETURNING}
"""  # noqa: S608 - joined once, of constants

# A message that expires, or a timer. The expiry counts from the deadline, which must be taken once.
INSERT_UNLESS_THERE = f"""
INSERT INTO django_outbox_message
    (queue, payload, headers, correlation_id, ref, timer_id, max_attempts,
     next_attempt_at, expires_at)
SELECT
    %(queue)s, %(body)s, %(headers)s::jsonb, %(correlation_id)s, %(ref)s, %(timer_id)s,
    %(max_attempts)s::integer,
    deadline.at, deadline.at + %(expires_in)s::float8 * interval '1 second'
FROM (SELECT {DEADLINE}) AS deadline (at)
ON CONFLICT (queue, timer_id) WHERE timer_id IS NOT NULL DO NOTHING
{RETURNING}
"""  # noqa: S608 - joined once, of constants

# A pending timer takes the new deadline, and with it the new content and a fresh start, when it is
# to be replaced or when the new deadline is strictly later. A leased one is left to its worker.
# Only the choice between the two versions knows whether anything changed, so a timer that was moved
# is notified of there; a row that was inserted has no xmax.
MOVE_TIMER = f"""
INSERT INTO django_outbox_message AS live
    (queue, payload, headers, correlation_id, ref, timer_id, max_attempts,
     next_attempt_at, expires_at)
SELECT
    %(queue)s, %(body)s, %(headers)s::jsonb, %(correlation_id)s, %(ref)s, %(timer_id)s,
    %(max_attempts)s::integer,
    deadline.at, deadline.at + %(expires_in)s::float8 * interval '1 second'
FROM (SELECT {DEADLINE}) AS deadline (at)
ON CONFLICT (queue, timer_id) WHERE timer_id IS NOT NULL DO UPDATE SET
    (payload, headers, correlation_id, ref, max_attempts, next_attempt_at, expires_at,
     attempts_count, first_attempt_at, last_attempt_at, last_error) = (
        SELECT
            version.payload, version.headers, version.correlation_id, version.ref,
            version.max_attempts,
            version.next_attempt_at, version.expires_at, version.attempts_count,
            version.first_attempt_at, version.last_attempt_at, version.last_error
        FROM (VALUES
            (true, excluded.payload, excluded.headers, excluded.correlation_id, excluded.ref,
             excluded.max_attempts, excluded.next_attempt_at, excluded.expires_at,
             0, NULL, NULL, NULL),
            (false, live.payload, live.headers, live.correlation_id, live.ref,
             live.max_attempts, live.next_attempt_at, live.expires_at,
             live.attempts_count, live.first_attempt_at, live.last_attempt_at,
             live.last_error)
        ) AS version
            (is_new, payload, headers, correlation_id, ref, max_attempts, next_attempt_at,
             expires_at, attempts_count, first_attempt_at, last_attempt_at, last_error)
        WHERE CASE
            WHEN version.is_new
                <> (%(replace)s OR excluded.next_attempt_at > live.next_attempt_at)
            THEN false
            WHEN version.is_new AND %(notify)s
                AND excluded.next_attempt_at <= clock_timestamp()
            THEN pg_notify('django_outbox', live.queue) IS NOT NULL
            ELSE true
        END
    )
WHERE live.lease_token IS NULL
RETURNING live.id,
    CASE WHEN %(notify)s AND live.xmax = 0 AND live.next_attempt_at <= clock_timestamp()
        THEN pg_notify('django_outbox', live.queue)
    END
"""  # noqa: S608 - joined once, of constants


def insert(cursor: Cursor, draft: Draft, *, notify: bool) -> int | None:
    """Store the draft and return its id; None if its timer is there already and stays as it is."""
    params = {
        "queue": draft.queue,
        "body": draft.body,
        "headers": _as_json(draft.headers),
        "correlation_id": draft.correlation_id,
        "ref": draft.ref,
        "timer_id": draft.timer_id,
        "max_attempts": draft.max_attempts,
        "activate_at": draft.activate_at,
        "activate_in": _delay(draft),
        "expires_in": _seconds(draft.expires_in),
        "notify": notify,
    }
    if draft.timer_conflict != "ignore":
        cursor.execute(MOVE_TIMER, {**params, "replace": draft.timer_conflict == "replace"})
    elif draft.timer_id is None and draft.expires_in is None:
        cursor.execute(INSERT, params)
    else:
        cursor.execute(INSERT_UNLESS_THERE, params)
    row = cursor.fetchone()
    return None if row is None else row[0]


# The texts come as JSON, as psycopg writes each item of an array in Python.
INSERT_MANY = f"""
WITH stored AS (
    INSERT INTO django_outbox_message
        (queue, payload, headers, correlation_id, max_attempts, next_attempt_at, expires_at)
    SELECT
        %(queue)s, draft.body, draft.headers::jsonb, draft.correlation_id,
        %(max_attempts)s::integer,
        deadline.at, deadline.at + %(expires_in)s::float8 * interval '1 second'
    FROM (SELECT {DEADLINE}) AS deadline (at)
    CROSS JOIN ROWS FROM (
        unnest(%(bodies)s::bytea[]),
        json_array_elements(%(headers)s::json),
        json_array_elements_text(%(correlation_ids)s::json)
    ) WITH ORDINALITY AS draft (body, headers, correlation_id, position)
    ORDER BY draft.position
    RETURNING id, next_attempt_at
),
announced AS MATERIALIZED (
    SELECT pg_notify('django_outbox', %(queue)s)
    FROM stored
    WHERE %(notify)s AND next_attempt_at <= clock_timestamp()
    LIMIT 1
)
SELECT id, (SELECT count(*) FROM announced) FROM stored ORDER BY id
"""  # noqa: S608 - joined once, of constants


def insert_many(cursor: Cursor, drafts: Sequence[Draft], *, notify: bool) -> list[int]:
    """Store drafts that differ only in content and return their ids, in the same order."""
    common = drafts[0]
    cursor.execute(
        INSERT_MANY,
        {
            "queue": common.queue,
            "max_attempts": common.max_attempts,
            "activate_at": common.activate_at,
            "activate_in": _delay(common),
            "expires_in": _seconds(common.expires_in),
            "bodies": array_of_bytes(draft.body for draft in drafts),
            "headers": json.dumps([draft.headers for draft in drafts]),
            "correlation_ids": json.dumps([draft.correlation_id for draft in drafts]),
            "notify": notify,
        },
    )
    return [row[0] for row in cursor.fetchall()]


CANCEL_TIMER = """
DELETE FROM ONLY django_outbox_message
WHERE queue = %(queue)s AND timer_id = %(timer_id)s AND lease_token IS NULL
RETURNING id
"""


def cancel_timer(cursor: Cursor, *, queue: str, timer_id: str) -> bool:
    """Delete the timer unless it is leased; tell whether there was one."""
    cursor.execute(CANCEL_TIMER, {"queue": queue, "timer_id": timer_id})
    return cursor.fetchone() is not None


def _as_json(headers: Mapping[str, str]) -> str:
    """Return what `json.dumps` would, in a fraction of the time: all are strings."""
    return f"{{{','.join([f'{quoted(name)}:{quoted(text)}' for name, text in headers.items()])}}}"


def _delay(draft: Draft) -> float | None:
    return None if draft.activate_at else draft.activate_in.total_seconds()


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
