"""The admin shows rows written by hand, all of them, whatever stands in which column."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from tests.by_hand import values

pytestmark = pytest.mark.django_db

LETTER = (
    "INSERT INTO django_outbox_dead_letter (original_id, message_id, queue, payload, headers,"
    " correlation_id, created_at, failure_reason) VALUES (1, gen_random_uuid(), 'orders', '{}',"
    " '{\"content-type\": \"application/json\"}', 'c', now(), 'rejected')"
)
MESSAGE = (
    "INSERT INTO django_outbox_message (queue, payload, headers) VALUES ('orders', '{}',"
    ' \'{"content-type": "application/json"}\')'
)
SCHEDULE = (
    "INSERT INTO django_outbox_schedule (name, spec, timezone, queue, payload, headers,"
    " next_run_at, planned_for) SELECT 'n' || count(*), '@every 1h', 'UTC', 'orders', '{}', '{}',"
    " now(), '' FROM django_outbox_schedule"
)
WORKER = (
    "INSERT INTO django_outbox_worker (id, worker_id, kind, host, pid) VALUES"
    " (gen_random_uuid(), 'w', 'worker', 'h', 1)"
)
TABLES = {
    "outboxmessage": (MESSAGE, values.MESSAGE),
    "deadletter": (LETTER, values.LETTER),
    "schedule": (SCHEDULE, values.SCHEDULE),
    "worker": (WORKER, values.WORKER),
}


def written(insert: str, column: str, value: str) -> Any:
    """Insert a row that is right, put what is wrong into it, and return its primary key."""
    with connection.cursor() as cursor:
        cursor.execute(f"{insert} RETURNING id")
        (id_,) = cursor.fetchone()
        table = insert.split()[2]
        token = ", lease_token = gen_random_uuid()" if column == "lease_expires_at" else ""
        cursor.execute(
            f"UPDATE {table} SET {column} = {value}{token} WHERE id = %s RETURNING id", [id_]
        )
        (id_,) = cursor.fetchone()
    return id_


@pytest.mark.parametrize(
    ("model", "column"),
    [(model, column) for model, (_, columns) in TABLES.items() for column in columns],
)
def test_every_page_opens(model: str, column: str, admin_client: Client) -> None:
    insert, columns = TABLES[model]
    ids = [written(insert, column, value) for value in columns[column]]
    views = [
        reverse("admin:app_list", args=["django_outbox"]),
        reverse(f"admin:django_outbox_{model}_changelist"),
        *(reverse(f"admin:django_outbox_{model}_change", args=[id_]) for id_ in ids),
    ]
    if model == "deadletter":
        views.append(reverse("admin:django_outbox_deadletter_failing"))

    for view in views:
        response = admin_client.get(view)
        assert response.status_code == 200, view
        # A form holds all that it is to save.
        assert len(response.content) < 2_000_000 or (model, column) == ("schedule", "headers")
