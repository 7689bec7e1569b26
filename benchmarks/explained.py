"""What PostgreSQL says of a claim: the time it took, and what it read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from django_outbox.store.messages import Lane, claim


class ExplainingCursor(psycopg.Cursor[Any]):
    """A cursor that has its statements explained, and returns none of their rows."""

    plan: dict[str, Any]

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> ExplainingCursor:
        super().execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", *args, **kwargs)
        row = self.fetchone()
        assert row is not None
        self.plan = row[0][0]
        return self

    def fetchall(self) -> list[Any]:
        return []


def explained_claim(
    session: psycopg.Connection[Any], lanes: Sequence[Lane], *, limit: int
) -> dict[str, float]:
    """Claim, and return what PostgreSQL says of it; the caller ends the transaction."""
    with ExplainingCursor(session) as cursor:
        claim(cursor, lanes, limit=limit, worker_id="benchmark")
        plan = cursor.plan
    return {
        "rows read": sum(_rows_scanned(plan["Plan"])),
        "buffers read": float(_buffers(plan["Plan"])),
        "server's execution, ms": plan["Execution Time"],
    }


def _rows_scanned(node: dict[str, Any], *, to_lock: bool = False) -> Iterator[float]:
    """Yield the rows that each scan for rows to lock has read, those it left out included."""
    if to_lock and "Relation Name" in node:
        yield node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    for child in node.get("Plans", []):
        yield from _rows_scanned(child, to_lock=to_lock or node["Node Type"] == "LockRows")


def _buffers(node: dict[str, Any]) -> int:
    """Return how many pages a node and all below it have looked at."""
    return int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])
