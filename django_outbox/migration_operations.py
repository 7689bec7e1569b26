"""The operations our migrations use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError
from django.db.migrations.operations import RunSQL

LOCK_NOT_AVAILABLE = "55P03"

# Whoever comes while a table is waited for waits behind, publishers among them. The setting ends
# with the migration's transaction.
WAIT = "SELECT set_config('lock_timeout', '900ms', true)"


class PostgresSQL(RunSQL):
    """Run SQL on PostgreSQL and nothing elsewhere, and wait a second at most for a table.

    A project may have a second database of another kind and migrate all its apps on it; the tables
    are of no use there, and the statements would fail.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            with _not_waiting(schema_editor):
                super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            with _not_waiting(schema_editor):
                super().database_backwards(app_label, schema_editor, from_state, to_state)


class ConcurrentSQL(PostgresSQL):
    """Run statements with `CONCURRENTLY` one by one, for a migration that is not atomic.

    Inside of a transaction that somebody has opened around it, as tests do, they go without the
    word, which PostgreSQL refuses there.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        fitted = PostgresSQL(_fit(self.sql, schema_editor), hints=self.hints)
        fitted.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        fitted = PostgresSQL(_fit(self.reverse_sql, schema_editor), hints=self.hints)
        fitted.database_forwards(app_label, schema_editor, from_state, to_state)


def _fit(statements: Any, schema_editor: Any) -> tuple[str, ...]:
    if not schema_editor.connection.in_atomic_block:
        return tuple(statements)
    return tuple(statement.replace(" CONCURRENTLY", "") for statement in statements)


@contextmanager
def _not_waiting(schema_editor: Any) -> Iterator[None]:
    """Give up on a table that another transaction keeps; explain it."""
    if schema_editor.connection.in_atomic_block:
        schema_editor.execute(WAIT)
    try:
        yield
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE:
            error.add_note(
                "Another transaction has used a table of the outbox for a second or longer, and "
                "publishers would have waited behind the migration. It has changed nothing. Run "
                "it again when that transaction has ended."
            )
        raise
