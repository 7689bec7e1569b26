"""Whether the database's tables are still as the migrations made them.

Migrations are recorded, not looked at: a restore, a hand at three in the morning or another tool
may have left an index out, and nothing would say so but the bill for it.
"""

from __future__ import annotations

from django.db import connections

from ..errors import SchemaError
from ..publishing import default_alias
from ..store import Cursor
from ..store import schema as store
from ..store.storage import require_postgres
from .comparing import Difference, Found, differences
from .expected import EXPECTED

COMMAND = "manage.py migrate django_outbox"


def validate_schema(using: str | None = None) -> None:
    """Raise `SchemaError` if a table, column, index, CHECK or storage option is not as it should.

    Its text names each of them with the statement that mends it; `differences` on the error has
    them one by one. What a site has added is left alone, but for an index that keeps claims from
    being HOT updates.
    """
    alias = default_alias() if using is None else using
    if found := find_differences(alias):
        raise SchemaError(alias, found)


def find_differences(using: str) -> list[Difference]:
    """Return what is not as it should be, in the order of the tables; nothing is changed."""
    require_postgres(using)
    with connections[using].cursor() as cursor:
        found = _find(cursor)
    if not found:
        return [Difference("There are no tables of django_outbox.", COMMAND)]
    return [
        difference
        for name, expected in EXPECTED.items()
        for difference in differences(name, expected, found.get(name))
    ]


def _find(cursor: Cursor) -> dict[str, Found]:
    """Return our tables as the database has them, those that there are."""
    tables = list(EXPECTED)
    columns, indexes = store.columns(cursor, tables), store.indexes(cursor, tables)
    checks, options = store.checks(cursor, tables), store.options(cursor, tables)
    triggers = store.triggers(cursor, tables)
    return {
        table: Found(
            columns=columns[table],
            indexes=indexes[table],
            checks=checks[table],
            options=options[table],
            triggers=triggers[table],
            partitioned_by=partitioned_by,
        )
        for table, partitioned_by in store.existing(cursor, tables).items()
    }
