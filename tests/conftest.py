"""What all tests share."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connection

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
