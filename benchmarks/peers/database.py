"""The server, and a database for each peer, made for one run and dropped after it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from example_project.embedded import start_temporary


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """Yield the address of a server: the one that is named, else a durable one of its own."""
    if url is not None:
        yield url
        return
    with start_temporary() as temporary:
        yield temporary.url


@contextmanager
def new_database(server_url: str, peer: str) -> Iterator[str]:
    """Make a database that was not there before, yield its address, and drop it."""
    name = f"peers_{re.sub('[^a-z]+', '_', peer)}_{secrets.token_hex(4)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield _named(server_url, name)
        finally:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
            connection.execute(drop.format(sql.Identifier(name)))


def version(server_url: str) -> str:
    """Return the server's version; raise `psycopg.OperationalError` when it cannot be reached."""
    with psycopg.connect(server_url, connect_timeout=10) as connection:
        row = connection.execute("SHOW server_version").fetchone()
        return str(row[0]).split()[0] if row else ""


def _named(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
