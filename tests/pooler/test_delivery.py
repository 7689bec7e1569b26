"""Messages get through a transaction-mode pooler, and soon if there is a direct way to listen."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import LazySettings

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from tests.pooler.bouncer import CLEAN
from tests.pooler.site import ALIAS, Site
from tests.support import committed, running, session, wait_until
from tests.testapp.models import Order

pytestmark = [
    committed,
    pytest.mark.usefixtures("registry"),
    pytest.mark.parametrize("bouncer", [{"sessions": 2}], indirect=True),
]

DIRECT = "default"
LONG = 60.0
"""Seconds between two polls with which what is delivered promptly has been notified."""


def listening() -> int:
    with session() as direct:
        row = direct.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query ILIKE 'listen %'"
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize(("listen_on", "poll", "listeners"), [(DIRECT, LONG, 1), (None, 0.2, 0)])
def test_a_worker_listens_on_the_direct_database_or_polls(
    site: Site, settings: LazySettings, listen_on: str | None, poll: float, listeners: int
) -> None:
    # F09
    settings.OUTBOX = {"LISTEN_DATABASE": listen_on, "POLL_INTERVAL": poll}
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    with site.running(concurrency=2):
        for n in range(10):
            site.publish(n)
            wait_until(lambda n=n: handled == list(range(n + 1)), within=3)  # type: ignore[misc]
        wait_until(lambda: not OutboxMessage.objects.exists())
        assert listening() == listeners
        assert site.states(2) == [CLEAN, CLEAN]


def test_what_a_publisher_sends_through_the_pooler_wakes_a_worker_with_a_direct_way(
    site: Site, settings: LazySettings
) -> None:
    settings.OUTBOX = {"POLL_INTERVAL": LONG}
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    with running():
        for n in range(5):
            site.publish(n)
            wait_until(lambda n=n: handled == list(range(n + 1)), within=3)  # type: ignore[misc]


@pytest.mark.parametrize("atomic_batch", [1, 20])
def test_more_threads_than_sessions_share_them(
    site: Site, settings: LazySettings, atomic_batch: int
) -> None:
    # Each atomic handler has a session to itself, and two workers' loops want their share.
    settings.OUTBOX = {"POLL_INTERVAL": 0.2}

    @outbox.handler("orders", atomic=True, atomic_batch=atomic_batch)
    def handle(message: outbox.Message[Any]) -> None:
        assert message.attempt == message.deliveries_count == 1
        Order.objects.using(ALIAS).create(name=f"{message.payload:03}")

    site.publish_many(list(range(200)))
    with site.running(concurrency=4), site.running(concurrency=4, worker_id="second"):
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert site.orders() == [f"{n:03}" for n in range(200)]
    assert site.states(2) == [CLEAN, CLEAN]
