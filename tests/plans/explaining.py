"""Plans of real statements, as EXPLAIN ANALYZE has counted them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

from django.db import connection

from django_outbox.store import session
from django_outbox.store.messages import Lane, claiming
from django_outbox.worker.window import SLACK

LIMIT = 100

Plan = dict[str, Any]


def explain(statement: str, params: dict[str, Any], *, generic: bool = False) -> Plan:
    """Run a statement and return its plan; a generic one is made without knowing the values."""
    how = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"
    with connection.cursor() as cursor, along_indexes(cursor):
        if not generic:
            cursor.execute(f"{how} {statement}", params)
        else:
            # EXPLAIN plans for the values it is given, unless it is of a prepared statement.
            names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
            types = ", ".join(_type(params[name]) for name in names)
            numbered = re.sub(
                r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement
            )
            cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            cursor.execute(f"PREPARE explained ({types}) AS {numbered}")
            values = ", ".join(f"%({name})s" for name in names)
            cursor.execute(f"{how} EXECUTE explained ({values})", params)
        plan = cursor.fetchone()[0]
        if generic:
            cursor.execute("DEALLOCATE explained")
    found = json.loads(plan) if isinstance(plan, str) else plan
    root: Plan = found[0]["Plan"]
    return root


@contextmanager
def along_indexes(cursor: Any) -> Iterator[None]:
    """Have the planner see the session as that of a worker's loop.

    Tests that were rolled back have left rows behind that its statistics do not know of.
    """
    session.go_along_indexes(cursor)
    try:
        yield
    finally:
        for way in session.OTHER_WAYS:
            cursor.execute(f"RESET enable_{way}")


def _type(value: Any) -> str:
    if isinstance(value, list):
        return "text[]" if isinstance(value[0], str) else f"{_type(value[0])}[]"
    names = {str: "unknown", float: "float8", int: "bigint", bool: "boolean", UUID: "uuid"}
    return names[type(value)]


def explain_claim(lanes: list[Lane], *, slack: float = SLACK, generic: bool = False) -> Plan:
    """Claim `LIMIT` messages."""
    params = {
        "queues": [lane.queue for lane in lanes],
        "lease_ttls": [lane.lease_ttl for lane in lanes],
        "low_ats": [lane.low_at for lane in lanes],
        "low_ids": [lane.low_id for lane in lanes],
        "limit": LIMIT,
        "token": uuid4(),
        "worker_id": "w",
        "slack": slack,
        "ahead": 0.0,
    }
    return explain(claiming.CLAIM, params, generic=generic)


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def looking(plan: Plan) -> Plan:
    """Return the part of a plan that looks for rows; a claim then goes to their places."""
    return next((node for node in nodes(plan) if node.get("Subplan Name") == "CTE picked"), plan)


def scans(plan: Plan) -> list[Plan]:
    """Return the nodes that read the table of messages to look for rows."""
    return [
        node
        for node in nodes(looking(plan))
        if node.get("Relation Name") == "django_outbox_message"
    ]


def rows_read(plan: Plan) -> float:
    """Return how many rows the scans of a plan have looked at."""
    return float(
        sum(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            for node in scans(plan)
        )
    )


def buffers(node: Plan) -> int:
    """Return how many pages a node and all below it have touched."""
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


SLOW = {"Sort", "Incremental Sort", "Seq Scan", "Bitmap Heap Scan", "Bitmap Index Scan"}


def assert_goes_along_the_claim_index(plan: Plan) -> None:
    kinds = {node["Node Type"] for node in nodes(looking(plan))}
    assert not kinds & SLOW, json.dumps(plan, indent=1)
    assert {node["Index Name"] for node in scans(plan)} == {"django_outbox_message_claim"}


def assert_changes_them_where_they_are(plan: Plan) -> None:
    """See that a claim reads nothing besides but the rows that it has picked."""
    besides = [
        node for node in nodes(plan) if node.get("Relation Name") and node not in scans(plan)
    ]
    assert {node["Node Type"] for node in besides} == {"ModifyTable", "Tid Scan"}
