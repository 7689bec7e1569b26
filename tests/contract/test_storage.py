"""Claims stay in their page, however full the table was written."""

from __future__ import annotations

import importlib

import pytest
from django.db import connection

from django_outbox import outbox
from django_outbox.store.messages import Lane, claim
from tests.support import committed, publish_many

MESSAGES = 1_000


def page_options() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'django_outbox_message'")
        options: list[str] = cursor.fetchone()[0]
        return options


def moved_from_their_page(ids: list[int], before: dict[int, int]) -> int:
    return sum(page != before[id_] for id_, page in pages(ids).items())


def pages(ids: list[int]) -> dict[int, int]:
    """Return the page of the table in which each message lies."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, split_part(trim(ctid::text, '()'), ',', 1)::int"
            " FROM django_outbox_message WHERE id = ANY(%s)",
            [ids],
        )
        return dict(cursor.fetchall())


@committed
@pytest.mark.parametrize("size", [2, 100, 256, 1_000])
def test_all_rows_of_a_full_page_find_room_beside_them_when_they_are_claimed(size: int) -> None:
    ids = publish_many(["x" * (size - 2)] * MESSAGES)
    before = pages(ids)

    with connection.cursor() as cursor:
        claim(
            cursor, [Lane("orders", 60.0)], limit=MESSAGES, worker_id="web-7d9f4c8b5-x2k4q-1-a1b2c3"
        )

    assert moved_from_their_page(ids, before) == 0


@pytest.mark.django_db
def test_the_option_is_set_by_a_migration_that_can_be_undone() -> None:
    migration = importlib.import_module("django_outbox.migrations.0004_storage")
    (operation,) = migration.Migration.operations

    assert page_options() == ["fillfactor=40"]
    with connection.cursor() as cursor:
        cursor.execute(operation.reverse_sql)
    assert page_options() == ["fillfactor=50"]
    with connection.cursor() as cursor:
        cursor.execute(operation.sql)
    outbox.validate_schema()
