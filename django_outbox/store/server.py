"""What the server knows of our tables and of who keeps them from being vacuumed.

Any role may ask. Of other roles' sessions it is told only that they are there, unless it is a
member of pg_read_all_stats.
"""

from __future__ import annotations

from typing import NamedTuple

from . import Cursor


class Unvacuumed(NamedTuple):
    """A table with far more dead rows than autovacuum should let it have."""

    table: str
    dead_rows: int
    threshold: int
    vacuumed_ago: float | None
    is_automatic: bool


# A table's own storage options go before the server's settings.
UNVACUUMED = """
SELECT
    relname::text,
    n_dead_tup,
    threshold,
    extract(epoch FROM clock_timestamp() - vacuumed_at)::float8,
    is_automatic
FROM (
    SELECT
        activity.relname,
        activity.n_dead_tup,
        greatest(activity.last_vacuum, activity.last_autovacuum) AS vacuumed_at,
        current_setting('autovacuum')::boolean
            AND COALESCE(options.values ->> 'autovacuum_enabled', 'true')::boolean AS is_automatic,
        (
            COALESCE(
                options.values ->> 'autovacuum_vacuum_threshold',
                current_setting('autovacuum_vacuum_threshold')
            )::float8
            + COALESCE(
                options.values ->> 'autovacuum_vacuum_scale_factor',
                current_setting('autovacuum_vacuum_scale_factor')
            )::float8 * greatest(class.reltuples, 0)
        )::bigint AS threshold
    FROM pg_stat_user_tables AS activity
    JOIN pg_class AS class ON class.oid = activity.relid
    CROSS JOIN LATERAL (
        SELECT COALESCE(jsonb_object_agg(option_name, option_value), '{}') AS values
        FROM pg_options_to_table(class.reloptions)
    ) AS options
    WHERE activity.relid IN (
        to_regclass('django_outbox_message'),
        to_regclass('django_outbox_dead_letter'),
        to_regclass('django_outbox_schedule'),
        to_regclass('django_outbox_lease'),
        to_regclass('django_outbox_worker'),
        to_regclass('django_outbox_counter')
    )
) AS ours
WHERE n_dead_tup > %(least)s
    AND n_dead_tup > threshold * %(times)s
    AND COALESCE(vacuumed_at, pg_postmaster_start_time())
        < clock_timestamp() - %(seconds)s * interval '1 second'
ORDER BY n_dead_tup DESC
"""


def unvacuumed(cursor: Cursor, *, least: int, times: float, seconds: float) -> list[Unvacuumed]:
    """Return our tables that have too many dead rows.

    That is more than `least`, more than `times` the number at which autovacuum is to begin, and no
    vacuum in the last `seconds`; what was never vacuumed counts from the start of the server.
    """
    cursor.execute(UNVACUUMED, {"least": least, "times": times, "seconds": seconds})
    return [Unvacuumed._make(row) for row in cursor.fetchall()]


class Pin(NamedTuple):
    """What keeps VACUUM from removing dead rows.

    `kind` is session, prepared or slot; `seconds` is None where the server does not say since when;
    `transactions` is how many have begun since.
    """

    kind: str
    name: str
    role: str | None
    application: str | None
    state: str | None
    seconds: float | None
    transactions: int


# Where the role may not see since when a session's transaction is open, its age in transactions
# stands in; a replication slot has no other. A vacuum does not keep another from its work.
PINS = """
SELECT kind, name, role, application, state, seconds, transactions
FROM (
    SELECT
        'session' AS kind, pid::text AS name, usename::text AS role,
        application_name AS application, state,
        extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
        greatest(age(backend_xmin), age(backend_xid)) AS transactions
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid()
        AND (datname = current_database() OR datname IS NULL)
        AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
        AND backend_type IS DISTINCT FROM 'autovacuum worker'  -- NULL where it may not be seen
    UNION ALL
    SELECT
        'prepared', gid, owner::text, NULL, NULL,
        extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)
    FROM pg_prepared_xacts
    WHERE database = current_database()
    UNION ALL
    SELECT
        'slot', slot_name::text, NULL, NULL, CASE WHEN active THEN 'active' ELSE 'inactive' END,
        NULL, age(xmin)
    FROM pg_replication_slots
    WHERE xmin IS NOT NULL
) AS pin
WHERE seconds > %(seconds)s OR (seconds IS NULL AND transactions > %(transactions)s)
ORDER BY transactions DESC
LIMIT %(most)s
"""


def pins(cursor: Cursor, *, seconds: float, transactions: int, most: int) -> list[Pin]:
    """Return what has pinned vacuum for longer than this, the oldest first."""
    cursor.execute(PINS, {"seconds": seconds, "transactions": transactions, "most": most})
    return [Pin._make(row) for row in cursor.fetchall()]
