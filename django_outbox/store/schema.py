"""What the database's catalogue says of our tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from . import Cursor

TABLES = """
SELECT name FROM unnest(%(names)s::text[]) AS name WHERE to_regclass(quote_ident(name)) IS NOT NULL
"""


def tables(cursor: Cursor, names: Sequence[str]) -> set[str]:
    """Return which of these tables there are, as the search path finds them."""
    cursor.execute(TABLES, {"names": list(names)})
    return {row[0] for row in cursor.fetchall()}


class Column(NamedTuple):
    """A column; of `default` and `generated` at most one is there."""

    type: str
    is_required: bool = False
    default: str | None = None
    generated: str | None = None
    is_identity: bool = False


COLUMNS = """
SELECT
    attname, format_type(atttypid, atttypmod), attnotnull,
    CASE WHEN attgenerated = '' THEN pg_get_expr(adbin, adrelid) END,
    CASE WHEN attgenerated <> '' THEN pg_get_expr(adbin, adrelid) END,
    attidentity <> ''
FROM pg_attribute
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = to_regclass(quote_ident(%(table)s)) AND attnum > 0 AND NOT attisdropped
ORDER BY attnum
"""


def columns(cursor: Cursor, table: str) -> dict[str, Column]:
    """Return a table's columns by name, in their order."""
    cursor.execute(COLUMNS, {"table": table})
    return {name: Column(*rest) for name, *rest in cursor.fetchall()}


class Index(NamedTuple):
    """An index: what stands behind USING in its definition, and the columns it has to do with."""

    is_unique: bool
    definition: str
    is_valid: bool
    columns: Sequence[str]


INDEXES = """
SELECT
    relname, indisunique, substring(pg_get_indexdef(indexrelid) FROM ' USING (.*)$'),
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
FROM pg_index
JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = to_regclass(quote_ident(%(table)s))
ORDER BY relname
"""


def indexes(cursor: Cursor, table: str) -> dict[str, Index]:
    """Return a table's indexes by name, those behind constraints included."""
    cursor.execute(INDEXES, {"table": table})
    return {name: Index(*rest) for name, *rest in cursor.fetchall()}


CHECKS = """
SELECT conname, pg_get_constraintdef(oid)
FROM pg_constraint
WHERE conrelid = to_regclass(quote_ident(%(table)s)) AND contype = 'c'
ORDER BY conname
"""


def checks(cursor: Cursor, table: str) -> dict[str, str]:
    """Return the definitions of a table's CHECK constraints by name."""
    cursor.execute(CHECKS, {"table": table})
    return dict(cursor.fetchall())


OPTIONS = """
SELECT option_name, option_value
FROM pg_class, pg_options_to_table(reloptions)
WHERE pg_class.oid = to_regclass(quote_ident(%(table)s))
"""


def options(cursor: Cursor, table: str) -> dict[str, str]:
    """Return the storage options that a table has been given."""
    cursor.execute(OPTIONS, {"table": table})
    return dict(cursor.fetchall())


TRIGGERS = """
SELECT tgname, pg_get_triggerdef(oid), tgenabled <> 'D'
FROM pg_trigger
WHERE tgrelid = to_regclass(quote_ident(%(table)s)) AND NOT tgisinternal
"""


class Trigger(NamedTuple):
    """A trigger's definition, and whether it fires at all."""

    definition: str
    is_enabled: bool


def triggers(cursor: Cursor, table: str) -> dict[str, Trigger]:
    """Return a table's triggers by name."""
    cursor.execute(TRIGGERS, {"table": table})
    return {name: Trigger(*rest) for name, *rest in cursor.fetchall()}
