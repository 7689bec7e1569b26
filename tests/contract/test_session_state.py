"""Session state that a handler leaves behind, by whatever way, does not reach the next message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from psycopg import sql

from django_outbox import outbox
from tests.support import committed, drain, publish

pytestmark = [committed, pytest.mark.usefixtures("registry")]

SET = "SET search_path TO pg_catalog"


def execute(statement: Any, params: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


def by_text() -> None:
    execute(SET)


def by_a_comment_first() -> None:
    execute(f"-- elsewhere\n/* for a\nwhile */ {SET}")


def behind_a_comment_with_a_statement_in_it() -> None:
    execute(f"SELECT '--'; /* it's a; b */ {SET}")


def by_a_second_statement() -> None:
    execute(f"SELECT 1; {SET}")


def by_composed_sql() -> None:
    execute(sql.SQL("SET search_path TO {}").format(sql.Identifier("pg_catalog")))


def by_bytes() -> None:
    execute(SET.encode())


def by_set_config() -> None:
    execute("SELECT set_config('search_path', %s, false)", ["pg_catalog"])


def by_a_block() -> None:
    execute(f"DO $$ BEGIN {SET}; END $$")


@pytest.mark.parametrize(
    "leave",
    [
        by_text,
        by_a_comment_first,
        behind_a_comment_with_a_statement_in_it,
        by_a_second_statement,
        by_composed_sql,
        by_bytes,
        by_set_config,
        by_a_block,
    ],
)
def test_the_next_message_finds_its_own_tables(leave: Callable[[], None]) -> None:
    # J07
    found: list[str] = []

    @outbox.handler("orders", retry=outbox.NoRetry())
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "dirty":
            leave()
            return
        with connection.cursor() as cursor:
            cursor.execute("SHOW search_path")
            found.extend(cursor.fetchone())

    publish("dirty")
    publish("clean")
    drain()

    assert found == ['"$user", public']


@pytest.mark.parametrize(
    "statement",
    ["SELECT 1", "SET LOCAL search_path TO pg_catalog", "UPDATE testapp_order SET name = ''"],
)
def test_what_leaves_no_state_keeps_the_connection(statement: str) -> None:
    backends: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            backends.extend(cursor.fetchone())
            cursor.execute(statement)

    publish()
    publish()
    drain()

    assert len(backends) == 2
    assert len(set(backends)) == 1
