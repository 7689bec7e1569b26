"""A PostgreSQL server beside that of the tests, to be stopped, restarted and looked into."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import environ
import psycopg
from django.db import connections
from django.db.models import QuerySet

from django_outbox.models import OutboxMessage
from example_project.embedded import TemporaryServer, start_temporary
from tests.elsewhere import Elsewhere
from tests.process.stage import ROOT
from tests.support import wait_until
from tests.testapp.models import Order

ALIAS = "spare"


class Spare(Elsewhere):
    """The server with the outbox's tables, under the alias `spare` in this process."""

    alias = ALIAS

    def __init__(self, server: TemporaryServer) -> None:
        self.server = server
        self.url = server.url

    def statements(self) -> int:
        """Count the statements of sessions with `log_statement=all` so far."""
        log = (self.server.data / "server.log").read_text()
        return log.count("LOG:  statement:") + log.count("LOG:  execute ")

    @property
    def messages(self) -> QuerySet[OutboxMessage]:
        return OutboxMessage.objects.using(ALIAS)

    @property
    def orders(self) -> QuerySet[Order]:
        return Order.objects.using(ALIAS)

    def halt(self, mode: Any = "fast") -> None:
        """Stop the server; this process's own connection is closed first."""
        connections[ALIAS].close()
        self.server.halt(mode)

    def resume(self) -> None:
        self.server.resume()

    def restart(self, mode: Any) -> None:
        self.halt(mode)
        self.resume()

    @contextmanager
    def session(self, options: str = "") -> Iterator[psycopg.Connection[Any]]:
        """Open a connection of its own, in autocommit."""
        with psycopg.connect(self.url, autocommit=True, options=options) as own:
            yield own

    def query(self, sql: str, params: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a statement run on a connection of its own."""
        with self.session() as own:
            return own.execute(sql, params).fetchall()

    def execute(self, sql: str) -> None:
        with self.session() as own:
            own.execute(sql)

    def set_read_only(self, value: str) -> None:
        """Have all transactions of all sessions refuse writes, or not."""
        with self.session("-c default_transaction_read_only=off") as own:
            own.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            own.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self.query("SHOW default_transaction_read_only") == [(value,)])

    def clear(self) -> None:
        """Empty the tables for the next test."""
        self.execute(
            "TRUNCATE django_outbox_message, django_outbox_dead_letter, django_outbox_worker,"
            " django_outbox_counter, testapp_order"
        )
        connections[ALIAS].close()


@contextmanager
def provide() -> Iterator[Spare]:
    """Start the server for the block."""
    version = int(os.environ.get("TEST_POSTGRES_VERSION", "18"))
    with start_temporary(version, durable=False) as server:
        settings = environ.Env.db_url_config(server.url)
        connections.databases[ALIAS] = {**connections.databases["default"], **settings}
        environment = {
            **os.environ,
            "DATABASE_URL": server.url,
            "DJANGO_SETTINGS_MODULE": "tests.settings_worker",
        }
        migrate = [sys.executable, str(ROOT / "manage.py"), "migrate", "--run-syncdb"]
        subprocess.run(migrate, env=environment, check=True, capture_output=True)
        try:
            yield Spare(server)
        finally:
            connections[ALIAS].close()
            del connections[ALIAS]
            del connections.databases[ALIAS]
