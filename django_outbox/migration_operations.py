"""The operations our migrations use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, router
from django.db.migrations.operations import RunSQL
from django.db.migrations.operations.base import Operation

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


DEFINITION = """
SELECT
    CASE WHEN indisvalid AND indisready
        THEN substring(pg_get_indexdef(indexrelid) FROM ' USING (.*)$')
        ELSE ''
    END
FROM pg_index
WHERE indexrelid = to_regclass(%s)
"""

SCHEMA = """
SELECT quote_ident(nspname)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass(%s)
"""


class ReplaceIndex(Operation):
    """Make an index anew beside the one of the same name, which goes last, `CONCURRENTLY`.

    For a migration that is not atomic. One that was interrupted is run again, and goes on with what
    it has made. `before` and `after` are what stands behind USING in PostgreSQL's own definition.
    In a transaction that somebody has opened around it, as tests do, it goes without CONCURRENTLY.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(self, model_name: str, table: str, name: str, *, before: str, after: str) -> None:
        self.model_name = model_name
        self.table = table
        self.name = name
        self.before = before
        self.after = after

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Leave the state to other operations."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        self._replace(app_label, schema_editor, self.after)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        self._replace(app_label, schema_editor, self.before)

    def describe(self) -> str:
        return f"Make the index {self.name} anew"

    def _replace(self, app_label: str, editor: Any, definition: str) -> None:
        connection = editor.connection
        is_ours = router.allow_migrate(connection.alias, app_label, model_name=self.model_name)
        if connection.vendor != "postgresql" or not is_ours:
            return
        concurrently = "" if connection.in_atomic_block else "CONCURRENTLY "
        # Other schemas on the search path may have an outbox as well.
        prefix = _schema(editor, self.table)
        new = f"{self.name}_new"
        with _not_waiting(editor), _alone(editor, prefix + self.name):
            if _definition(editor, prefix + self.name) == definition:
                return  # another run has done it
            found = _definition(editor, prefix + new)
            if found != definition:
                if found is not None:
                    editor.execute(f"DROP INDEX {concurrently}{prefix}{new}")
                editor.execute(
                    f"CREATE INDEX {concurrently}{new} ON {prefix}{self.table} USING {definition}"
                )
            editor.execute(f"DROP INDEX {concurrently}IF EXISTS {prefix}{self.name}")
            editor.execute(f"ALTER INDEX {prefix}{new} RENAME TO {self.name}")


@contextmanager
def _alone(editor: Any, index: str) -> Iterator[None]:
    """Let one migration at a time replace the index: two would drop each other's.

    It is not waited for in the server: a statement that waits keeps CONCURRENTLY waiting. Behind a
    pooler the lock would stay with a session that is somebody else's by then.
    """
    connection = editor.connection
    is_shared = connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    if editor.collect_sql or connection.in_atomic_block or is_shared:
        yield
        return
    while not _row(editor, "SELECT 1 WHERE pg_try_advisory_lock(hashtext(%s))", index):
        time.sleep(0.1)
    try:
        yield
    finally:
        _row(editor, "SELECT pg_advisory_unlock(hashtext(%s))", index)


def _schema(editor: Any, table: str) -> str:
    """Return the schema of a table as it stands before a name; nothing where SQL is only shown."""
    row = _row(editor, SCHEMA, table)
    return "" if row is None else f"{row[0]}."


def _definition(editor: Any, index: str) -> str | None:
    """Return how an index is defined, '' if it is not valid; None if there is none."""
    row = _row(editor, DEFINITION, index)
    return None if row is None else str(row[0])


def _row(editor: Any, query: str, name: str) -> tuple[Any, ...] | None:
    if editor.collect_sql:
        return None
    with editor.connection.cursor() as cursor:
        cursor.execute(query, [name])
        row: tuple[Any, ...] | None = cursor.fetchone()
    return row


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
