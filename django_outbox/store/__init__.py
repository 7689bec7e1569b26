"""The only place that executes SQL: one module per table, one named statement per operation.

Every function takes an open cursor, Django's or psycopg's own, and neither begins nor ends a
transaction; what it runs is part of whatever the caller has open. All moments are the database's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

CHANNEL = "django_outbox"
"""The NOTIFY channel; the payload of a notification is the name of a queue."""


class Cursor(Protocol):
    """The part of Django's and psycopg's cursors that is used here."""

    def execute(self, query: Any, params: Mapping[str, Any], /) -> Any: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...
