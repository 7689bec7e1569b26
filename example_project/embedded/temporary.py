"""A server that ends with the process that started it, and leaves nothing behind.

A small watcher process waits for this one to end, in whatever way, and then stops the server and
removes its folder. An orderly stop goes the same way, so there is one way only.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from example_project.embedded import binaries, watcher
from example_project.embedded.account import server_account
from example_project.embedded.server import Mode, Server, new_temporary_folder


class TemporaryServer:
    """A running server with data of its own, for a ``with`` block or until this process ends."""

    def __init__(self, version: int = 18, *, durable: bool = True) -> None:
        binaries.installed(version)  # An unknown version leaves no folder behind.
        folder = new_temporary_folder(server_account())
        self._server = Server(folder, version, durable=durable)
        self._owner = os.getpid()
        # Before anything is made, so that it is cleared away even if this process is killed while
        # making it.
        self._watcher = _watch(self._server)
        atexit.register(self.stop)
        try:
            self._server.ensure_running()
        except BaseException:
            self.stop()
            raise
        self.url = self._server.url

    @property
    def bin(self) -> Path:
        """The folder of PostgreSQL's programs."""
        return self._server.bin

    @property
    def data(self) -> Path:
        """The data folder, with the socket, the pid file and ``server.log``."""
        return self._server.data

    def stop(self) -> None:
        """Stop the server, remove its folder, and return when both is done."""
        if os.getpid() != self._owner:
            return  # A forked child runs its parent's exit handlers, too.
        atexit.unregister(self.stop)
        self._watcher.communicate()  # Closes its standard input, and waits for it.

    def halt(self, mode: Mode = "fast") -> None:
        """Stop the server and keep its data for ``resume()``."""
        self._server.stop(mode)

    def resume(self) -> None:
        """Start the server again, at the same URL, after ``halt()`` or after it was killed."""
        self._server.ensure_running()

    def restart(self, mode: Mode = "fast") -> None:
        """Stop the server, ``"immediate"`` as in a crash, and start it again at the same URL."""
        self.halt(mode)
        self.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start_temporary(version: int = 18, *, durable: bool = True) -> TemporaryServer:
    """Start a server of the major version; ``durable=False`` is faster, unsafe in a power cut."""
    return TemporaryServer(version, durable=durable)


def _watch(server: Server) -> subprocess.Popen[bytes]:
    account = server.account
    identity = [] if account is None else [str(account.uid), str(account.gid)]
    # A session of its own, as Ctrl-C in the terminal goes to all processes of this one.
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            watcher.__file__,
            str(server.folder),
            str(server.bin),
            *identity,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
