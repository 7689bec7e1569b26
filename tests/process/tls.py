"""TLS in front of a PostgreSQL server that has none, as a proxy terminates it."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

SSL_REQUEST = 8
"""Bytes of what a client sends to ask for TLS."""


class TlsProxy:
    """Passes TLS sessions on to a server's socket; each session belongs to one client process."""

    def __init__(self, socket: Path, folder: Path) -> None:
        self.sessions = 0
        self.port = 0
        self._socket = socket
        self._context = _context(folder)
        self._listens = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listens.wait(10)
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._task = asyncio.current_task()
        server = await asyncio.start_server(self._pass_on, "127.0.0.1")
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        async with server:
            await server.serve_forever()

    async def _pass_on(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await client.readexactly(SSL_REQUEST)
        to_client.write(b"S")
        await to_client.drain()
        await to_client.start_tls(self._context)
        self.sessions += 1
        server, to_server = await asyncio.open_unix_connection(self._socket)
        await asyncio.gather(_copy(client, to_server), _copy(server, to_client))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError, ssl.SSLError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()
        await target.wait_closed()


def _context(folder: Path) -> ssl.SSLContext:
    certificate = folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"),
            *("-keyout", certificate, "-out", folder / "only.pem"),
        ],
        check=True,
        capture_output=True,
    )
    with certificate.open("a") as file:
        file.write((folder / "only.pem").read_text())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
