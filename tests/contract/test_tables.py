"""The tables: their columns are stable, and migrations and models agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Model

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage

from .helpers import row

ROOT = Path(__file__).resolve().parents[2]

COLUMNS: dict[type[Model], str] = {
    OutboxMessage: """
        id message_id queue payload headers correlation_id timer_id created_at next_attempt_at
        expires_at max_attempts attempts_count deliveries_count first_attempt_at last_attempt_at
        last_error lease_token lease_expires_at leased_by
    """,
    DeadLetter: """
        id original_id message_id queue payload headers correlation_id timer_id created_at
        first_attempt_at last_attempt_at attempts_count deliveries_count failed_at failure_reason
        exception_class last_exception fingerprint
    """,
}

each_model = pytest.mark.parametrize("model", COLUMNS)


@each_model
def test_the_columns_are_those_that_queries_may_rely_on(model: type[Model]) -> None:
    assert {field.column for field in model._meta.concrete_fields} >= set(COLUMNS[model].split())


@each_model
def test_the_models_are_managed_and_their_tables_named_after_the_package(
    model: type[Model],
) -> None:
    assert model._meta.managed
    assert model._meta.db_table.startswith("django_outbox_")


@pytest.mark.django_db
@each_model
def test_the_database_has_the_columns_of_the_model(model: type[Model]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, is_nullable = 'YES' FROM information_schema.columns"
            " WHERE table_name = %s",
            [model._meta.db_table],
        )
        found = dict(cursor.fetchall())

    assert found == {field.column: field.null for field in model._meta.concrete_fields}


@pytest.mark.django_db
def test_a_row_made_with_the_orm_is_a_message_like_any_other() -> None:
    made = OutboxMessage.objects.create(queue="orders", payload=b"{}")
    published = row(outbox.publish({}, queue="orders"))
    made.refresh_from_db()

    assert made.attempts_count == published.attempts_count == 0
    assert made.headers == {}
    assert made.correlation_id
    assert made.message_id != published.message_id
    assert made.created_at <= made.next_attempt_at <= published.next_attempt_at


@pytest.mark.django_db
@pytest.mark.parametrize("half", ["lease_token", "lease_expires_at"])
def test_half_a_lease_is_impossible(half: str) -> None:
    outbox.publish({}, queue="orders")
    value: Any = uuid4() if half == "lease_token" else "2100-01-01T00:00Z"
    with pytest.raises(IntegrityError), transaction.atomic():
        OutboxMessage.objects.update(**{half: value})


@pytest.mark.django_db
def test_migrations_run_backwards_and_forwards() -> None:
    def tables() -> set[str]:
        names = connection.introspection.table_names()
        return {name for name in names if name.startswith("django_outbox_")}

    def indexes() -> set[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'django_outbox_%%'"
            )
            return set(cursor.fetchall())

    tables_before, indexes_before = tables(), indexes()
    assert tables_before
    call_command("migrate", "django_outbox", "zero", verbosity=0)
    assert tables() == set()
    call_command("migrate", "django_outbox", verbosity=0)

    assert (tables(), indexes()) == (tables_before, indexes_before)
    assert outbox.publish({}, queue="orders") is not None


PROJECT = """
import json, sys
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_outbox"],
    DATABASES={"default": json.loads(sys.argv[1])},
    DEFAULT_AUTO_FIELD=sys.argv[2],
)
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *sys.argv[3:]])
"""
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


def manage(*arguments: str, auto_field: str = "django.db.models.BigAutoField") -> str:
    """Run a command in a project that has no other app, on a database that is not PostgreSQL."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROJECT, json.dumps(SQLITE), auto_field, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "auto_field", ["django.db.models.AutoField", "django.db.models.BigAutoField"]
)
def test_no_migration_is_missing_whatever_the_projects_keys_are(auto_field: str) -> None:
    # J05
    output = manage("makemigrations", "--check", "--dry-run", auto_field=auto_field)

    assert "No changes detected" in output


def test_a_database_that_is_not_postgresql_can_still_be_migrated() -> None:
    assert "OK" in manage("migrate")
