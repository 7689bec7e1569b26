"""No command works on a database that is not fit for it; each says what to do about it."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from pytest_django import DjangoDbBlocker

from tests.support import committed, session

pytestmark = committed

COMMANDS = [
    ("outbox_publish", "/dev/null"),
    ("outbox_replay", "--all"),
    ("outbox_status",),
    ("outbox_status", "--json"),
]

each_command = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Give the alias of a database that has been created and not migrated."""
    database = {**connections.databases["default"], "NAME": "outbox_bare"}
    with session() as other:
        other.execute("CREATE DATABASE outbox_bare")
        monkeypatch.setitem(connections.databases, "bare", database)
        with django_db_blocker.unblock():
            yield "bare"
        connections["bare"].close()
        del connections["bare"]
        other.execute("DROP DATABASE outbox_bare WITH (FORCE)")


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Give the alias of a database that its server does not have."""
    database = {**connections.databases["default"], "NAME": "outbox_nowhere"}
    monkeypatch.setitem(connections.databases, "missing", database)
    with django_db_blocker.unblock():
        yield "missing"
    del connections["missing"]


def refusal(command: tuple[str, ...], alias: str) -> str:
    """Run the command there and return what it says against it."""
    stdout = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command(*command, "--database", alias, stdout=stdout)
    assert caught.value.returncode == 1
    assert stdout.getvalue() == ""
    return str(caught.value)


@each_command
def test_one_that_is_not_postgresql_is_refused(command: tuple[str, ...], sqlite: str) -> None:
    said = refusal(command, sqlite)

    assert "needs PostgreSQL" in said
    assert "SQLite" in said


@each_command
def test_one_that_is_not_migrated_is_told_to_be(command: tuple[str, ...], bare: str) -> None:
    assert "manage.py migrate django_outbox --database bare" in refusal(command, bare)


@each_command
def test_one_that_is_not_there_is_named(command: tuple[str, ...], missing: str) -> None:
    assert "outbox_nowhere" in refusal(command, missing)


@each_command
def test_an_alias_that_is_not_there_is_named_beside_those_that_are(
    command: tuple[str, ...],
) -> None:
    said = refusal(command, "nowhere")

    assert "'nowhere'" in said
    assert "default, orders" in said
