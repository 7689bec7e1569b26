"""New code on older tables: not promised, and said so before it does harm."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connections

from django_outbox import handlers, outbox
from django_outbox.handlers import Handler
from django_outbox.management.commands import outbox_worker
from django_outbox.models import OutboxMessage
from django_outbox.worker.loop import Options, Worker
from tests.support import PATIENCE, wait_until
from tests.upgrade.tables import ALIAS, NAMES, NEWEST, Tables, before

COMMANDS = ["outbox_worker", "outbox_scheduler", "outbox_status", "outbox_check"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", NAMES[1:])
def test_a_command_names_the_migrations_that_are_missing(
    tables: Tables,
    name: str,
    command: str,
    registry: handlers.Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_worker, "registry", registry)
    outbox.handler("orders")(lambda message: None)
    tables.migrate(before(name))

    with pytest.raises(CommandError, match=rf"lacks the migration\(s\) {name}") as refused:
        call_command(command, "--database", ALIAS)

    assert "Run: manage.py migrate django_outbox --database upgrade" in str(refused.value)
    assert NAMES[-1] in str(refused.value)


def test_publishing_where_a_column_is_missing_fails_with_the_callers_transaction(
    tables: Tables,
) -> None:
    tables.migrate("0002_schedules")

    with pytest.raises(ProgrammingError, match='column "ref"'):
        tables.publish(7, queue="orders")

    assert tables.query("SELECT count(*) FROM django_outbox_message") == [(0,)]


def test_migrating_to_and_fro_under_traffic_holds_nobody_up_where_columns_stay(
    tables: Tables,
) -> None:
    # G07
    handled: list[tuple[Any, int]] = []
    handler = Handler(
        function=lambda message: handled.append((message.payload, message.attempt)),
        queues=("orders",),
    )
    worker = Worker({"orders": handler}, Options(using=ALIAS, worker_id="w", concurrency=2))
    stop = threading.Event()
    published: list[int] = []

    def publish() -> None:
        while not stop.is_set():
            tables.publish(len(published), queue="orders")
            published.append(len(published))
        connections[ALIAS].close()

    threads = [threading.Thread(target=run) for run in (worker.run, publish)]
    for thread in threads:
        thread.start()
    try:
        for name in ["0003_operations", NEWEST] * 3:
            seen = len(handled)
            tables.migrate(name)
            wait_until(lambda seen=seen: len(handled) > seen + 20)  # type: ignore[misc]
        stop.set()
        threads[1].join(PATIENCE)
        wait_until(lambda: not OutboxMessage.objects.using(ALIAS).exists())
    finally:
        stop.set()
        worker.stop()
        for thread in threads:
            thread.join(PATIENCE)

    assert sorted(handled) == [(number, 1) for number in published]
    outbox.validate_schema(using=ALIAS)
