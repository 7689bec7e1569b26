"""A TCP proxy before the server's Unix socket, that can cut, stall, delay and swallow."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

READY = b"Z\x00\x00\x00\x05I"
"""How the server ends its part of a login: it is ready, and no transaction is open."""


class Proxy:
    """A way for connections to the server at `path`; what it can do to them lasts for a block."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._passing = threading.Event()
        self._passing.set()
        self._stalls = 0
        self._delay = 0.0
        self._refuses = False
        self._swallows = False
        self._is_flaky = False
        self._count = 0
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self.port: int = self._listener.getsockname()[1]

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Break every connection, and let none come during the block."""
        self._refuses = True
        self._close_all()
        try:
            yield
        finally:
            self._refuses = False

    @contextmanager
    def stalled(self, *, is_reset: bool = False) -> Iterator[None]:
        """Pass nothing on during the block; then all of it, unless the connections are `reset`."""
        self._count_stalls(1)
        try:
            yield
        finally:
            if is_reset:
                self._close_all()
            self._count_stalls(-1)

    @contextmanager
    def delayed(self, seconds: float) -> Iterator[None]:
        """Let whatever passes take so much longer each way."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Pass requests on, and break the connection instead of passing on the answer."""
        self._swallows = True
        try:
            yield
        finally:
            self._swallows = False

    @contextmanager
    def flaky(self) -> Iterator[None]:
        """Break every connection; of the new ones, every other gets no further than its login."""
        self._is_flaky = True
        self._close_all()
        try:
            yield
        finally:
            self._is_flaky = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close_all()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refuses:
                    client.close()
                else:
                    self._count += 1
                    is_doomed = self._is_flaky and self._count % 2 == 1
                    joined = threading.Thread(
                        target=self._join, args=(client,), kwargs={"is_doomed": is_doomed}
                    )
                    joined.daemon = True
                    joined.start()

    def _join(self, client: socket.socket, *, is_doomed: bool) -> None:
        """Connect a client to the server, and copy until either has had enough."""
        server = socket.socket(socket.AF_UNIX)
        both = (client, server)
        with self._lock:
            self._sockets.update(both)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.connect(self._path)
            up = threading.Thread(target=self._copy, args=both, daemon=True)
            up.start()
            self._copy(server, client, is_answer=True, is_doomed=is_doomed)
            up.join()
        except OSError:
            pass  # the server is not there, and the client learns it from the end below
        finally:
            with self._lock:
                self._sockets.difference_update(both)
            for one in both:
                one.close()

    def _copy(
        self,
        source: socket.socket,
        target: socket.socket,
        *,
        is_answer: bool = False,
        is_doomed: bool = False,
    ) -> None:
        is_logged_in = False
        try:
            while data := source.recv(65536):
                self._passing.wait()
                if self._delay:
                    time.sleep(self._delay)
                if (is_answer and self._swallows) or (is_doomed and is_logged_in):
                    break
                is_logged_in = data.endswith(READY)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, target):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _count_stalls(self, change: int) -> None:
        """Keep account of those who want nothing to pass: there may be two at once."""
        with self._lock:
            self._stalls += change
            if self._stalls:
                self._passing.clear()
            else:
                self._passing.set()

    def _close_all(self) -> None:
        with self._lock:
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
