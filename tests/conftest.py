"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection, connections

from django_outbox import handlers


def pytest_report_header() -> str:
    """Say which PostgreSQL the tests run on."""
    with psycopg.connect(**connection.get_connection_params()) as session:
        return f"PostgreSQL: {session.info.parameter_status('server_version')}"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> handlers.Registry:
    """Have `@outbox.handler` register with nobody else's handlers in the way."""
    monkeypatch.setattr(handlers.registry, "_by_queue", {})
    return handlers.registry


@pytest.fixture
def sqlite(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the alias of a database that is not PostgreSQL."""
    like = connections.databases["default"]
    lite = {**like, "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}
    monkeypatch.setitem(connections.databases, "lite", lite)
    yield "lite"
    connections["lite"].close()
    del connections["lite"]
