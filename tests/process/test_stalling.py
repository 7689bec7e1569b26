"""Connections that stall or are cut: given up, and never waited for where others go on."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any, Self

import pytest
from django.conf import LazySettings
from django.db import OperationalError, connections
from pytest_django import DjangoDbBlocker

from django_outbox import outbox, own_connection, watchdog
from django_outbox.handlers import Handler
from django_outbox.models import DeadLetter, OutboxMessage
from django_outbox.scheduling.running import stand_by
from django_outbox.worker.loop import Options, Worker
from tests.process.stage import PATIENCE
from tests.support import committed, publish, publish_many, running, session, wait_for, wait_until
from tests.testapp.models import Order

pytestmark = committed


class Proxy:
    """A way to the test database by TCP on which the first sessions stall, or are cut.

    They do right after their login: what the server says of it is passed on, and then nothing.
    """

    def __init__(self, *, stalling: int = 0, cutting: int = 0) -> None:
        self._stalling = stalling
        self._cutting = cutting
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.host, self.port = self._server.getsockname()
        self.stalled = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        for one in (self._server, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = self._connect()
                self._sockets += [client, server]
                up = (client, server, self._copy)
                down = (server, client, self._next_way_down())
                for source, target, copy in (up, down):
                    threading.Thread(target=copy, args=(source, target), daemon=True).start()

    def _next_way_down(self) -> Callable[[socket.socket, socket.socket], None]:
        if self._cutting > 0:
            self._cutting -= 1
            return self._cut_after_the_login
        if self._stalling > 0:
            self._stalling -= 1
            return self._copy_the_login
        return self._copy

    def _connect(self) -> socket.socket:
        params = connections["default"].get_connection_params()
        host, port = params["host"], params.get("port") or 5432
        if not host.startswith("/"):
            return socket.create_connection((host, int(port)))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def _copy_the_login(self, source: socket.socket, target: socket.socket) -> None:
        """Pass the server's messages on as far as the one that says it is ready."""
        with suppress(OSError), source.makefile("rb") as messages:
            while kind := messages.read(1):
                length = messages.read(4)
                target.sendall(kind + length + messages.read(struct.unpack("!I", length)[0] - 4))
                if kind == b"Z":
                    self.stalled.set()
                    return

    def _cut_after_the_login(self, source: socket.socket, target: socket.socket) -> None:
        self._copy_the_login(source, target)
        with suppress(OSError):
            source.recv(1)  # the answer to what is said first
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def handled() -> list[Any]:
    """What the worker's handler has got so far."""
    return []


class Running:
    """A worker in a thread, on one alias, that gives up after a second."""

    def __init__(self, alias: str, handled: list[Any], *, patience: float = 1.0) -> None:
        handler = Handler(
            function=lambda message: handled.append(message.payload), queues=("orders",)
        )
        self.worker = Worker(
            {"orders": handler}, Options(using=alias, worker_id="tester", concurrency=1)
        )
        self.worker._watchdog.patience = patience  # instead of half a minute
        self._codes: list[int] = []
        self._thread = threading.Thread(target=lambda: self._codes.append(self.worker.run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.worker.stop()
        self._thread.join(PATIENCE)
        assert self._codes == [0]


@pytest.fixture
def through(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch, django_db_blocker: DjangoDbBlocker
) -> Iterator[Any]:
    """Give a function that names an alias for the test database through a proxy."""

    def through(proxy: Proxy) -> str:
        default = connections.databases["default"]
        options = {**default["OPTIONS"], "sslmode": "disable", "gssencmode": "disable"}
        database = {
            **default,
            "HOST": proxy.host,
            "PORT": proxy.port,
            "OPTIONS": options,
            # So that Django has something to say as soon as the login is done.
            "TIME_ZONE": "Europe/Berlin",
        }
        monkeypatch.setitem(connections.databases, "proxied", database)
        monkeypatch.setitem(settings.DATABASES, "proxied", database)
        return "proxied"

    with django_db_blocker.unblock():
        yield through


def test_a_connection_that_stalls_right_after_its_login_is_given_up(
    through: Any, handled: list[Any]
) -> None:
    publish("waits")
    with Proxy(stalling=1) as proxy, Running(through(proxy), handled):
        wait_for(proxy.stalled)
        wait_until(lambda: handled == ["waits"])
        wait_until(lambda: not OutboxMessage.objects.exists())


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("swallows", [False, True])
def test_a_session_that_is_cut_while_django_sets_it_up_does_not_stay_with_its_thread(
    through: Any, *, swallows: bool
) -> None:
    runs: list[tuple[Any, int, int]] = []

    with Proxy(cutting=1) as proxy:
        alias = through(proxy)

        @outbox.handler("orders", retry=outbox.NoRetry())
        def handle(message: outbox.Message[Any]) -> None:
            runs.append((message.payload, message.attempt, message.deliveries_count))
            with suppress(OperationalError) if swallows else nullcontext():
                Order.objects.using(alias).create(name=message.payload)

        publish_many(["a", "b", "c"])
        with running(concurrency=1):
            wait_until(lambda: not OutboxMessage.objects.exists())

    again = [] if swallows else [("a", 1, 2)]
    assert sorted(runs) == sorted([("a", 1, 1), ("b", 1, 1), ("c", 1, 1), *again])
    assert Order.objects.count() == (2 if swallows else 3)
    assert not DeadLetter.objects.exists()


def test_a_scheduler_whose_connection_stalls_gives_it_up_and_leads_on_another(
    through: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "PATIENCE", 1.0)
    outbox.schedule("report", "@every 1s", queue="orders")
    stop = outbox.StopToken()
    with Proxy(stalling=1) as proxy:
        thread = threading.Thread(target=stand_by, args=[stop], kwargs={"using": through(proxy)})
        thread.start()
        try:
            wait_for(proxy.stalled)
            wait_until(OutboxMessage.objects.exists)
        finally:
            stop.stop()
            thread.join(PATIENCE)
    assert not thread.is_alive()


WAITING = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'relation'
"""
"""The sessions that wait for a lock on a table."""


def test_what_waits_for_a_locked_table_is_cancelled_when_it_is_given_up(handled: list[Any]) -> None:
    publish("waits")
    seen: set[int] = set()

    with session() as direct, session() as migration:

        def waiting() -> list[int]:
            pids = [pid for (pid,) in direct.execute(WAITING).fetchall()]
            seen.update(pids)
            return pids

        migration.execute("BEGIN")
        migration.execute("LOCK TABLE django_outbox_message IN ACCESS EXCLUSIVE MODE")
        with Running("default", handled):
            wait_until(lambda: waiting() and len(seen) == 2)
            wait_until(lambda: len(waiting()) == 1)
            migration.execute("COMMIT")
            wait_until(lambda: handled == ["waits"])


def test_a_listener_that_stalls_after_its_login_holds_nothing_up(
    through: Any, handled: list[Any], settings: LazySettings
) -> None:
    with Proxy(stalling=1000) as proxy:
        settings.OUTBOX = {"LISTEN_DATABASE": through(proxy), "POLL_INTERVAL": 0.2}
        with Running("default", handled, patience=25):
            wait_for(proxy.stalled)
            for n in range(5):
                publish(n)
                wait_until(lambda n=n: n in handled, within=3)  # type: ignore[misc]
            asked_at = time.monotonic()
        assert time.monotonic() - asked_at < 5


@pytest.mark.parametrize(
    ("given", "used"), [({}, 10), ({"connect_timeout": 60}, 10), ({"connect_timeout": "3"}, 3)]
)
def test_the_loop_waits_for_a_connection_no_longer_than_ten_seconds(
    given: dict[str, Any], used: int
) -> None:
    settings_dict = {"NAME": "shop", "OPTIONS": {"sslmode": "require", **given}}

    own = own_connection._own_settings(settings_dict)

    assert own["OPTIONS"] == {"sslmode": "require", "connect_timeout": used}
    assert settings_dict == {"NAME": "shop", "OPTIONS": {"sslmode": "require", **given}}
