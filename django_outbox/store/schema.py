"""What the database's catalogue says of our tables: one statement for each kind of thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from . import Cursor

T = TypeVar("T")
Found: TypeAlias = dict[str, dict[str, T]]
"""Things by table and by their name."""

TABLES = """
SELECT
    ours,
    ARRAY(
        SELECT attname::text
        FROM pg_partitioned_table
        JOIN pg_attribute ON attrelid = partrelid AND attnum = ANY(partattrs)
        WHERE partrelid = to_regclass(quote_ident(ours))
    )
FROM unnest(%(tables)s::text[]) AS ours
WHERE to_regclass(quote_ident(ours)) IS NOT NULL
"""


def existing(cursor: Cursor, tables: Sequence[str]) -> dict[str, list[str]]:
    """Return those of the tables that the search path finds, and what each is partitioned by."""
    cursor.execute(TABLES, {"tables": list(tables)})
    return dict(cursor.fetchall())


class Column(NamedTuple):
    """A column; of `default` and `generated` at most one is there."""

    type: str
    is_required: bool = False
    default: str | None = None
    generated: str | None = None
    is_identity: bool = False


COLUMNS = """
SELECT
    relname, attname, format_type(atttypid, atttypmod), attnotnull,
    CASE WHEN attgenerated = '' THEN pg_get_expr(adbin, adrelid) END,
    CASE WHEN attgenerated <> '' THEN pg_get_expr(adbin, adrelid) END,
    attidentity <> ''
FROM unnest(%(tables)s::text[]) AS ours
JOIN pg_class ON pg_class.oid = to_regclass(quote_ident(ours))
JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
ORDER BY relname, attnum
"""


def columns(cursor: Cursor, tables: Sequence[str]) -> Found[Column]:
    """Return the columns, in their order."""
    return _by_table(cursor, COLUMNS, tables, Column)


class Index(NamedTuple):
    """An index: what stands behind USING in its definition, and the columns it has to do with."""

    is_unique: bool
    definition: str
    is_valid: bool
    columns: Sequence[str]


INDEXES = """
SELECT
    pg_class.relname, index_class.relname, indisunique,
    substring(pg_get_indexdef(indexrelid) FROM ' USING (.*)$'),
    indisvalid AND indisready,
    ARRAY(
        SELECT DISTINCT attname::text
        FROM pg_depend
        JOIN pg_attribute ON attrelid = refobjid AND attnum = refobjsubid
        WHERE classid = 'pg_class'::regclass AND objid = indexrelid AND refobjid = indrelid
        UNION
        SELECT attname::text
        FROM pg_attribute
        WHERE attrelid = indrelid AND attnum = ANY(indkey)
    )
FROM unnest(%(tables)s::text[]) AS ours
JOIN pg_class ON pg_class.oid = to_regclass(quote_ident(ours))
JOIN pg_index ON indrelid = pg_class.oid
JOIN pg_class AS index_class ON index_class.oid = indexrelid
ORDER BY pg_class.relname, index_class.relname
"""


def indexes(cursor: Cursor, tables: Sequence[str]) -> Found[Index]:
    """Return the indexes, those behind constraints included."""
    return _by_table(cursor, INDEXES, tables, Index)


CHECKS = """
SELECT relname, conname, pg_get_constraintdef(pg_constraint.oid)
FROM unnest(%(tables)s::text[]) AS ours
JOIN pg_class ON pg_class.oid = to_regclass(quote_ident(ours))
JOIN pg_constraint ON conrelid = pg_class.oid AND contype = 'c'
ORDER BY relname, conname
"""


def checks(cursor: Cursor, tables: Sequence[str]) -> Found[str]:
    """Return the definitions of the CHECK constraints."""
    return _by_table(cursor, CHECKS, tables, str)


OPTIONS = """
SELECT relname, option_name, option_value
FROM unnest(%(tables)s::text[]) AS ours
JOIN pg_class ON pg_class.oid = to_regclass(quote_ident(ours))
CROSS JOIN pg_options_to_table(reloptions)
"""


def options(cursor: Cursor, tables: Sequence[str]) -> Found[str]:
    """Return the storage options that tables have been given."""
    return _by_table(cursor, OPTIONS, tables, str)


TRIGGERS = """
SELECT relname, tgname, pg_get_triggerdef(pg_trigger.oid), tgenabled IN ('O', 'A')
FROM unnest(%(tables)s::text[]) AS ours
JOIN pg_class ON pg_class.oid = to_regclass(quote_ident(ours))
JOIN pg_trigger ON tgrelid = pg_class.oid AND NOT tgisinternal
"""


class Trigger(NamedTuple):
    """A trigger's definition, and whether it fires at all."""

    definition: str
    is_enabled: bool


def triggers(cursor: Cursor, tables: Sequence[str]) -> Found[Trigger]:
    """Return the triggers."""
    return _by_table(cursor, TRIGGERS, tables, Trigger)


def _by_table(
    cursor: Cursor, statement: str, tables: Sequence[str], kind: Callable[..., T]
) -> Found[T]:
    """Run a statement whose rows begin with a table and a name; return the rest by these."""
    cursor.execute(statement, {"tables": list(tables)})
    found: Found[T] = {table: {} for table in tables}
    for table, name, *rest in cursor.fetchall():
        found[table][name] = kind(*rest)
    return found
