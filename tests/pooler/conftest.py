"""Fixtures of the tests behind PgBouncer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connections
from pytest_django import DjangoDbBlocker

from tests.pooler.bouncer import HOST, PROGRAM, Bouncer
from tests.pooler.site import ALIAS, Site


@pytest.fixture(autouse=True)
def _needs_pgbouncer() -> None:
    if PROGRAM is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")


@pytest.fixture
def bouncer(request: pytest.FixtureRequest, db: None) -> Iterator[Bouncer]:
    """A PgBouncer with one session, or as many as the test is parametrized with."""
    options = {"sessions": 1, **getattr(request, "param", {})}
    with Bouncer(**options) as bouncer:
        yield bouncer


@pytest.fixture
def as_alias(
    bouncer: Bouncer,
    settings: LazySettings,
    monkeypatch: pytest.MonkeyPatch,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Callable[..., str]]:
    """Give a function that makes the way through the pooler an alias, with further settings."""
    made: list[str] = []

    def as_alias(alias: str, **further: Any) -> str:
        default = connections.databases["default"]
        options = {**default["OPTIONS"], "sslmode": "disable", "gssencmode": "disable"}
        way = {"HOST": HOST, "PORT": bouncer.port, "OPTIONS": options}
        monkeypatch.setitem(connections.databases, alias, {**default, **way, **further})
        monkeypatch.setitem(settings.DATABASES, alias, connections.databases[alias])
        made.append(alias)
        return alias

    with django_db_blocker.unblock():
        yield as_alias
        for alias in made:
            connections[alias].close()
            del connections[alias]


@pytest.fixture
def site(bouncer: Bouncer, as_alias: Callable[..., str]) -> Site:
    """A site whose database goes through the pooler, as Django and we want it set."""
    as_alias(ALIAS, DISABLE_SERVER_SIDE_CURSORS=True)
    return Site(bouncer)
