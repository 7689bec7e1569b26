"""A database for the demo alone, whatever the settings say.

The demo itself and the processes it starts all use it: these read `DATABASE_URL`, and Django's
connections in this process are pointed to it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import environ
from django.db import connection, connections

from example_project.embedded import start_temporary

URL = "DATABASE_URL"


@contextmanager
def fresh_database() -> Iterator[None]:
    """Use a new, empty database in the block: on the server of `DATABASE_URL`, or on one's own."""
    given = os.environ.get(URL)
    if given is None:
        with start_temporary() as server, _using(server.url):
            yield
        return
    name = f"outbox_demo_{secrets.token_hex(4)}"
    _run(f"CREATE DATABASE {name}")
    try:
        with _using(_renamed(given, name)):
            yield
    finally:
        _run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def server_version() -> str:
    """Return the version of the server in use, as it calls itself."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT split_part(current_setting('server_version'), ' ', 1)")
        return str(cursor.fetchone()[0])


@contextmanager
def _using(url: str) -> Iterator[None]:
    usual, usual_url = connections.settings["default"], os.environ.get(URL)
    config = {"default": environ.Env.db_url_config(url)}
    _connect_to(connections.configure_settings(config)["default"])
    os.environ[URL] = url
    try:
        yield
    finally:
        _connect_to(usual)
        del os.environ[URL]
        if usual_url is not None:
            os.environ[URL] = usual_url


def _connect_to(database: dict[str, object]) -> None:
    connections.close_all()
    connections.settings["default"] = database
    # The connection object keeps the settings it was made with, so a new one has to be made.
    del connections["default"]


def _run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()


def _renamed(url: str, name: str) -> str:
    """Return the URL with another database's name, and all else as it was."""
    scheme, _, rest = url.partition("://")
    address, question, options = rest.partition("?")
    server, _, _ = address.partition("/")
    return f"{scheme}://{server}/{name}{question}{options}"
