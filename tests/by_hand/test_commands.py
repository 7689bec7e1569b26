"""Dead letters, leases, processes and counters written by hand: commands and workers go on."""

from __future__ import annotations

import json
import threading
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from django_outbox import outbox
from django_outbox.models import Counter, DeadLetter, Lease, OutboxMessage, Worker
from tests.by_hand import values
from tests.support import (
    PATIENCE,
    committed,
    drain,
    publish_many,
    running,
    session,
    wait_until,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]

ROWS = {
    "django_outbox_dead_letter": (
        "(original_id, message_id, queue, payload, headers, correlation_id, created_at,"
        " failure_reason) VALUES (1, gen_random_uuid(), 'orders', '{}', '{}', 'c', now(),"
        " 'rejected')"
    ),
    "django_outbox_worker": (
        "(id, worker_id, kind, host, pid) VALUES (gen_random_uuid(), 'w', 'worker', 'h', 1)"
    ),
    "django_outbox_lease": (
        "(name, owner, acquired_at, expires_at) VALUES ('__scheduler', 'o', now(), now())"
    ),
    "django_outbox_counter": (
        "(minute, queue) SELECT date_trunc('minute', now()) - count(*) * interval '1 minute',"
        " 'orders' FROM django_outbox_counter"
    ),
}


def write(table: str, column: str, value: str) -> None:
    """Insert a row that is right, and then put what is wrong into it."""
    with session() as other:
        place = other.execute(f"INSERT INTO {table} {ROWS[table]} RETURNING ctid").fetchone()
        assert place is not None
        other.execute(f"UPDATE {table} SET {column} = {value} WHERE ctid = %s", place)


def query(sql: str) -> Any:
    with session() as other:
        return other.execute(sql).fetchone()


def handle_orders() -> list[Any]:
    """Register a handler and return the payloads that it will have had."""
    got: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)

    return got


def printed(*command: str) -> str:
    out = StringIO()
    call_command(*command, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


@pytest.mark.parametrize("column", values.LETTER)
def test_wrong_letters_are_counted_and_replayed(column: str) -> None:
    for value in values.LETTER[column]:
        write("django_outbox_dead_letter", column, value)
    number = len(values.LETTER[column])

    report = json.loads(printed("outbox_status", "--json"))
    assert sum(queue["dead"] for queue in report["queues"]) == number
    assert printed("outbox_check").endswith("are as they should be.\n")
    assert printed("outbox_replay", "--all", "--dry-run").startswith(f"Would replay {number}")
    assert printed("outbox_replay", "--all").startswith(f"Replayed {number}")

    assert not DeadLetter.objects.exists()
    assert OutboxMessage.objects.count() == number


@pytest.mark.parametrize("column", values.LETTER)
def test_wrong_letters_are_pruned_and_discarded(column: str) -> None:
    for value in values.LETTER[column]:
        write("django_outbox_dead_letter", column, value)

    printed("outbox_prune", "--dead-older-than", "1d")
    DeadLetter.objects.all().discard()

    assert not DeadLetter.objects.exists()


@pytest.mark.parametrize(
    ("table", "columns"),
    [("django_outbox_worker", values.WORKER), ("django_outbox_counter", values.COUNTER)],
    ids=["workers", "counters"],
)
def test_a_worker_works_beside_wrong_rows_of_others(
    table: str, columns: dict[str, list[str]]
) -> None:
    handled = handle_orders()
    for column, value in values.cases(columns):
        write(table, column, value)
    publish_many([1, 2, 3])

    drain()

    assert sorted(handled) == [1, 2, 3]
    assert printed("outbox_status")
    assert not OutboxMessage.objects.exists()


def test_a_counter_that_is_full_stops_nobody() -> None:
    handled = handle_orders()
    for minutes in range(2):  # the test may run into the next minute
        with session() as other:
            other.execute(
                "INSERT INTO django_outbox_counter (minute, queue, completed) VALUES"
                " (date_trunc('minute', now()) + %s * interval '1 minute', 'orders', %s)",
                [minutes, 2**63 - 1],
            )
    publish_many([1, 2, 3])

    with running():
        wait_until(lambda: len(handled) == 3)
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert {counter.completed for counter in Counter.objects.all()} == {2**63 - 1}


@pytest.mark.parametrize(("column", "value"), values.cases(values.LEASE))
def test_a_wrong_lease_keeps_a_scheduler_waiting_at_most(column: str, value: str) -> None:
    write("django_outbox_lease", column, value)
    outbox.schedule("report", "@every 1h", queue="orders")
    (runs_out,) = query(
        "SELECT expires_at <= clock_timestamp() FROM django_outbox_lease WHERE name = '__scheduler'"
    )
    stop = outbox.StopToken()
    said: list[str] = []

    def run() -> None:
        try:
            outbox.run_schedules(stop)
        except outbox.LeadershipLost as lost:
            said.append(str(lost))
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: said or query("SELECT owner ~ ':' FROM django_outbox_lease") == (True,))
        assert printed("outbox_status")
    finally:
        stop.stop()
        thread.join(PATIENCE)

    assert said == ([] if runs_out else ["Another scheduler leads."])


@pytest.mark.parametrize(
    ("model", "columns", "besides"),
    [
        (DeadLetter, values.LETTER, {"message_id"}),
        (Worker, values.WORKER, {"id"}),
        (Lease, values.LEASE, {"name"}),
        (Counter, values.COUNTER, {"id"}),
    ],
)
def test_every_column_is_tried(
    model: Any, columns: dict[str, list[str]], besides: set[str]
) -> None:
    assert {field.column for field in model._meta.fields} - {*columns} == besides
