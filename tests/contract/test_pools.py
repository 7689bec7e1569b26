"""Django's connection pool must have a connection for every handler thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from pytest_django import DjangoDbBlocker

from django_outbox import handlers, outbox
from django_outbox.management.commands import outbox_worker
from tests.support import committed, publish

pytest.importorskip("psycopg_pool", reason="OPTIONS['pool'] needs psycopg_pool")

pytestmark = [committed, pytest.mark.usefixtures("served")]


@pytest.fixture
def served(registry: handlers.Registry, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have the command see one handler, and return what it has got."""
    monkeypatch.setattr(outbox_worker, "registry", registry)
    got: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)

    return got


def work(alias: str, concurrency: int) -> None:
    arguments = ["--drain", "--database", alias, "--concurrency", str(concurrency)]
    call_command("outbox_worker", *arguments, verbosity=0)


@pytest.fixture
def pooled(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[str]:
    """Give the alias of the same database through a pool like this."""
    default = connections.databases["default"]
    options = {**default["OPTIONS"], "pool": request.param}
    monkeypatch.setitem(connections.databases, "pooled", {**default, "OPTIONS": options})
    with django_db_blocker.unblock():
        yield "pooled"
    connections["pooled"].close()
    connections["pooled"].close_pool()  # type: ignore[attr-defined]
    del connections["pooled"]


@pytest.mark.parametrize(
    ("pooled", "size"),
    [
        (True, 4),
        ({"min_size": 1, "max_size": 2}, 2),
        ({"min_size": 3}, 3),
        ({"min_size": 0, "max_size": 5}, 5),
    ],
    indirect=["pooled"],
)
def test_a_pool_smaller_than_the_concurrency_is_refused(pooled: str, size: int) -> None:
    with pytest.raises(CommandError, match=f"{size + 1} threads need .* has {size}"):
        work(pooled, size + 1)


@pytest.mark.parametrize("pooled", [{"min_size": 1, "max_size": 2}], indirect=True)
def test_a_pool_as_large_as_the_concurrency_will_do(pooled: str, served: list[Any]) -> None:
    publish(7)

    work(pooled, 2)

    assert served == [7]
