"""The proxy of the fault suite does what it says to what goes through it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.proxy import READY, Proxy


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """A proxy before a server that says all that it is told, and keeps it in `heard`."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
        with Proxy(path) as proxy:
            yield proxy
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


heard: list[bytes] = []


def echo(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            session, _ = listener.accept()
            threading.Thread(target=repeat, args=(session,), daemon=True).start()


def repeat(session: socket.socket) -> None:
    with session, suppress(OSError):
        while data := session.recv(1024):
            heard.append(data)
            session.sendall(data)


def connect(proxy: Proxy) -> socket.socket:
    session = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    session.sendall(b"hello")
    assert session.recv(1024) == b"hello"
    return session


def has_ended(session: socket.socket) -> bool:
    try:
        return session.recv(1024) == b""
    except ConnectionResetError:
        return True


def test_a_cut_ends_connections_and_refuses_new_ones_while_it_lasts(proxy: Proxy) -> None:
    with connect(proxy) as session, proxy.cut():
        assert has_ended(session)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as refused:
            assert has_ended(refused)

    connect(proxy).close()


def is_silent(session: socket.socket) -> bool:
    session.settimeout(0.2)
    try:
        session.recv(1024)
    except TimeoutError:
        return True
    finally:
        session.settimeout(10)
    return False


def test_what_is_stalled_arrives_when_the_last_stall_is_over(proxy: Proxy) -> None:
    with connect(proxy) as session:
        with proxy.stalled():
            with proxy.stalled():
                session.sendall(b"waits")
                assert is_silent(session)
            assert is_silent(session)
        assert session.recv(1024) == b"waits"


def test_what_is_stalled_may_end_in_a_reset(proxy: Proxy) -> None:
    with connect(proxy) as session:
        with proxy.stalled(is_reset=True):
            session.sendall(b"is lost")
        assert has_ended(session)


def test_a_delay_holds_each_way(proxy: Proxy) -> None:
    with connect(proxy) as session, proxy.delayed(0.1):
        began = time.monotonic()
        session.sendall(b"slowly")

        assert session.recv(1024) == b"slowly"
        assert time.monotonic() - began >= 0.2


def test_a_request_whose_answer_is_lost_has_arrived(proxy: Proxy) -> None:
    with connect(proxy) as session, proxy.deaf():
        session.sendall(b"commit")

        assert has_ended(session)
        assert heard[-1] == b"commit"


def test_on_a_flaky_network_every_other_new_session_breaks_after_its_login(proxy: Proxy) -> None:
    with connect(proxy) as before, proxy.flaky():
        assert has_ended(before)
        for is_doomed in (False, True, False, True):
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as session:
                session.sendall(READY)
                assert session.recv(1024) == READY
                session.sendall(b"first statement")

                assert has_ended(session) is is_doomed
