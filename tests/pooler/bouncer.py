"""A PgBouncer in front of the test database, in transaction mode and with few sessions."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg

from example_project.embedded.account import Account, Identity, give, server_account
from example_project.embedded.server import new_temporary_folder
from tests.support import session, wait_until

HOST = "127.0.0.1"
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
PROGRAM = shutil.which("pgbouncer", path=PATH)

# Any name may log in, and all are the server's one user. A login to the server that a KILL has cut
# makes PgBouncer refuse everybody for a while, 15 s unless it is told otherwise.
CONFIGURATION = """
[databases]
* = {target}

[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = anybody
pool_mode = {mode}
default_pool_size = {sessions}
max_client_conn = 100
server_login_retry = 0.1
"""


class State(NamedTuple):
    """What a session keeps from one transaction to the next, apart from what PgBouncer itself sets.

    It does so for each client with the settings that a client's login reports.
    """

    settings: list[str]
    prepared: list[str]
    channels: list[str]
    locks: list[str]
    cursors: list[str]
    tables: list[str]


CLEAN = State([], [], [], [], [], [])

STATE = """
SELECT
    ARRAY(
        SELECT name || ' = ' || setting FROM pg_settings
        WHERE source = 'session' AND name NOT IN (
            'application_name', 'client_encoding', 'DateStyle', 'IntervalStyle',
            'standard_conforming_strings', 'TimeZone'
        )
        ORDER BY name
    ),
    ARRAY(SELECT statement FROM pg_prepared_statements),
    ARRAY(SELECT pg_listening_channels()),
    ARRAY(SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),
    ARRAY(SELECT statement FROM pg_cursors),
    ARRAY(SELECT relname::text FROM pg_class WHERE relnamespace = pg_my_temp_schema())
"""


class Bouncer:
    """One PgBouncer process with a port of its own, which a restart keeps."""

    def __init__(self, *, sessions: int, mode: str = "transaction") -> None:
        assert PROGRAM is not None
        self._account: Account | None = server_account()  # it refuses to run as root
        self._folder = new_temporary_folder(self._account)
        give(self._folder, self._account)
        self.port = _free_port()
        configuration = CONFIGURATION.format(
            target=_target(), host=HOST, port=self.port, mode=mode, sessions=sessions
        )
        (self._folder / "pgbouncer.ini").write_text(configuration)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        """Start it, and wait until it lets clients in."""
        identity: Identity = self._account.identity if self._account else {}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(PROGRAM), str(self._folder / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **identity,
            )
        wait_until(self._answers)

    def stop(self) -> None:
        """End it at once, with all that its clients are at."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def order(self, *commands: str) -> None:
        """Have it carry out commands of its console."""
        with self._connect("pgbouncer") as console:
            for command in commands:
                console.execute(command)

    def states(self, database: str, sessions: int) -> list[State]:
        """Return what each of so many sessions keeps; a transaction holds each meanwhile."""
        clients = [self._connect(database) for _ in range(sessions)]
        try:
            found = []
            for client in clients:
                client.execute("BEGIN")
                row = client.execute(STATE).fetchone()
                assert row is not None
                found.append(State._make(row))
            return found
        finally:
            for client in clients:
                client.close()

    def query(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as another client in a transaction of its own."""
        with self._connect(database) as client:
            cursor = client.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @property
    def _log(self) -> Path:
        return self._folder / "pgbouncer.log"

    def _connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host=HOST,
            port=self.port,
            dbname=database,
            user="anybody",
            autocommit=True,
            prepare_threshold=None,
            sslmode="disable",
            gssencmode="disable",
        )

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"PgBouncer has ended:\n{self.log}"
        try:
            self._connect("pgbouncer").close()
        except psycopg.OperationalError:
            return False
        return True


def _target() -> str:
    """Return the server of the tests in PgBouncer's words."""
    with session() as direct:
        info = direct.info
        target = {"host": info.host, "port": info.port, "user": info.user}
        if info.password:
            target["password"] = info.password
    return " ".join(f"{name}={value}" for name, value in target.items())


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port
