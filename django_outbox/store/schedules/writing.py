"""Write what schedules are: by the API, in code, in the admin; switch them and delete them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from .. import Cursor


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

    def __repr__(self) -> str:
        return f"<Written {self.spec!r} queue={self.queue!r}>"


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
