"""The statements on `django_outbox_schedule`, and the one that inserts what is fired."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from . import Cursor

CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


def clock(cursor: Cursor) -> float:
    """Return the database's clock in seconds since 1970.

    Datetimes would come naive, in the site's zone, where Django's USE_TZ is off.
    """
    cursor.execute(CLOCK, {})
    now: float = cursor.fetchone()[0]
    return now


def planned_for(spec: str, timezone: str) -> str:
    """Return what a next boundary was worked out for, as the column `tick_at` compares it."""
    return f"{spec} {timezone}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A schedule that is validated and encoded, and is to be written."""

    name: str
    spec: str
    timezone: str
    queue: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    max_attempts: int | None
    expires_in: timedelta | None
    catch_up: str
    enabled: bool
    source: str
    next_run_at: datetime

    @property
    def planned_for(self) -> str:
        """What `next_run_at` was worked out for."""
        return planned_for(self.spec, self.timezone)


# The same spec keeps its next boundary, so frequent deploys never postpone it. One that was off is
# planned from now on, since what passed meanwhile is not to be fired. Somebody's switching on or
# off outlives deploys: code has its way again when it declares something else than before.
UPSERT = """
INSERT INTO django_outbox_schedule AS schedule
    (name, spec, timezone, queue, payload, headers, max_attempts, expires_in, catch_up, enabled,
     declared_enabled, source, next_run_at, planned_for)
VALUES
    (%(name)s, %(spec)s, %(timezone)s, %(queue)s, %(body)s, %(headers)s::jsonb,
     %(max_attempts)s::integer, %(expires_in)s::interval, %(catch_up)s, %(enabled)s,
     %(declared_enabled)s, %(source)s, %(next_run_at)s, %(planned_for)s)
ON CONFLICT (name) DO UPDATE SET
    spec = excluded.spec,
    timezone = excluded.timezone,
    queue = excluded.queue,
    payload = excluded.payload,
    headers = excluded.headers,
    max_attempts = excluded.max_attempts,
    expires_in = excluded.expires_in,
    catch_up = excluded.catch_up,
    enabled = CASE
        WHEN schedule.declared_enabled = excluded.declared_enabled THEN schedule.enabled
        ELSE excluded.enabled
    END,
    declared_enabled = excluded.declared_enabled,
    source = excluded.source,
    (next_run_at, plan_from) = (
        SELECT version.next_run_at, version.plan_from
        FROM (VALUES
            (true, schedule.next_run_at, schedule.plan_from),
            (false, excluded.next_run_at, NULL)
        ) AS version (is_kept, next_run_at, plan_from)
        WHERE version.is_kept = COALESCE(
            schedule.planned_for = excluded.planned_for
                AND schedule.enabled
                AND isfinite(schedule.next_run_at),
            false
        )
    ),
    planned_for = excluded.planned_for,
    last_error = NULL,
    retry_at = NULL,
    withdrawn_at = NULL
WHERE excluded.source <> 'code' OR schedule.source = 'code'
RETURNING id
"""


def upsert(cursor: Cursor, plan: Plan) -> int | None:
    """Write a schedule by its name; None if code declares what somebody else has made."""
    cursor.execute(UPSERT, _columns(plan))
    row = cursor.fetchone()
    return None if row is None else row[0]


ADD = """
INSERT INTO django_outbox_schedule
    (name, spec, timezone, queue, payload, headers, max_attempts, expires_in, catch_up, enabled,
     declared_enabled, source, next_run_at, planned_for)
VALUES
    (%(name)s, %(spec)s, %(timezone)s, %(queue)s, %(body)s, %(headers)s::jsonb,
     %(max_attempts)s::integer, %(expires_in)s::interval, %(catch_up)s, %(enabled)s,
     %(declared_enabled)s, %(source)s, %(next_run_at)s, %(planned_for)s)
ON CONFLICT (name) DO NOTHING
RETURNING id
"""


def add(cursor: Cursor, plan: Plan) -> int | None:
    """Write a new schedule; None if there is one of its name, which stays as it is."""
    cursor.execute(ADD, _columns(plan))
    row = cursor.fetchone()
    return None if row is None else row[0]


def _columns(plan: Plan) -> dict[str, object]:
    return {
        "name": plan.name,
        "spec": plan.spec,
        "timezone": plan.timezone,
        "queue": plan.queue,
        "body": plan.body,
        "headers": json.dumps(plan.headers),
        "max_attempts": plan.max_attempts,
        "expires_in": plan.expires_in,
        "catch_up": plan.catch_up,
        "enabled": plan.enabled,
        "declared_enabled": plan.enabled if plan.source == "code" else None,
        "source": plan.source,
        "next_run_at": plan.next_run_at,
        "planned_for": plan.planned_for,
    }


class Written(NamedTuple):
    """What is written of a schedule, as far as it can be declared.

    Of the payload only its SHA-256, so that nothing large is read to compare it.
    """

    spec: str
    timezone: str
    queue: str
    digest: bytes
    headers: str
    max_attempts: int | None
    expires_in: float | None
    catch_up: str
    declared_enabled: bool | None
    source: str
    is_withdrawn: bool


WRITTEN = """
SELECT
    name, spec, timezone, queue, sha256(payload), headers::text, max_attempts,
    extract(epoch FROM expires_in)::float8, catch_up, declared_enabled, source,
    withdrawn_at IS NOT NULL
FROM django_outbox_schedule
WHERE name = ANY(%(names)s::text[])
"""


def written(cursor: Cursor, names: Sequence[str]) -> dict[str, Written]:
    """Return what is written of these schedules, by name, as far as there are such."""
    cursor.execute(WRITTEN, {"names": list(names)})
    return {name: Written(*columns) for name, *columns in cursor.fetchall()}


ONE_WRITER = """
SELECT pg_advisory_xact_lock(%(key)s)
"""


def be_the_one_writer(cursor: Cursor) -> None:
    """Keep other processes from writing declarations until this transaction ends.

    Two versions of a site that start at once would deadlock over each other's rows.
    """
    cursor.execute(ONE_WRITER, {"key": 0x6F7574626F79})  # next to the key of the leases


# What is switched off here comes back when it is declared again; what was off by hand stays off.
WITHDRAW = """
UPDATE django_outbox_schedule
SET enabled = false,
    declared_enabled = CASE WHEN enabled THEN NULL ELSE declared_enabled END,
    withdrawn_at = clock_timestamp()
WHERE source = 'code'
    AND (enabled OR withdrawn_at IS NULL)
    AND name <> ALL(%(declared)s::text[])
RETURNING name
"""


def withdraw(cursor: Cursor, declared: Sequence[str]) -> list[str]:
    """Disable and mark what code does not declare any more; return the names."""
    cursor.execute(WITHDRAW, {"declared": list(declared)})
    return [row[0] for row in cursor.fetchall()]


SWITCH = """
UPDATE django_outbox_schedule SET enabled = %(on)s
WHERE id = ANY(%(ids)s::bigint[]) AND enabled <> %(on)s
RETURNING id
"""


def switch(cursor: Cursor, ids: Sequence[int], *, on: bool) -> list[int]:
    """Switch these schedules on or off; return, in their order, those that were not so already."""
    cursor.execute(SWITCH, {"ids": list(ids), "on": on})
    switched = {row[0] for row in cursor.fetchall()}
    return [id_ for id_ in ids if id_ in switched]


DELETE = """
DELETE FROM django_outbox_schedule WHERE name = %(name)s RETURNING id
"""


def delete(cursor: Cursor, name: str) -> bool:
    """Delete a schedule; tell whether there was one."""
    cursor.execute(DELETE, {"name": name})
    return cursor.fetchone() is not None


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
