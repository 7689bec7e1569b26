"""What all tests share."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import psycopg
import pytest
from django.db import connection, connections

from django_outbox import handlers

# The same examples in every run, and few of them; `--hypothesis-profile=wide` tries others.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("wide", deadline=None, max_examples=5_000)
hypothesis.settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep a lone surrogate that a test has logged from breaking the report of parallel tests."""
    report = yield
    report.sections = [
        (name, text.encode(errors="replace").decode()) for name, text in report.sections
    ]
    return report


def pytest_report_header() -> str:
    """Say which PostgreSQL the tests run on."""
    with psycopg.connect(**connection.get_connection_params()) as session:
        return f"PostgreSQL: {session.info.parameter_status('server_version')}"


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Let the sessions of workers that were stopped last end before their database is dropped."""
    yield
    with django_db_blocker.unblock():
        deadline = time.monotonic() + 10
        while _other_sessions() and time.monotonic() < deadline:
            time.sleep(0.05)
        connection.close()


def _other_sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        count: int = cursor.fetchone()[0]
        return count


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
