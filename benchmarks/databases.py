"""Databases that a benchmark makes for itself, on an embedded server or on one that is given.

Nothing here touches a database that it has not created, and all are dropped in the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier

from example_project.embedded import start_temporary


class Databases:
    """Makes databases that have the tables of the package and nothing in them."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._template = f"django_outbox_bench_{uuid4().hex[:12]}"
        self._count = 0

    @property
    def version(self) -> str:
        """The version of the server."""
        with psycopg.connect(self._server_url) as session:
            return (session.info.parameter_status("server_version") or "").split()[0]

    def set_up_server(self, statement: str) -> None:
        """Run a statement that is about the whole server, and have it heeded."""
        with psycopg.connect(self._server_url, autocommit=True) as session:
            session.execute(statement.encode())
            session.execute("SELECT pg_reload_conf()")

    @contextmanager
    def migrated(self) -> Iterator[None]:
        """Have a database with the tables to copy from, until the block ends."""
        self._run("CREATE DATABASE {}", self._template)
        try:
            migrate(self._url(self._template))
            yield
        finally:
            self._run("DROP DATABASE {} WITH (FORCE)", self._template)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Give the URL of a database of which no statistics are known yet."""
        self._count += 1
        name = f"{self._template}_{self._count}"
        self._run("CREATE DATABASE {} TEMPLATE {}", name, self._template)
        try:
            yield self._url(name)
        finally:
            self._run("DROP DATABASE {} WITH (FORCE)", name)

    def _run(self, statement: str, *names: str) -> None:
        with psycopg.connect(self._server_url, autocommit=True) as session:
            session.execute(SQL(statement).format(*map(Identifier, names)))

    def _url(self, name: str) -> str:
        return urlunsplit(urlsplit(self._server_url)._replace(path=f"/{name}"))


@contextmanager
def databases(*, postgres: int, server: str | None) -> Iterator[Databases]:
    """Give the databases of an embedded server of this version, or of the server at this URL.

    If the server cannot be reached, say so in a line and exit with 2.
    """
    if server is not None and not server.startswith(("postgres://", "postgresql://")):
        sys.exit(_unusable("its address has to begin with postgres://"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that databases are dropped
    with ExitStack() as stack:
        url = server or stack.enter_context(start_temporary(postgres)).url
        made = Databases(url)
        try:
            stack.enter_context(made.migrated())
        except psycopg.Error as error:
            sys.exit(_unusable(" ".join(str(error).split())))
        yield made


def _unusable(reason: str) -> int:
    """Say why the server cannot be used, and return the exit code."""
    print(f"The server cannot be used: {reason}", file=sys.stderr)
    return 2


def migrate(url: str) -> None:
    """Make the tables."""
    os.environ["DATABASE_URL"] = url
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    call_command("migrate", verbosity=0)
    connection.close()


def connect(url: str, *settings: str) -> psycopg.Connection[Any]:
    """Open a session in autocommit with these settings; statements are not prepared."""
    session = psycopg.connect(url, autocommit=True, prepare_threshold=None)
    for setting in settings:
        session.execute(f"SET {setting}".encode())
    return session
