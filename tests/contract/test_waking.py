"""Waking: what is notified, comes due or is merely there is found, whatever else goes on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connections

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from tests.support import (
    Gate,
    committed,
    publish,
    publish_many,
    running,
    session,
    wait_for,
    wait_until,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]

PROMPTLY = 5.0
"""Seconds in which anything but a poll or a sweep that is put off comes."""


@pytest.fixture
def handled() -> list[Any]:
    """What the handler of `orders` has got so far."""
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    return handled


@pytest.fixture
def slow_poll(settings: LazySettings) -> None:
    """Have the worker find promptly only what it is told of."""
    settings.OUTBOX = {"POLL_INTERVAL": 30}


@pytest.mark.usefixtures("slow_poll")
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_message_of_a_burst_arrives_without_a_poll(handled: list[Any], size: int) -> None:
    with running():
        for burst in range(15):
            for _ in range(size):
                publish(burst)
            wait_until(
                lambda burst=burst: len(handled) == size * (burst + 1),  # type: ignore[misc]
                within=PROMPTLY,
            )


@pytest.mark.usefixtures("slow_poll")
def test_news_that_comes_while_a_claim_is_to_come_is_not_lost(handled: list[Any]) -> None:
    gate = Gate()

    @outbox.handler("slow")
    def wait(message: outbox.Message[Any]) -> None:
        gate.wait()

    with running(concurrency=2):
        publish(queue="slow")  # keeps the worker from sweeping with every claim
        wait_for(gate.reached)
        publish("later", activate_in=2)
        for n in range(10):
            publish(n)
            wait_until(lambda n=n: n in handled, within=1.5)  # type: ignore[misc]
        wait_until(lambda: "later" in handled, within=PROMPTLY)
        gate.opened.set()


@pytest.mark.usefixtures("slow_poll")
def test_a_stream_of_notifications_puts_no_claim_off(handled: list[Any]) -> None:
    stop = threading.Event()

    def notify() -> None:
        with session() as other:
            while not stop.is_set():
                other.execute("NOTIFY django_outbox, 'orders'")  # far quicker than a wake-up

    with running():
        stream = threading.Thread(target=notify)
        stream.start()
        try:
            for n in range(5):
                publish(n)
                wait_until(lambda n=n: n in handled, within=PROMPTLY)  # type: ignore[misc]
        finally:
            stop.set()
            stream.join()


def test_after_one_slow_sweep_a_busy_worker_still_looks(handled: list[Any]) -> None:
    gate = Gate()

    @outbox.handler("slow")
    def wait(message: outbox.Message[Any]) -> None:
        gate.wait()

    with running(concurrency=3), session() as other:
        publish(queue="slow")
        wait_for(gate.reached)
        publish("in the sweep", activate_in=0.3)
        with other.transaction():
            other.execute("LOCK TABLE django_outbox_message IN ACCESS EXCLUSIVE MODE")
            time.sleep(1.5)  # so long takes the claim that comes with the timer
        wait_until(lambda: "in the sweep" in handled, within=PROMPTLY)
        publish("notified")
        wait_until(lambda: "notified" in handled, within=PROMPTLY)

        publish("a timer", activate_in=0.5)
        OutboxMessage.objects.create(
            queue="orders",
            payload=b'"not notified"',
            headers={"content-type": "application/json"},
        )

        wait_until(lambda: {"a timer", "not notified"} <= {*handled}, within=PROMPTLY)
        gate.opened.set()


@pytest.mark.usefixtures("slow_poll")
def test_one_hung_handler_does_not_keep_the_others_from_being_fed(handled: list[Any]) -> None:
    gate = Gate()

    @outbox.handler("hung")
    def hang(message: outbox.Message[Any]) -> None:
        gate.wait()

    with running(concurrency=2, batch_size=10):
        publish(queue="hung")
        wait_for(gate.reached)
        time.sleep(1.2)  # longer than a handler is counted on to end soon
        publish_many(list(range(300)))

        wait_until(lambda: len(handled) == 300)
        gate.opened.set()


def test_what_waits_is_bounded_by_two_batches() -> None:
    gate = Gate()

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "slow":
            gate.wait()

    # The quick ones teach the worker that it can claim ahead; then one gets stuck.
    publish_many(["quick"] * 100 + ["slow"] + ["behind"] * 100)
    with running(batch_size=5):
        wait_for(gate.reached)
        leased = OutboxMessage.objects.filter(payload=b'"behind"', lease_token__isnull=False)
        counts = []
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            counts.append(leased.count())
            time.sleep(0.01)
        gate.opened.set()

    assert max(counts) <= 10


# Listening elsewhere


def add(
    alias: str, settings: LazySettings, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> None:
    """Add a database like the default one but for these changes."""
    database = {**connections.databases["default"], **changes}
    monkeypatch.setitem(connections.databases, alias, database)
    monkeypatch.setitem(settings.DATABASES, alias, database)


@pytest.fixture
def mute(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the alias of a database whose server accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        add("mute", settings, monkeypatch, HOST=host, PORT=port)
        yield "mute"


def test_a_listen_database_that_never_answers_holds_nothing_up(
    settings: LazySettings, mute: str, handled: list[Any]
) -> None:
    settings.OUTBOX = {"LISTEN_DATABASE": mute, "POLL_INTERVAL": 0.2}

    with running():
        for n in range(5):
            publish(n)
            wait_until(lambda n=n: n in handled, within=3)  # type: ignore[misc]
        asked_at = time.monotonic()
    assert time.monotonic() - asked_at < PROMPTLY


def test_with_a_listen_database_the_worker_listens_there_and_not_on_its_own(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch, handled: list[Any]
) -> None:
    add("other", settings, monkeypatch, NAME="template1")
    settings.OUTBOX = {"LISTEN_DATABASE": "other", "POLL_INTERVAL": 30}
    publish("at the start")

    with running(), session(dbname="template1") as there:
        wait_until(lambda: not OutboxMessage.objects.exists())
        time.sleep(0.3)  # the claims that follow a delivery are over by now
        publish("later")
        time.sleep(0.5)  # in which a notification on its own database would have woken it
        assert handled == ["at the start"]

        there.execute("NOTIFY django_outbox, 'orders'")
        wait_until(lambda: handled == ["at the start", "later"], within=PROMPTLY)
