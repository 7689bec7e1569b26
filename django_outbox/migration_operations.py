"""The one operation our migrations use."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations import RunSQL


class PostgresSQL(RunSQL):
    """Run SQL on PostgreSQL and nothing elsewhere.

    A project may have a second database of another kind and migrate all its apps on it; the tables
    are of no use there, and the statements would fail.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)
