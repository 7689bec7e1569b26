"""The recipes of the page on upgrading, run while publishers and a worker are at work."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections

from django_outbox import outbox
from django_outbox.handlers import Handler
from django_outbox.worker.loop import Options, Worker
from tests.support import PATIENCE, wait_until
from tests.upgrade.tables import ALIAS, WAITING, Tables

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "upgrade.md"
REBUILD, CLAIM, TIMER, FIND, DROP = re.findall(r"(?ms)^```postgresql\n(.*?)^```$", PAGE.read_text())


def run(tables: Tables, recipe: str) -> list[tuple[Any, ...]]:
    """Run the statements one by one, each by itself, and return what the last has found."""
    with psycopg.connect(tables.url, autocommit=True) as psql:
        for statement in recipe.strip().removesuffix(";").split(";"):
            cursor = psql.execute(statement)
        return cursor.fetchall() if cursor.description else []


def file_of(tables: Tables, index: str) -> int:
    ((file,),) = tables.query("SELECT pg_relation_filenode(%s::regclass)", [index])
    return int(file)


class Traffic:
    """Publishers of timers and others, and a worker; all of it until the end of the block."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._stop = threading.Event()
        self._published = 0
        self._handled: list[Any] = []
        handler = Handler(
            function=lambda message: self._handled.append(message.payload), queues=("orders",)
        )
        options = Options(using=ALIAS, worker_id="w", concurrency=1)
        self._worker = Worker({"orders": handler}, options)
        self._threads = [
            threading.Thread(target=work) for work in (self._publish, self._worker.run)
        ]

    def _publish(self) -> None:
        while not self._stop.is_set():
            number = self._published
            self._tables.publish(number, queue="orders")
            self._tables.publish(
                number, queue="timers", timer_id=f"t{number % 3}", timer_conflict="replace"
            )
            self._published += 1
        connections[ALIAS].close()

    def goes_on(self) -> None:
        """Wait until more has been handled."""
        seen = len(self._handled)
        wait_until(lambda: len(self._handled) > seen + 10)

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        self.goes_on()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._threads[0].join(PATIENCE)
        try:
            wait_until(lambda: len(self._handled) == self._published)
        finally:
            self._worker.stop()
            self._threads[1].join(PATIENCE)
        assert sorted(self._handled) == list(range(self._published))
        assert self._tables.waiting == 3  # the timers


@pytest.fixture
def traffic(tables: Tables) -> Iterator[Traffic]:
    with Traffic(tables) as traffic:
        yield traffic


@pytest.mark.parametrize(
    ("recipe", "index"),
    [
        (REBUILD, "django_outbox_message_claim"),
        (CLAIM, "django_outbox_message_claim"),
        (TIMER, "django_outbox_message_timer"),
    ],
    ids=["rebuild", "claim", "timer"],
)
def test_an_index_is_another_one_afterwards_and_work_has_gone_on(
    tables: Tables, traffic: Traffic, recipe: str, index: str
) -> None:
    before = file_of(tables, index)

    run(tables, recipe)
    traffic.goes_on()

    assert file_of(tables, index) != before
    outbox.validate_schema(using=ALIAS)


def test_an_index_with_other_columns_is_mended(tables: Tables, traffic: Traffic) -> None:
    tables.query("DROP INDEX django_outbox_message_claim")
    tables.query("CREATE INDEX django_outbox_message_claim ON django_outbox_message (queue, id)")
    with pytest.raises(outbox.SchemaError):
        outbox.validate_schema(using=ALIAS)

    run(tables, CLAIM)

    outbox.validate_schema(using=ALIAS)


@pytest.mark.parametrize("recipe", [REBUILD, CLAIM, TIMER], ids=["rebuild", "claim", "timer"])
def test_a_recipe_that_waits_for_a_transaction_lets_others_publish(
    tables: Tables, recipe: str
) -> None:
    with psycopg.connect(tables.url) as older:
        older.execute("INSERT INTO django_outbox_message (queue, payload) VALUES ('a', '1')")
        thread = threading.Thread(target=run, args=[tables, recipe])
        thread.start()
        wait_until(lambda: tables.query(WAITING) == [(1,)])
        tables.query("SET lock_timeout = 100")

        tables.publish("beside", queue="orders", timer_id="t1")

        assert tables.query(WAITING) == [(1,)]
    thread.join(PATIENCE)
    assert not thread.is_alive()
    outbox.validate_schema(using=ALIAS)


def test_what_an_interrupted_build_leaves_is_found_and_dropped(tables: Tables) -> None:
    create = CLAIM.partition(";")[0]
    with psycopg.connect(tables.url) as older:
        older.execute("INSERT INTO django_outbox_message (queue, payload) VALUES ('a', '1')")
        with pytest.raises(psycopg.errors.QueryCanceled):
            run(tables, f"SET statement_timeout = 200; {create}")
    assert run(tables, FIND) == [("django_outbox_message_claim_new",)]

    run(tables, DROP)

    assert run(tables, FIND) == []
    run(tables, CLAIM)
    outbox.validate_schema(using=ALIAS)
