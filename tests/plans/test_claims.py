"""Claims read no more than they claim, whatever else is in the table.

The plans are those of real statements on tables of some size, as EXPLAIN ANALYZE has counted them:
before the first ANALYZE of the table and after it, for one queue and for five, planned for the
values and, as a prepared statement may be, once for all.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from django_outbox.models import OutboxMessage
from django_outbox.store import overview
from django_outbox.store.messages import Lane, claiming, operating
from tests.support import committed, publish_many

from .explaining import (
    LIMIT,
    assert_changes_them_where_they_are,
    assert_goes_along_the_claim_index,
    buffers,
    explain,
    explain_claim,
    rows_read,
    scans,
)

pytestmark = pytest.mark.django_db

READY = 20_000
FUTURE = 20_000
EXPIRED = 1_500
IN_FLIGHT = 1_000
DEAD = 3_000

MOST_ROWS = 200
MOST_BUFFERS = 1_000
"""Pages that a claim of 100 may touch, its updates and their visibility included."""


@pytest.fixture(params=["before ANALYZE", "after ANALYZE"])
def is_analyzed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "after ANALYZE")


@pytest.fixture(params=[1, 5], ids=["one queue", "five queues"])
def queues(request: pytest.FixtureRequest) -> list[str]:
    return [f"q{n}" for n in range(request.param)]


@pytest.fixture(params=["for the values", "once for all"])
def is_generic(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "once for all")


def fill(queues: list[str], *, is_analyzed: bool) -> None:
    """Have messages in flight, ready ones, leases that ran out, timers, and dead letters."""
    with connection.cursor() as cursor:
        # What tests before have rolled back is still in the table's pages.
        cursor.execute("TRUNCATE django_outbox_message")
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
        cursor.execute(
            "INSERT INTO django_outbox_dead_letter (original_id, message_id, queue, payload,"
            " correlation_id, created_at, failure_reason)"
            " SELECT n, gen_random_uuid(), 'q0', '', n, clock_timestamp(), 'rejected'"
            " FROM generate_series(1, %s) AS n",
            [DEAD],
        )
        if is_analyzed:
            cursor.execute("ANALYZE django_outbox_message, django_outbox_dead_letter")


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


def test_a_claim_in_the_window_reads_what_it_claims(
    queues: list[str], is_analyzed: bool, is_generic: bool
) -> None:
    fill(queues, is_analyzed=is_analyzed)

    plan = explain_claim([behind_the_head(queue) for queue in queues], generic=is_generic)

    assert plan["Actual Rows"] == LIMIT
    assert_goes_along_the_claim_index(plan)
    assert_changes_them_where_they_are(plan)
    assert rows_read(plan) <= MOST_ROWS
    assert buffers(plan) <= MOST_BUFFERS


def test_a_sweep_reads_besides_only_what_is_in_flight_at_the_head(
    queues: list[str], is_analyzed: bool, is_generic: bool
) -> None:
    fill(queues, is_analyzed=is_analyzed)

    plan = explain_claim([Lane(queue, 60.0) for queue in queues], generic=is_generic)

    assert plan["Actual Rows"] == LIMIT
    assert_goes_along_the_claim_index(plan)
    assert rows_read(plan) <= IN_FLIGHT + MOST_ROWS


def test_looking_for_what_is_due_next_reads_one_row_of_each_queue_besides(
    queues: list[str], is_analyzed: bool, is_generic: bool
) -> None:
    fill(queues, is_analyzed=is_analyzed)

    soonest = explain(claiming.SOONEST, {"queues": queues, "since": 60.0}, generic=is_generic)
    first = explain(claiming.FIRST_DUE, {"queues": queues, "ahead": 0.0}, generic=is_generic)

    assert_goes_along_the_claim_index(soonest)
    assert rows_read(soonest) == len(queues)
    assert {node["Index Name"] for node in scans(first)} == {"django_outbox_message_claim"}
    assert rows_read(first) <= IN_FLIGHT + EXPIRED + len(queues)


@committed
def test_the_names_of_queues_and_what_one_holds_are_read_along_the_claim_index() -> None:
    publish_many(["x"] * 2_000)
    of_one = OutboxMessage.objects.filter(queue="orders").order_by("next_attempt_at", "id")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_outbox_message")

    for statement, params in [
        (operating.QUEUES, {"most": 10}),
        (overview.NAMES, {"most": 10}),
    ]:
        plan = explain(statement, params)
        assert {node["Index Name"] for node in scans(plan)} == {"django_outbox_message_claim"}
    assert "using django_outbox_message_claim" in of_one[:10].explain()
