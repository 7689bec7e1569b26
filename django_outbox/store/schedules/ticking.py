"""Lock what is due, insert the messages that it fires, and move the boundaries on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from .. import Cursor


class Candidate(NamedTuple):
    """A schedule that is due or has to be planned anew; moments in seconds since 1970."""

    id: int
    name: str
    spec: str
    timezone: str
    queue: str
    payload_size: int
    headers: str
    max_attempts: int | None
    expires_in: float | None
    catch_up: str
    next_run_at: float | None
    planned_for: str
    plan_from: float | None

    def __repr__(self) -> str:
        return f"<Candidate {self.name!r}>"


# What somebody else has locked, another tick or a person who edits, is passed over: the others need
# not wait for it, and a later tick finds it as it is then.
LOCK_DUE = """
SELECT id FROM django_outbox_schedule
WHERE tick_at <= %(now)s
ORDER BY tick_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED
"""


def lock_due(cursor: Cursor, *, now: datetime, limit: int) -> list[int]:
    """Lock what is due at `now` or has to be planned anew, and return the ids."""
    cursor.execute(LOCK_DUE, {"now": now, "limit": limit})
    return [row[0] for row in cursor.fetchall()]


READ = """
SELECT
    id, name, spec, timezone, queue, octet_length(payload), headers::text, max_attempts,
    extract(epoch FROM expires_in)::float8, catch_up,
    extract(epoch FROM next_run_at)::float8, planned_for, extract(epoch FROM plan_from)::float8
FROM django_outbox_schedule
WHERE id = ANY(%(ids)s)
ORDER BY tick_at, id
"""


def read(cursor: Cursor, ids: Sequence[int]) -> list[Candidate]:
    """Return these schedules as they are now."""
    cursor.execute(READ, {"ids": list(ids)})
    return [Candidate._make(row) for row in cursor.fetchall()]


HOLD = """
SELECT id FROM django_outbox_schedule WHERE id = %(id)s FOR SHARE
"""


def hold(cursor: Cursor, schedule_id: int) -> bool:
    """Keep a schedule as it is until this transaction ends; tell whether there is one."""
    cursor.execute(HOLD, {"id": schedule_id})
    return cursor.fetchone() is not None


class Fire(NamedTuple):
    """A message to insert for a schedule.

    The boundary is the text for its header, `max_attempts` what holds if the schedule says nothing.
    """

    schedule_id: int
    boundary: str
    max_attempts: int | None


# What a message gets is taken from its schedule here, where it is locked: 64 boundaries of a large
# payload would otherwise have to be sent 64 times.
FIRE = """
WITH stored AS (
    INSERT INTO django_outbox_message
        (queue, payload, headers, max_attempts, next_attempt_at, expires_at)
    SELECT
        schedule.queue, schedule.payload,
        schedule.headers || jsonb_build_object(
            'schedule', schedule.name, 'boundary', fire.boundary
        ),
        COALESCE(schedule.max_attempts, fire.max_attempts), clock.now,
        LEAST(
            clock.now + extract(epoch FROM schedule.expires_in)::float8 * interval '1 second',
            CASE WHEN schedule.expires_in IS NOT NULL THEN timestamptz '9999-12-31 23:59:59Z' END
        )
    FROM unnest(%(ids)s::bigint[], %(boundaries)s::text[], %(max_attempts)s::integer[])
        WITH ORDINALITY AS fire (schedule_id, boundary, max_attempts, position)
    JOIN django_outbox_schedule AS schedule ON schedule.id = fire.schedule_id
    CROSS JOIN (SELECT clock_timestamp() AS now) AS clock
    ORDER BY fire.position
    RETURNING id, queue
),
announced AS MATERIALIZED (
    SELECT pg_notify('django_outbox', queue)
    FROM (SELECT DISTINCT queue FROM stored) AS fired
    WHERE %(notify)s
)
SELECT id, (SELECT count(*) FROM announced) FROM stored ORDER BY id
"""


def fire(cursor: Cursor, fires: Sequence[Fire], *, notify: bool) -> list[int]:
    """Insert a message for each fire, due now, and return the ids in the same order."""
    cursor.execute(
        FIRE,
        {
            "ids": [one.schedule_id for one in fires],
            "boundaries": [one.boundary for one in fires],
            "max_attempts": [one.max_attempts for one in fires],
            "notify": notify,
        },
    )
    return [row[0] for row in cursor.fetchall()]


CHECK_NOW = """
SET CONSTRAINTS ALL IMMEDIATE
"""


def check_now(cursor: Cursor) -> None:
    """Have deferred constraints speak now, while it is known whose fault it is."""
    cursor.execute(CHECK_NOW, {})


class Advance(NamedTuple):
    """How a schedule stands after a tick; without a fired boundary only the plan changes."""

    schedule_id: int
    next_run_at: datetime
    planned_for: str
    skipped: int
    fired_boundary: datetime | None
    message_id: int | None


ADVANCE = """
UPDATE django_outbox_schedule AS schedule
SET next_run_at = advance.next_run_at,
    planned_for = advance.planned_for,
    plan_from = NULL,
    skipped_count = schedule.skipped_count + advance.skipped,
    last_boundary_at = COALESCE(advance.fired_boundary, schedule.last_boundary_at),
    last_run_at = CASE WHEN advance.message_id IS NULL THEN schedule.last_run_at
        ELSE clock_timestamp() END,
    last_message_id = COALESCE(advance.message_id, schedule.last_message_id),
    last_error = NULL,
    retry_at = NULL
FROM unnest(
    %(ids)s::bigint[], %(next_run_ats)s::timestamptz[], %(planned_fors)s::text[],
    %(skipped)s::bigint[], %(fired_boundaries)s::timestamptz[], %(message_ids)s::bigint[]
) AS advance (id, next_run_at, planned_for, skipped, fired_boundary, message_id)
WHERE schedule.id = advance.id
RETURNING schedule.id
"""


def advance(cursor: Cursor, advances: Sequence[Advance]) -> int:
    """Write how these schedules stand, and that nothing is wrong with them; return how many."""
    cursor.execute(
        ADVANCE,
        {
            "ids": [one.schedule_id for one in advances],
            "next_run_ats": [one.next_run_at for one in advances],
            "planned_fors": [one.planned_for for one in advances],
            "skipped": [one.skipped for one in advances],
            "fired_boundaries": [one.fired_boundary for one in advances],
            "message_ids": [one.message_id for one in advances],
        },
    )
    return len(cursor.fetchall())


FAIL = """
UPDATE django_outbox_schedule
SET last_error = %(error)s, retry_at = %(now)s + interval '1 minute'
WHERE id = %(id)s
"""


def fail(cursor: Cursor, schedule_id: int, error: str, *, now: datetime) -> None:
    """Record why a schedule could not be fired; it keeps its boundary and rests for a minute."""
    cursor.execute(FAIL, {"id": schedule_id, "error": error, "now": now})


SOONEST = """
SELECT
    (SELECT extract(epoch FROM min(tick_at))::float8 FROM django_outbox_schedule) - clock.epoch,
    (
        SELECT extract(epoch FROM min(tick_at))::float8
        FROM django_outbox_schedule
        WHERE tick_at > clock.now - %(lately)s * interval '1 second'
    ) - clock.epoch
FROM (
    SELECT
        statement_timestamp() AS now, extract(epoch FROM statement_timestamp())::float8 AS epoch
) AS clock
"""


def soonest(cursor: Cursor, *, lately: float) -> tuple[float | None, float | None]:
    """Return the seconds until a tick has something to do, negative if it is overdue.

    And the same leaving out what has been overdue for longer than `lately` seconds.
    """
    cursor.execute(SOONEST, {"lately": lately})
    first, following = cursor.fetchone()
    return first, following


BOUND_WAITS = """
SELECT
    set_config('idle_in_transaction_session_timeout', %(idle)s, true),
    set_config('lock_timeout', %(lock)s, true),
    set_config('statement_timeout', %(statement)s, true)
"""


def bound_waits(cursor: Cursor, *, idle: float, lock: float, statement: float) -> None:
    """Have the server give up after so many seconds: of silence, for a lock, in a statement."""
    waits = {"idle": idle, "lock": lock, "statement": statement}
    cursor.execute(BOUND_WAITS, {name: f"{int(seconds * 1000)}" for name, seconds in waits.items()})
