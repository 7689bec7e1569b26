"""Measure claims against the design with two partial indexes: `python -m benchmarks.claims`.

That design keeps pending and leased rows in an index each, and claims from both; its table and its
statement are written here. Ours is the statement of the store on the table of the migrations, with
the claim window, as most claims run, and without it, as a sweep.

Three cases. `full`: claims from tables that hold millions of messages of every kind, before the
first ANALYZE and after it, planned for the values or once for all. `flow`: the write-ahead log of
messages that are published, claimed and completed. `pinned`: a snapshot keeps vacuum from removing
what was completed, and messages are claimed and completed all the same.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psycopg
from psycopg.sql import SQL, Identifier

from benchmarks.databases import Databases, connect, databases

LIMIT = 100
CLAIMS = 20

TWO_INDEXES = """
CREATE TABLE two_indexes (
    LIKE django_outbox_message INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING CONSTRAINTS,
    PRIMARY KEY (id)
);
CREATE UNIQUE INDEX ON two_indexes (queue, timer_id) WHERE timer_id IS NOT NULL;
CREATE INDEX ON two_indexes (ref) WHERE ref IS NOT NULL;
CREATE INDEX two_indexes_pending ON two_indexes (queue, next_attempt_at, id)
    WHERE lease_token IS NULL;
CREATE INDEX two_indexes_leased ON two_indexes (queue, next_attempt_at, id)
    WHERE lease_token IS NOT NULL;
"""

# Each branch walks its index in order and stops after `limit` rows of each queue.
CLAIM_FROM_TWO = """
WITH pending AS MATERIALIZED (
    SELECT candidate.id, candidate.next_attempt_at
    FROM unnest(%(queues)s::text[]) AS lane (queue)
    CROSS JOIN LATERAL (
        SELECT id, next_attempt_at
        FROM two_indexes
        WHERE queue = lane.queue
            AND lease_token IS NULL
            AND next_attempt_at <= (SELECT clock_timestamp())
        ORDER BY next_attempt_at, id
        LIMIT (SELECT %(limit)s)
        FOR UPDATE SKIP LOCKED
    ) AS candidate
),
leased AS MATERIALIZED (
    SELECT candidate.id, candidate.next_attempt_at
    FROM unnest(%(queues)s::text[]) AS lane (queue)
    CROSS JOIN LATERAL (
        SELECT id, next_attempt_at
        FROM two_indexes
        WHERE queue = lane.queue
            AND lease_token IS NOT NULL
            AND next_attempt_at <= (SELECT clock_timestamp())
            AND lease_expires_at < (SELECT clock_timestamp())
        ORDER BY next_attempt_at, id
        LIMIT (SELECT %(limit)s)
        FOR UPDATE SKIP LOCKED
    ) AS candidate
),
picked AS MATERIALIZED (
    SELECT id
    FROM (SELECT * FROM pending UNION ALL SELECT * FROM leased) AS either
    ORDER BY next_attempt_at, id
    LIMIT %(limit)s
)
UPDATE two_indexes AS message
SET lease_token = %(token)s,
    lease_expires_at = clock_timestamp() + interval '1 minute',
    leased_by = %(worker_id)s,
    deliveries_count = message.deliveries_count + 1
FROM picked
WHERE message.id = picked.id
RETURNING
    message.id, message.message_id, message.queue, message.payload, message.headers::text,
    message.correlation_id, message.timer_id, message.max_attempts, message.attempts_count,
    message.deliveries_count, message.created_at, message.next_attempt_at
"""

COMPLETE = """
DELETE FROM {table} AS message
USING unnest(%(ids)s::bigint[], %(tokens)s::uuid[]) AS lease (id, token)
WHERE message.id = lease.id AND message.lease_token = lease.token
"""

# Queue by queue in turns; what is in flight lies at the head, and what is for later at the end.
MESSAGES = """
INSERT INTO {table} (queue, payload, headers, next_attempt_at, lease_token, lease_expires_at)
SELECT
    (%(queues)s::text[])[n %% %(queue_count)s + 1],
    convert_to(repeat('x', 256), 'UTF8'),
    '{{"content-type": "application/json"}}',
    clock_timestamp() + %(due)s::interval + n * interval '1 ms',
    CASE WHEN leased THEN gen_random_uuid() END,
    CASE WHEN leased THEN clock_timestamp() + %(lease)s::interval END
FROM generate_series(1, %(rows)s) AS n,
    LATERAL (SELECT random() + 0 * n < %(leased)s AS leased) AS fate
"""

DEAD_LETTERS = """
INSERT INTO django_outbox_dead_letter
    (original_id, message_id, queue, payload, headers, correlation_id, created_at, failure_reason,
     exception_class, last_exception, fingerprint)
SELECT
    n, gen_random_uuid(), 'q' || n %% 5, convert_to(repeat('x', 256), 'UTF8'), '{}',
    'order-' || n, clock_timestamp(), 'rejected', 'shop.Error', repeat('x', 500), n %% 100
FROM generate_series(1, %(rows)s) AS n
"""

HEAD = """
SELECT extract(epoch FROM next_attempt_at)::float8, id
FROM django_outbox_message
WHERE queue = %s AND lease_expires_at > clock_timestamp()
ORDER BY next_attempt_at DESC, id DESC
LIMIT 1
"""


@dataclass(frozen=True)
class Sizes:
    """How many messages of each kind there are."""

    ready: int = 1_000_000
    expired: int = 50_000
    in_flight: int = 20_000
    future: int = 1_000_000
    dead_letters: int = 200_000
    flow: int = 20_000
    pinned: int = 250_000

    def divided(self, by: int) -> Sizes:
        return Sizes(*(size // by for size in vars(self).values()))


Position = tuple[float, int]


class Claim(NamedTuple):
    """A statement that claims, and its parameters."""

    statement: str
    params: dict[str, Any]


class Design(NamedTuple):
    """What is compared: a table, and how to claim from it, given each queue's position."""

    name: str
    table: str
    claim: Callable[[dict[str, Position], int], Claim]


def claim_from_two(lows: dict[str, Position], limit: int) -> Claim:
    """Claim from the pending and from the leased; there is no position to scan from."""
    params = {"queues": list(lows), "limit": limit, "token": uuid4(), "worker_id": "benchmark"}
    return Claim(CLAIM_FROM_TWO, params)


def claim_in_window(lows: dict[str, Position], limit: int) -> Claim:
    """Claim as the store does, from these positions on."""
    from django_outbox.store.messages import Lane, claim

    recorder = Recorder()
    lanes = [Lane(queue, 60.0, *low) for queue, low in lows.items()]
    claim(recorder, lanes, limit=limit, worker_id="benchmark")
    return recorder.executed[0]


def sweep(lows: dict[str, Position], limit: int) -> Claim:
    """Claim as the store does, from the very beginning."""
    return claim_in_window(dict.fromkeys(lows, (float("-inf"), -(2**63))), limit)


class Recorder:
    """Stands in for a cursor, and keeps what it was to execute."""

    def __init__(self) -> None:
        self.executed: list[Claim] = []

    def execute(self, query: str, params: Any = None) -> None:
        self.executed.append(Claim(query, params))

    def fetchone(self) -> None:
        return None

    def fetchall(self) -> list[Any]:
        return []


OURS = "django_outbox_message"
DESIGNS = (
    Design("two indexes", "two_indexes", claim_from_two),
    Design("one index, sweep", OURS, sweep),
    Design("one index, window", OURS, claim_in_window),
)
TABLES = ("two_indexes", OURS)


def main() -> None:
    options = parsed()
    sizes = Sizes().divided(50 if options.small else options.part)
    with databases(postgres=options.postgres, server=options.server) as made:
        found = {"PostgreSQL": made.version, "sizes": vars(sizes)}
        for name in options.case:
            found[name] = [
                row for count in options.queues for row in CASES[name](made, sizes, count)
            ]
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"PostgreSQL {found['PostgreSQL']}")
    for name in options.case:
        print()
        show(found[name])


def parsed() -> argparse.Namespace:
    """Return the options; an unknown case is a line and exit 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--postgres", type=int, choices=(16, 18), default=18, help="embedded")
    where.add_argument("--server", metavar="URL", help="a server to make databases on, instead")
    parser.add_argument("--case", action="append", metavar="|".join(CASES), help="default: all")
    parser.add_argument("--queues", type=int, action="append", metavar="N", help="default: 1, 5")
    parser.add_argument("--part", type=int, default=1, metavar="N", help="an N-th of the messages")
    parser.add_argument("--small", action="store_true", help="a fiftieth of the messages")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    options = parser.parse_args()
    options.case = options.case or list(CASES)
    options.queues = options.queues or [1, 5]
    for name in set(options.case) - set(CASES):
        parser.exit(2, f"There is no case {name!r}; there are {', '.join(CASES)}.\n")
    return options


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of the same columns as a table."""
    columns = [[name, *(shown(row[name]) for row in rows)] for name in rows[0]]
    widths = [max(map(len, column)) for column in columns]
    for line in zip(*columns, strict=True):
        cells = [
            cell.ljust(width) if isinstance(rows[0][column[0]], str) else cell.rjust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        print("  ".join(cells).rstrip())


def shown(value: Any) -> str:
    """Return a figure as people read it."""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


# Filling


def prepare(session: psycopg.Connection[Any]) -> None:
    """Have both tables, and leave them alone unless told."""
    session.execute(TWO_INDEXES.encode())
    for table in TABLES:
        run(session, "ALTER TABLE {table} SET (autovacuum_enabled = off)", table)


def run(
    session: psycopg.Connection[Any], statement: str, table: str, **params: Any
) -> psycopg.Cursor[Any]:
    """Run a statement on a table."""
    return session.execute(SQL(statement).format(table=Identifier(table)), params)  # type: ignore[arg-type]


def fill(
    session: psycopg.Connection[Any],
    queues: Sequence[str],
    rows: int,
    *,
    due: str,
    leased: float = 0.0,
    lease: str = "1 hour",
    tables: Sequence[str] = TABLES,
) -> None:
    """Add messages to the tables, of which so large a share is leased."""
    for table in tables:
        run(
            session,
            MESSAGES,
            table,
            queues=list(queues),
            queue_count=len(queues),
            rows=rows,
            due=due,
            leased=leased,
            lease=lease,
        )


def fill_all(session: psycopg.Connection[Any], queues: Sequence[str], sizes: Sizes) -> None:
    """Add messages of every kind."""
    fill(session, queues, sizes.in_flight, due="-2 hours", leased=1.0)
    share = sizes.expired / sizes.ready
    fill(session, queues, sizes.ready, due="-1 hour", leased=share, lease="-1 second")
    fill(session, queues, sizes.future, due="1 day")
    session.execute(DEAD_LETTERS, {"rows": sizes.dead_letters})


def names(count: int) -> list[str]:
    return [f"q{n}" for n in range(count)]


def heads(session: psycopg.Connection[Any], queues: Sequence[str]) -> dict[str, Position]:
    """Return the position of a worker that has claimed all that is in flight."""
    return {queue: session.execute(HEAD, [queue]).fetchone() for queue in queues}  # type: ignore[misc]


# Claiming

PLANNING = {"for the values": "auto", "once for all": "force_generic_plan"}


@dataclass
class Claims:
    """The claims of one design in one session, each rolled back."""

    design: Design
    planned: str
    session: psycopg.Connection[Any]
    lows: dict[str, Position]

    def timed(self) -> float:
        """Return the milliseconds of a claim until its last row is here."""
        claim = self.design.claim(self.lows, LIMIT)
        with rolled_back(self.session), self.session.cursor(binary=True) as cursor:
            began = time.perf_counter()
            cursor.execute(claim.statement.encode(), claim.params)
            rows = cursor.fetchall()
            took = time.perf_counter() - began
        assert len(rows) == LIMIT, f"{self.design.name} claimed {len(rows)}"
        return took * 1000

    def explained(self) -> dict[str, Any]:
        """Return the plan of a claim with what PostgreSQL has counted."""
        claim = self.design.claim(self.lows, LIMIT)
        with rolled_back(self.session):
            return explain(self.session, claim, generic=self.planned == "once for all")


@contextmanager
def rolled_back(session: psycopg.Connection[Any]) -> Iterator[None]:
    session.execute("BEGIN")
    try:
        yield
    finally:
        session.execute("ROLLBACK")


def explain(session: psycopg.Connection[Any], claim: Claim, *, generic: bool) -> dict[str, Any]:
    """Run a claim under EXPLAIN."""
    how = "EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON)"
    if not generic:
        cursor = session.execute(f"{how} {claim.statement}".encode(), claim.params)
    else:
        # EXPLAIN plans for the values it is given, unless it is of a prepared statement.
        parameters = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", claim.statement)))
        numbered = re.sub(
            r"%\((\w+)\)s", lambda found: f"${parameters.index(found[1]) + 1}", claim.statement
        )
        types = ", ".join(sql_type(claim.params[name]) for name in parameters)
        session.execute(f"PREPARE explained ({types}) AS {numbered}".encode())
        values = ", ".join(f"%({name})s" for name in parameters)
        cursor = psycopg.ClientCursor(session)
        cursor.execute(f"{how} EXECUTE explained ({values})".encode(), claim.params)
        session.execute("DEALLOCATE explained")
    plan: dict[str, Any] = cursor.fetchone()[0][0]  # type: ignore[index]
    return plan


def sql_type(value: Any) -> str:
    """Return the type that a value of a claim has in SQL."""
    if isinstance(value, list):
        return "text[]" if isinstance(value[0], str) else f"{sql_type(value[0])}[]"
    return {str: "unknown", float: "float8", int: "bigint", UUID: "uuid"}[type(value)]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def rows_read(plan: dict[str, Any]) -> int:
    """Return the rows that scans for rows to claim have looked at; not the update's own look."""
    return round(
        sum(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            for node in nodes(plan)
            if node.get("Relation Name") in TABLES
            and node["Node Type"] != "ModifyTable"
            and node["Node Type"] != "Tid Scan"
            and not node.get("Index Name", "").endswith("_pkey")
        )
    )


def buffers(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def figures(all_claims: Sequence[Claims]) -> Iterator[dict[str, Any]]:
    """Claim by each in turns, and yield what it took, worst and at the median, and what it read."""
    plans = [claims.explained() for claims in all_claims]
    rounds = [[claims.timed() for claims in all_claims] for _ in range(CLAIMS)]
    for claims, plan, took in zip(all_claims, plans, zip(*rounds, strict=True), strict=True):
        yield {
            "design": claims.design.name,
            "planned": claims.planned,
            **figures_of(took, plan),
        }


def figures_of(took: Sequence[float], plan: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of claims that took so many milliseconds and have this plan."""
    return {
        "median ms": statistics.median(took),
        "worst ms": max(took),
        "server ms": plan["Planning Time"] + plan["Execution Time"],
        "rows": rows_read(plan["Plan"]),
        "buffers": buffers(plan["Plan"]),
    }


@contextmanager
def claims_of_all(url: str, lows: dict[str, Position]) -> Iterator[list[Claims]]:
    """Give the claims of each design, planned in each way, in a session each."""
    opened = [
        Claims(design, planned, connect(url, f"plan_cache_mode = {mode}"), lows)
        for planned, mode in PLANNING.items()
        for design in DESIGNS
    ]
    for claims in opened:
        if claims.planned == "once for all":
            claims.session.prepare_threshold = 0
    try:
        yield opened
    finally:
        for claims in opened:
            claims.session.close()


def full(made: Databases, sizes: Sizes, queue_count: int) -> Iterator[dict[str, Any]]:
    """Claim from tables with messages of every kind."""
    queues = names(queue_count)
    with made.fresh() as url, connect(url) as session:
        prepare(session)
        fill_all(session, queues, sizes)
        lows = heads(session, queues)
        for when in ("before", "after"):
            if when == "after":
                session.execute("ANALYZE")
            with claims_of_all(url, lows) as all_claims:
                for row in figures(all_claims):
                    yield {"queues": queue_count, "ANALYZE": when, **row}


# Completing, too

WAL = """
SELECT wal_records::float8, wal_bytes::float8, wal_fpi::float8 FROM pg_stat_wal
"""

HOT = """
SELECT n_tup_hot_upd::float8 / greatest(n_tup_upd, 1) * 100
FROM pg_stat_user_tables
WHERE relname = %s
"""

POSITIONS = """
SELECT DISTINCT ON (queue) queue, extract(epoch FROM next_attempt_at)::float8, id
FROM {table}
WHERE id = ANY(%(ids)s)
ORDER BY queue, next_attempt_at DESC, id DESC
"""


class Consumer:
    """Claims messages and completes them, as a worker of the design does."""

    def __init__(
        self, design: Design, session: psycopg.Connection[Any], queues: Sequence[str]
    ) -> None:
        self.lows: dict[str, Position] = dict.fromkeys(queues, (float("-inf"), -(2**63)))
        self._design = design
        self._session = session

    def consume(self, limit: int) -> tuple[float, float]:
        """Claim so many, complete them, and return the seconds that each of the two took."""
        claim = self._design.claim(self.lows, limit)
        began = time.perf_counter()
        with self._session.cursor(binary=True) as cursor:
            cursor.execute(claim.statement.encode(), claim.params)
            ids = [row[0] for row in cursor.fetchall()]
        claimed = time.perf_counter()
        assert len(ids) == limit
        for queue, low_at, low_id in self._run(POSITIONS, ids=ids).fetchall():
            self.lows[queue] = (low_at, low_id)
        positioned = time.perf_counter()
        self._run(COMPLETE, ids=ids, tokens=[claim.params["token"]] * limit)
        return claimed - began, time.perf_counter() - positioned

    def _run(self, statement: str, **params: Any) -> psycopg.Cursor[Any]:
        return run(self._session, statement, self._design.table, **params)


def flow(made: Databases, sizes: Sizes, queue_count: int) -> Iterator[dict[str, Any]]:
    """Claim and complete all there is, without full-page images."""
    queues = names(queue_count)
    for design in DESIGNS:
        with made.fresh() as url, connect(url) as watching:
            prepare(watching)
            watching.execute("CHECKPOINT")
            with connect(url) as session:
                fill(session, queues, sizes.flow, due="-1 hour", tables=[design.table])
            wait_for_statistics(watching, design.table, "n_tup_ins", sizes.flow)
            with connect(url) as session:
                consumer = Consumer(design, session, queues)
                before = watching.execute(WAL.encode()).fetchone()
                seconds = sum(sum(consumer.consume(LIMIT)) for _ in range(sizes.flow // LIMIT))
            wait_for_statistics(watching, design.table, "n_tup_del", sizes.flow)
            after = watching.execute(WAL.encode()).fetchone()
            hot = watching.execute(HOT.encode(), [design.table]).fetchone()
        assert before is not None
        assert after is not None
        assert hot is not None
        records, written, images = (b - a for a, b in zip(before, after, strict=True))
        yield {
            "queues": queue_count,
            "design": design.name,
            "WAL records": records / sizes.flow,
            "bytes": written / sizes.flow,
            "full pages": images / sizes.flow,
            "HOT %": hot[0],
            "messages/s": round(sizes.flow / seconds),
        }


def wait_for_statistics(
    session: psycopg.Connection[Any], table: str, column: str, count: int
) -> None:
    """Return when a session that has ended has reported so many rows."""
    counted = SQL("SELECT {} FROM pg_stat_user_tables WHERE relname = %s").format(
        Identifier(column)
    )
    deadline = time.monotonic() + 10
    while session.execute(counted, [table]).fetchone() != (count,):
        assert time.monotonic() < deadline, f"The statistics of {table} do not tell."
        time.sleep(0.01)


TENTHS = 10


def pinned(made: Databases, sizes: Sizes, queue_count: int) -> Iterator[dict[str, Any]]:
    """Claim and complete while a snapshot from before keeps vacuum from removing anything."""
    queues = names(queue_count)
    limit = max(LIMIT, min(1_000, sizes.pinned // 50))
    for design in DESIGNS:
        with made.fresh() as url, connect(url) as session:
            prepare(session)
            left = sizes.ready // TENTHS
            fill(session, queues, sizes.pinned + left, due="-1 hour", tables=[design.table])
            session.execute("ANALYZE")
            with connect(url) as reader:
                reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
                consumer = Consumer(design, session, queues)
                took = [sum(consumer.consume(limit)) for _ in range(sizes.pinned // limit)]
                run(session, "VACUUM {table}", design.table)
                plan = Claims(design, "for the values", session, consumer.lows).explained()
                claims = [consumer.consume(LIMIT)[0] * 1000 for _ in range(CLAIMS)]
        part = len(took) // TENTHS
        yield {
            "queues": queue_count,
            "design": design.name,
            "first/s": round(part * limit / sum(took[:part])),
            "last/s": round(part * limit / sum(took[-part:])),
            **figures_of(claims, plan),
        }


CASES: dict[str, Callable[[Databases, Sizes, int], Iterator[dict[str, Any]]]] = {
    "full": full,
    "flow": flow,
    "pinned": pinned,
}

if __name__ == "__main__":
    main()
