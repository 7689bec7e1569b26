"""A database of its own, migrated to where a test wants it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from psycopg import sql

from django_outbox.models import OutboxMessage
from tests.elsewhere import Elsewhere
from tests.support import session
from tests.testapp.models import Order

ALIAS = "upgrade"
APP = "django_outbox"


WAITING = """
SELECT count(*)::int FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
"""How many statements wait for a lock."""


def names() -> list[str]:
    """Return our migrations in their order."""
    loader = MigrationLoader(None)
    return sorted(name for app, name in loader.disk_migrations if app == APP)


NAMES = names()
NEWEST = NAMES[-1]


def before(name: str) -> str:
    """Return the migration before this one, or `zero`."""
    position = NAMES.index(name)
    return NAMES[position - 1] if position else "zero"


class Tables(Elsewhere):
    """What the database has, and what is done with it."""

    alias = ALIAS

    def __init__(self, database: str) -> None:
        self.url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{database}").geturl()

    def migrate(self, name: str) -> None:
        """Migrate forward or backward to a migration, or to `zero`."""
        executor = MigrationExecutor(connections[ALIAS])
        executor.migrate([(APP, None if name == "zero" else name)])

    def query(self, statement: str, params: Any = None) -> list[tuple[Any, ...]]:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute(statement, params)
            return list(cursor.fetchall()) if cursor.description else []

    @property
    def waiting(self) -> int:
        return OutboxMessage.objects.using(ALIAS).count()

    @property
    def booked(self) -> list[str]:
        return sorted(Order.objects.using(ALIAS).values_list("name", flat=True))


@contextmanager
def provide() -> Iterator[Tables]:
    """Make the database for the block, with the newest tables."""
    default = connections.databases["default"]
    database = f"outbox_upgrade_{os.getpid()}"
    name = sql.Identifier(database)
    with session() as direct:
        direct.execute(sql.SQL("CREATE DATABASE {}").format(name))
    connections.databases[ALIAS] = {**default, "NAME": database}
    try:
        tables = Tables(database)
        tables.migrate(NEWEST)
        with connections[ALIAS].schema_editor() as editor:
            editor.create_model(Order)
        yield tables
    finally:
        connections[ALIAS].close()
        del connections[ALIAS]
        del connections.databases[ALIAS]
        with session() as direct:
            direct.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
