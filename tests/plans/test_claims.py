"""Claims read no more than they claim, whatever else is in the table.

The plans are those of real statements on tables of some size, as EXPLAIN ANALYZE has counted them:
before the first ANALYZE of the table and after it, for one queue and for five.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from django_outbox.store.messages import Lane, claiming

pytestmark = pytest.mark.django_db

READY = 30_000
FUTURE = 30_000
EXPIRED = 1_500
IN_FLIGHT = 1_000
LIMIT = 100

MOST_ROWS = 200
MOST_BUFFERS = 2_000
"""Pages that a claim of 100 may touch, its updates and their visibility included."""


@pytest.fixture(params=["before ANALYZE", "after ANALYZE"])
def is_analyzed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "after ANALYZE")


@pytest.fixture(params=[1, 5], ids=["one queue", "five queues"])
def queues(request: pytest.FixtureRequest) -> list[str]:
    return [f"q{n}" for n in range(request.param)]


def fill(queues: list[str], *, is_analyzed: bool) -> None:
    """Have ready messages, those in flight before them, leases that ran out, and timers."""
    with connection.cursor() as cursor:
        params: dict[str, Any] = {"queues": queues, "count": len(queues)}
        for count, due, lease in (
            (IN_FLIGHT, "interval '-2 hours'", "interval '1 minute'"),
            (READY, "interval '-1 hour'", "NULL::interval"),
            (FUTURE, "interval '1 day'", "NULL::interval"),
        ):
            cursor.execute(
                "INSERT INTO django_outbox_message"
                " (queue, payload, headers, next_attempt_at, lease_token, lease_expires_at)"
                " SELECT (%(queues)s::text[])[n %% %(count)s + 1], convert_to(repeat('x', 256),"
                f" 'UTF8'), '{{}}', clock_timestamp() + {due} + n * interval '1 millisecond',"
                f" CASE WHEN {lease} IS NOT NULL THEN gen_random_uuid() END,"
                f" clock_timestamp() + {lease} FROM generate_series(1, %(rows)s) AS n",
                {**params, "rows": count},
            )
        cursor.execute(
            "UPDATE django_outbox_message SET lease_token = gen_random_uuid(),"
            " lease_expires_at = clock_timestamp() - interval '1 second'"
            " WHERE id IN (SELECT id FROM django_outbox_message WHERE lease_token IS NULL"
            " AND next_attempt_at < clock_timestamp() ORDER BY random() LIMIT %s)",
            [EXPIRED],
        )
        if is_analyzed:
            cursor.execute("ANALYZE django_outbox_message")


def explain(statement: str, params: dict[str, Any]) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", params)
        plan = cursor.fetchone()[0]
    found = json.loads(plan) if isinstance(plan, str) else plan
    root: dict[str, Any] = found[0]["Plan"]
    return root


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def scans(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes that read the table of messages, but for the update's own look by id."""
    return [
        node
        for node in nodes(plan)
        if node.get("Relation Name") == "django_outbox_message"
        and node.get("Index Name") != "django_outbox_message_pkey"
        and node["Node Type"] != "ModifyTable"
    ]


def rows_read(node: dict[str, Any]) -> float:
    """Return how many rows a node has looked at."""
    passed = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return float(passed * node["Actual Loops"])


def buffers(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def claim(lanes: list[Lane]) -> dict[str, Any]:
    return explain(
        claiming.CLAIM,
        {
            "queues": [lane.queue for lane in lanes],
            "lease_ttls": [lane.lease_ttl for lane in lanes],
            "low_ats": [lane.low_at for lane in lanes],
            "low_ids": [lane.low_id for lane in lanes],
            "limit": LIMIT,
            "token": uuid4(),
            "worker_id": "w",
            "ahead": 0.0,
        },
    )


def behind_the_head(queue: str) -> Lane:
    """Return the lane of a worker that has claimed all that is in flight."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM next_attempt_at)::float8, id FROM django_outbox_message"
            " WHERE queue = %s AND lease_expires_at > clock_timestamp()"
            " ORDER BY next_attempt_at DESC, id DESC LIMIT 1",
            [queue],
        )
        low_at, low_id = cursor.fetchone()
    return Lane(queue, 60.0, low_at, low_id)


SLOW = {"Sort", "Incremental Sort", "Seq Scan", "Bitmap Heap Scan", "Bitmap Index Scan"}


def assert_goes_along_the_claim_index(plan: dict[str, Any]) -> None:
    kinds = {node["Node Type"] for node in nodes(plan)}
    assert not kinds & SLOW
    assert {node["Index Name"] for node in scans(plan)} == {"django_outbox_message_claim"}


def test_a_claim_in_the_window_reads_what_it_claims(queues: list[str], is_analyzed: bool) -> None:
    fill(queues, is_analyzed=is_analyzed)

    plan = claim([behind_the_head(queue) for queue in queues])

    assert plan["Actual Rows"] == LIMIT
    assert_goes_along_the_claim_index(plan)
    assert sum(map(rows_read, scans(plan))) <= MOST_ROWS
    assert buffers(plan) <= MOST_BUFFERS


def test_a_sweep_reads_besides_only_what_is_in_flight_at_the_head(
    queues: list[str], is_analyzed: bool
) -> None:
    fill(queues, is_analyzed=is_analyzed)

    plan = claim([Lane(queue, 60.0) for queue in queues])

    assert plan["Actual Rows"] == LIMIT
    assert_goes_along_the_claim_index(plan)
    assert sum(map(rows_read, scans(plan))) <= IN_FLIGHT + MOST_ROWS


def test_looking_for_what_is_due_next_reads_one_row_of_each_queue_besides(
    queues: list[str], is_analyzed: bool
) -> None:
    fill(queues, is_analyzed=is_analyzed)

    soonest = explain(claiming.SOONEST, {"queues": queues, "since": 60.0})
    first = explain(claiming.FIRST_DUE, {"queues": queues, "ahead": 0.0})

    assert_goes_along_the_claim_index(soonest)
    assert sum(map(rows_read, scans(soonest))) == len(queues)
    assert {node["Index Name"] for node in scans(first)} == {"django_outbox_message_claim"}
    assert sum(map(rows_read, scans(first))) <= IN_FLIGHT + EXPIRED + len(queues)
