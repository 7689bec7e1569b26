"""Measure storage options, each apart: `python -m benchmarks.storage`.

A soak for each: messages are published, claimed and completed a hundred at a time, so that as many
wait at any moment. The last of several options of one name that a table is given counts, so each is
measured against what the migrations have set. Autovacuum looks every second instead of every
minute, which makes of a soak of half a minute half an hour.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg

from benchmarks.claims import WAL, show, wait_for_statistics
from benchmarks.databases import Databases, connect, databases

AT_ONCE = 100
MESSAGES = "django_outbox_message"
TABLE = f"ALTER TABLE {MESSAGES} "
CLAIM_INDEX = "ALTER INDEX django_outbox_message_claim "


class Variant(NamedTuple):
    """An option, the statement that sets it, and the bytes of a payload to try it with."""

    group: str
    name: str
    statement: str = ""
    payload: int = 256


def _set(group: str, *options: str, payload: int = 256) -> tuple[Variant, ...]:
    return tuple(Variant(group, option, f"{TABLE} SET ({option})", payload) for option in options)


VARIANTS = (
    *_set(
        "fillfactor", *(f"fillfactor = {percent}" for percent in (40, 45, 50, 60, 70, 80, 90, 100))
    ),
    *(
        Variant("index", f"claim index {percent}", f"{CLAIM_INDEX} SET (fillfactor = {percent})")
        for percent in (50, 70, 90, 100)
    ),
    Variant("vacuum", "as the server has it"),
    *_set(
        "vacuum",
        "autovacuum_enabled = off",
        "autovacuum_vacuum_scale_factor = 0.02",
        "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000",
        "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000",
        "autovacuum_vacuum_cost_delay = 0",
        "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000",
        "autovacuum_vacuum_insert_threshold = -1",
        "vacuum_truncate = off",
    ),
    *(
        Variant("payload", f"8 KB, {name}", statement and TABLE + statement, 8192)
        for name, statement in {
            "as it is": "",
            "EXTERNAL": "ALTER COLUMN payload SET STORAGE EXTERNAL",
            "MAIN": "ALTER COLUMN payload SET STORAGE MAIN",
            "lz4": "ALTER COLUMN payload SET COMPRESSION lz4",
            "toast_tuple_target = 4096": "SET (toast_tuple_target = 4096)",
            "fillfactor = 90": "SET (fillfactor = 90)",
        }.items()
    ),
)
GROUPS = tuple(dict.fromkeys(variant.group for variant in VARIANTS))

PUBLISH = """
INSERT INTO django_outbox_message (queue, payload, headers)
SELECT 'soak', %(payload)s, '{"content-type": "application/json"}'
FROM generate_series(1, %(rows)s) AS n
"""

USE = """
SELECT n_tup_upd, n_tup_hot_upd, autovacuum_count
FROM pg_stat_user_tables
WHERE relname = 'django_outbox_message'
"""

SIZES = """
SELECT
    pg_table_size('django_outbox_message') / 1024.0 ^ 2,
    pg_relation_size('django_outbox_message_claim') / 1024.0 ^ 2,
    (pg_indexes_size('django_outbox_message')) / 1024.0 ^ 2
"""


def main() -> None:
    options = parsed()
    chosen = [variant for variant in VARIANTS if variant.group in options.group]
    with databases(postgres=options.postgres, server=None) as made:
        made.set_up_server("ALTER SYSTEM SET autovacuum_naptime = '1s'")
        rows = [
            row
            for _ in range(options.rounds)
            for variant in chosen
            for row in soak(made, variant, options.messages, options.backlog)
        ]
        version = made.version
    if options.json:
        print(json.dumps({"PostgreSQL": version, "soaks": rows}, indent=2))
        return
    print(f"PostgreSQL {version}, {options.messages:,} messages, {options.backlog:,} waiting\n")
    show(rows)


def parsed() -> argparse.Namespace:
    """Return the options; an unknown group is a line and exit 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--postgres", type=int, choices=(16, 18), default=18)
    parser.add_argument("--group", action="append", metavar="|".join(GROUPS), help="default: all")
    parser.add_argument("--messages", type=int, default=200_000, metavar="N")
    parser.add_argument("--backlog", type=int, default=5_000, metavar="N", help="waiting all along")
    parser.add_argument("--rounds", type=int, default=1, metavar="N")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    options = parser.parse_args()
    options.group = options.group or list(GROUPS)
    for name in set(options.group) - set(GROUPS):
        parser.exit(2, f"There is no group {name!r}; there are {', '.join(GROUPS)}.\n")
    return options


def soak(
    made: Databases, variant: Variant, messages: int, backlog: int
) -> Iterator[dict[str, Any]]:
    """Pass so many messages through a table with this option and yield what that took.

    Nothing is yielded where the server was built without what the option needs.
    """
    payload = body(variant.payload)
    messages //= (8 if variant.payload > 1024 else 1) * AT_ONCE
    messages *= AT_ONCE
    with made.fresh() as url, connect(url) as watching:
        try:
            watching.execute(variant.statement.encode() or b"SELECT")
        except psycopg.errors.FeatureNotSupported as error:
            print(f"{variant.name}: {error.diag.message_primary}", file=sys.stderr)
            return
        with connect(url) as session:
            publish(session, payload, backlog)
        wait_for_statistics(watching, MESSAGES, "n_tup_ins", backlog)
        watching.execute("VACUUM ANALYZE django_outbox_message")
        watching.execute("CHECKPOINT")
        before = one(watching, WAL)
        with connect(url) as session:
            seconds = pass_through(session, payload, messages)
        wait_for_statistics(watching, MESSAGES, "n_tup_del", messages)
        used = one(watching, USE)
        written = [b - a for a, b in zip(before, one(watching, WAL), strict=True)]
        table, claim_index, indexes = map(float, one(watching, SIZES))
    yield {
        "option": variant.name,
        "HOT %": used[1] / used[0] * 100,
        "WAL records": written[0] / messages,
        "bytes": written[1] / messages,
        "full pages": written[2] / messages,
        "messages/s": round(messages / seconds),
        "table MB": table,
        "claim index MB": claim_index,
        "all indexes MB": indexes,
        "vacuums": used[2],
    }


def body(size: int) -> bytes:
    """Return a payload as JSON tends to be: its keys repeat, and its values do not."""
    lines = (
        {"order": n, "sku": hashlib.sha256(str(n).encode()).hexdigest()} for n in range(size // 64)
    )
    return json.dumps(list(lines)).encode()[:size].ljust(size)


def publish(session: psycopg.Connection[Any], payload: bytes, rows: int) -> None:
    """Publish so many messages that are due now."""
    session.execute(PUBLISH.encode(), {"payload": payload, "rows": rows})


def pass_through(session: psycopg.Connection[Any], payload: bytes, messages: int) -> float:
    """Publish, claim and complete so many messages and return the seconds it took."""
    from django_outbox.store.messages import Lane, claim, complete

    lane = Lane("soak", 60.0)
    began = time.perf_counter()
    for _ in range(messages // AT_ONCE):
        publish(session, payload, AT_ONCE)
        with session.cursor(binary=True) as cursor:
            claimed = claim(
                cursor, [lane], limit=AT_ONCE, worker_id="web-7d9f4c8b5-x2k4q-1-a1b2c3d4"
            )
            assert complete(cursor, [row.lease for row in claimed])
        lane = lane._replace(low_at=claimed[-1].due_at, low_id=claimed[-1].id)
    return time.perf_counter() - began


def one(session: psycopg.Connection[Any], statement: str) -> tuple[Any, ...]:
    """Return the one row of a query."""
    row = session.execute(statement.encode()).fetchone()
    assert row is not None
    return tuple(row)


if __name__ == "__main__":
    main()
