"""What the commands share: the database they work on, and that it is fit to."""

from __future__ import annotations

import logging
import sys
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error as DatabaseError
from django.db import connections

from ..errors import summary
from ..migrated import APP, missing_migrations
from ..publishing import default_alias
from ..scheduling.declaring import declarations


class OutboxCommand(BaseCommand):
    """A command on one database's outbox."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Add what every command takes; the subclass adds its own."""
        parser.add_argument(
            "--database",
            metavar="ALIAS",
            help="The database whose outbox to use (default: where the router sends messages).",
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; say in one line which privilege its database user lacks."""
        try:
            return super().execute(*args, **options)
        except DatabaseError as error:
            if not _lacks_privilege(error):
                raise
            raise CommandError(
                f"The database user lacks a privilege: {summary(error)}. The documentation says "
                "what each command needs, in 'Give each process only the privileges it needs'."
            ) from error

    def ready_database(self, alias: str | None) -> str:
        """Return the alias to use, having seen that it is PostgreSQL and migrated.

        Raises `CommandError` with what to do about it if it is not.
        """
        alias = default_alias() if alias is None else alias
        if alias not in connections:
            raise CommandError(
                f"There is no database {alias!r} in DATABASES; there is "
                f"{', '.join(sorted(connections))}."
            )
        connection = connections[alias]
        if connection.vendor != "postgresql":
            raise CommandError(
                f"django_outbox needs PostgreSQL, and the database {alias!r} is "
                f"{connection.display_name}. Name another one with --database, or point "
                f"DATABASES[{alias!r}] to a PostgreSQL server."
            )
        try:
            missing = missing_migrations(alias)
        except DatabaseError as error:
            if _lacks_privilege(error):
                raise
            raise CommandError(f"The database {alias!r} cannot be used: {error}") from error
        if missing:
            raise CommandError(
                f"The database {alias!r} lacks the migration(s) {', '.join(missing)} of {APP}. "
                f"Run: manage.py migrate {APP} --database {alias}"
            )
        return alias


def _lacks_privilege(error: DatabaseError) -> bool:
    return isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege)


def log_to_stderr(verbosity: int, *, whose: str = "") -> None:
    """Show the package's log on stderr where the site has not configured logging for it.

    `whose` stands before each line of a process that shares it with others.
    """
    logger = logging.getLogger(APP)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    who = f"{whose}: ".replace("%", "%%") if whose else ""
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {who}%(message)s"))
    logger.addHandler(handler)
    levels = {0: logging.ERROR, 1: logging.INFO, 2: logging.INFO}
    logger.setLevel(levels.get(verbosity, logging.DEBUG))


MOST = 1_000_000_000


def number(kind: type, *, least: float, what: str) -> Any:
    """Return an argparse type: a number of `kind` from `least` to a billion."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not least <= value <= MOST:
            raise ValueError(text)
        return value

    parse.__name__ = what
    return parse


def check_schedules() -> int:
    """Return how many schedules are declared; raise `CommandError` if one cannot be used."""
    try:
        return len(declarations())
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
