"""PgBouncer gives other sessions, or none for a while: work goes on and charges no attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import LazySettings

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from tests.pooler.bouncer import CLEAN
from tests.pooler.site import ALIAS, Site, kill, pause, reconnect, restart
from tests.support import Gate, committed, publish, publish_many, wait_for, wait_until
from tests.testapp.models import Order

pytestmark = [committed, pytest.mark.usefixtures("registry")]

two_sessions = pytest.mark.parametrize("bouncer", [{"sessions": 2}], indirect=True)


@pytest.fixture(autouse=True)
def _soon(settings: LazySettings) -> None:
    settings.OUTBOX = {"POLL_INTERVAL": 0.1}


@two_sessions
@pytest.mark.parametrize("move", [reconnect, pause, kill, restart])
@pytest.mark.parametrize("atomic", [False, True])
def test_each_message_is_delivered_and_none_is_charged_an_attempt(
    site: Site, move: Callable[[Site], None], *, atomic: bool
) -> None:
    attempts: set[int] = set()

    # A claim whose answer is lost has leased what it claimed.
    @outbox.handler("orders", atomic=atomic, lease_ttl=3)
    def handle(message: outbox.Message[Any]) -> None:
        attempts.add(message.attempt)
        Order.objects.using(ALIAS).create(name=message.payload)

    wanted = [f"{n:03}" for n in range(300)]
    with site.running(concurrency=2):
        for moves in range(3):
            publish_many(wanted[moves * 100 : moves * 100 + 100])
            wait_until(lambda moves=moves: Order.objects.count() > moves * 100)  # type: ignore[misc]
            move(site)
        wait_until(lambda: not OutboxMessage.objects.exists(), within=20)

    assert sorted(set(site.orders())) == wanted
    assert attempts == {1}
    if atomic:
        assert site.orders() == wanted
    assert site.states(2) == [CLEAN, CLEAN]


@pytest.mark.parametrize("move", [reconnect, pause])
def test_nobody_notices_that_sessions_are_exchanged_in_good_order(
    site: Site, move: Callable[[Site], None], caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    with caplog.at_level(logging.WARNING, "django_outbox"), site.running():
        for n in range(5):
            before = site.backend()
            move(site)
            publish(n)
            wait_until(lambda n=n: handled == list(range(n + 1)))  # type: ignore[misc]
            wait_until(lambda: site.backend() != before)  # noqa: B023

    assert not caplog.records


@two_sessions
@pytest.mark.parametrize("move", [kill, restart])
def test_the_effects_of_an_atomic_handler_that_is_cut_happen_once(
    site: Site, move: Callable[[Site], None]
) -> None:
    gate = Gate()
    runs: list[tuple[int, int]] = []

    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        runs.append((message.attempt, message.deliveries_count))
        Order.objects.using(ALIAS).create(name="once")
        if len(runs) == 1:
            gate.wait()

    publish()
    with site.running():
        wait_for(gate.reached)
        move(site)
        gate.opened.set()
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert runs == [(1, 1), (1, 2)]
    assert site.orders() == ["once"]
