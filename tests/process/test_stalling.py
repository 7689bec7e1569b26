"""Connections that stall: given up, and never waited for where others go on."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

import pytest
from django.conf import LazySettings
from django.db import connections
from pytest_django import DjangoDbBlocker

from django_outbox import outbox, own_connection, watchdog
from django_outbox.handlers import Handler
from django_outbox.models import OutboxMessage
from django_outbox.scheduling.running import stand_by
from django_outbox.worker.loop import Options, Worker
from tests.process.stage import PATIENCE
from tests.support import committed, publish, wait_for, wait_until

pytestmark = committed


class Proxy:
    """A way to the test database by TCP on which the first `stalling` sessions stall.

    They do right after their login: what the server says of it is passed on, and then nothing.
    """

    def __init__(self, *, stalling: int) -> None:
        self._stalling = stalling
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
                stalls, self._stalling = self._stalling > 0, self._stalling - 1
                up = (client, server, self._copy)
                down = (server, client, self._copy_the_login if stalls else self._copy)
                for source, target, copy in (up, down):
                    threading.Thread(target=copy, args=(source, target), daemon=True).start()

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
