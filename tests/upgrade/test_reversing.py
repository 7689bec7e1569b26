"""Migrations go back and forth with rows in the tables."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from django_outbox import outbox
from django_outbox.handlers import Handler
from django_outbox.worker.loop import Options, Worker
from tests.testapp.models import Order
from tests.upgrade.tables import ALIAS, NAMES, NEWEST, Tables

MESSAGES = (
    "SELECT id, message_id, queue, payload, lease_token FROM django_outbox_message ORDER BY id"
)
LETTERS = "SELECT id, message_id, queue, payload, failure_reason FROM django_outbox_dead_letter"


def reject(message: outbox.Message[Any]) -> None:
    raise outbox.Reject("no such order")


def deliver(tables: Tables, function: Any) -> None:
    handler = Handler(function=function, queues=("orders",))
    options = Options(using=ALIAS, worker_id="w", concurrency=1, drain=True)
    assert Worker({"orders": handler}, options).run() == 0


@pytest.fixture
def last_id(tables: Tables) -> int:
    """Have rows in every table, and return the last id that was given."""
    tables.publish("rejected", queue="orders")
    deliver(tables, reject)
    tables.publish("timer", queue="orders", timer_id="t1")
    tables.query(
        "UPDATE django_outbox_message SET lease_token = gen_random_uuid(), lease_expires_at = now()"
    )
    outbox.schedule("report", "@every 1d", queue="orders", using=ALIAS)
    order = Order.objects.using(ALIAS).create(name="seven")
    return tables.publish("waits", queue="orders", ref=order)


@pytest.mark.parametrize("name", NAMES[:-1])
def test_messages_and_letters_are_kept_on_the_way_back_and_forth(
    tables: Tables, last_id: int, name: str
) -> None:
    messages, letters = tables.query(MESSAGES), tables.query(LETTERS)
    assert (len(messages), len(letters)) == (2, 1)

    tables.migrate(name)
    assert (tables.query(MESSAGES), tables.query(LETTERS)) == (messages, letters)
    tables.migrate(NEWEST)

    assert (tables.query(MESSAGES), tables.query(LETTERS)) == (messages, letters)
    outbox.validate_schema(using=ALIAS)
    assert tables.publish("after", queue="orders") > last_id
    handled: list[Any] = []
    deliver(tables, lambda message: handled.append(message.payload))
    assert sorted(handled) == ["after", "timer", "waits"]


def test_zero_leaves_nothing_behind(tables: Tables, last_id: int) -> None:
    tables.migrate("zero")

    names = "relname LIKE 'django_outbox_%'"
    assert tables.query(f"SELECT relname FROM pg_class WHERE {names}") == []
    assert tables.query("SELECT proname FROM pg_proc WHERE proname LIKE 'django_outbox_%'") == []
    tables.migrate(NEWEST)
    outbox.validate_schema(using=ALIAS)
    connections[ALIAS].close()
