"""Statements find their rows by the id although the table was empty when it was last analyzed.

So it is for a worker that keeps up: whenever autovacuum looks, nothing waits. The planner then
takes the table for empty, however many come in a burst until it looks again.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from django_outbox import outbox
from django_outbox.store.messages import Lane, claim, settling
from tests.support import committed

from .explaining import LIMIT, Plan, explain, explain_claim, nodes

WAITING = 2_000


@pytest.fixture(autouse=True)
def _burst() -> None:
    """Have many come to a table that had pages and no rows when it was analyzed."""
    publish()
    with connection.cursor() as cursor:
        with transaction.atomic():
            cursor.execute("DELETE FROM django_outbox_message")
            cursor.execute("ANALYZE django_outbox_message")
        cursor.execute(
            "SELECT reltuples, relpages > 0 FROM pg_class WHERE relname = 'django_outbox_message'"
        )
        assert cursor.fetchone() == (0, True)
    publish()


def publish() -> None:
    with transaction.atomic():
        outbox.publish_many(["x" * 254] * WAITING, queue="orders")


def rows_read(plan: Plan) -> float:
    """Return how many messages all parts of a plan have looked at, and how often compared."""
    return float(
        sum(
            (
                node["Actual Rows"]
                + node.get("Rows Removed by Filter", 0)
                + node.get("Rows Removed by Join Filter", 0)
            )
            * node["Actual Loops"]
            for node in nodes(plan)
            if node.get("Relation Name") == "django_outbox_message" or "Join Filter" in node
        )
    )


def ways(plan: Plan) -> list[str]:
    """Return how each part of a plan that reads messages gets at them."""
    return sorted(
        str(node.get("Index Name", node["Node Type"]))
        for node in nodes(plan)
        if node.get("Relation Name") == "django_outbox_message" and "Scan" in node["Node Type"]
    )


@pytest.fixture
def leases() -> dict[str, Any]:
    """Return the parameters of a statement that settles messages claimed a moment ago."""
    with connection.cursor() as cursor:
        claimed = claim(cursor, [Lane("orders", 60.0)], limit=LIMIT, worker_id="w")
    assert len(claimed) == LIMIT
    held: list[tuple[int, UUID]] = [(row.id, UUID(row.lease.token)) for row in claimed]
    texts = [""] * LIMIT
    return {
        "ids": [id_ for id_, _ in held],
        "tokens": [token for _, token in held],
        "ttls": [60.0] * LIMIT,
        "delays": [1.0] * LIMIT,
        "errors": texts,
        "refunds": [0] * LIMIT,
        "notify": False,
        "reasons": ["rejected"] * LIMIT,
        "attempted": [True] * LIMIT,
        "exception_classes": texts,
        "fingerprints": texts,
    }


@committed
@pytest.mark.parametrize("generic", [False, True], ids=["for the values", "once for all"])
def test_a_claim_reads_no_more_than_it_claims(*, generic: bool) -> None:
    # K01
    with transaction.atomic():
        plan = explain_claim([Lane("orders", 60.0)], generic=generic)

    assert plan["Actual Rows"] == LIMIT
    assert rows_read(plan) <= 3 * LIMIT
    assert ways(plan) == ["Tid Scan", "django_outbox_message_claim"]


@committed
@pytest.mark.parametrize("generic", [False, True], ids=["for the values", "once for all"])
@pytest.mark.parametrize(
    "name",
    [
        "COMPLETE",
        "COMPLETE_UNLOCKED",
        "COMPLETE_HERE",
        "RETRY",
        "BURY",
        "RELEASE",
        "RENEW",
        "STILL_HELD",
    ],
)
def test_what_is_settled_together_is_found_by_its_ids(
    leases: dict[str, Any], name: str, *, generic: bool
) -> None:
    # K01
    statement = getattr(settling, name)
    used = {key: value for key, value in leases.items() if f"%({key})s" in statement}
    with transaction.atomic():
        plan = explain(statement, used, generic=generic)

    assert rows_read(plan) <= 4 * LIMIT
    # Along the claim index, each of its entries would be compared with all of the ids.
    assert set(ways(plan)) <= {"Tid Scan", "django_outbox_message_pkey"}
