"""One PostgreSQL server in one folder: make it, start it, stop it.

The folder holds ``data`` (with the socket and the log), ``server.lock`` and, if needed, a copy of
the programs.

The server itself holds ``server.lock`` through a file descriptor it inherits, and so do its
backends. Whoever can take that lock therefore knows that nothing of the server runs any more,
however it ended, and that a ``postmaster.pid`` still lying there is stale even if its number now
belongs to another process.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from example_project.embedded import binaries, locks
from example_project.embedded.account import Account, Identity, can_reach, give, server_account

Mode = Literal["smart", "fast", "immediate"]

PORT = 5432  # Names the socket's file; nothing listens on the network.
SOCKET = f".s.PGSQL.{PORT}"
LONGEST_SOCKET_PATH = 100  # The system's limit is 104 bytes on macOS and 108 on Linux.
FIRST_WITH_BUILTIN_LOCALE = 17
PID_FILE = ("pid", "data", "started", "port", "socket folder")
PATIENCE = 60  # Seconds for the server to start, or to stop.


class Server:
    """A server of one major version, with its data below ``folder``."""

    def __init__(self, folder: Path, version: int, *, durable: bool = True) -> None:
        self.folder = folder
        self.version = version
        self.durable = durable
        self.account: Account | None = server_account()
        self.data = folder / "data"
        self.lock = folder / "server.lock"
        self.log = self.data / "server.log"

    @property
    def bin(self) -> Path:
        return binaries.usable(self.version, self.account, self.folder)

    @property
    def url(self) -> str:
        """The address of the running server, as libpq and django-environ read it."""
        folder = quote(self._pid_file()["socket folder"])
        return f"postgres://postgres@/postgres?host={folder}&port={PORT}"

    def ensure_running(self) -> None:
        """Start the server unless it runs; wait for one that is just starting or stopping."""
        deadline = time.monotonic() + PATIENCE
        while (lock := locks.try_take(self.lock)) is None:
            if self._answers():
                return
            if time.monotonic() > deadline:
                message = f"PostgreSQL in {self.folder} neither starts nor ends; see {self.log}."
                raise RuntimeError(message)
            time.sleep(0.02)  # It can only be asked, not waited on.
        try:
            self._start(lock)
        finally:
            os.close(lock)

    def stop(self, mode: Mode = "fast") -> None:
        """End the server and wait for its last process; do nothing when it does not run."""
        socket_folder = self._socket_folder()
        self._run("pg_ctl", "stop", "-D", self.data, "-m", mode, "-t", PATIENCE, check=False)
        os.close(locks.take(self.lock))
        if socket_folder not in (None, self.data):
            shutil.rmtree(socket_folder, ignore_errors=True)

    def _start(self, lock: int) -> None:
        binaries.provide(self.version, self.account, self.folder)
        if not self.data.exists():
            self._make_data()
        for leftover in ("postmaster.pid", SOCKET, f"{SOCKET}.lock", "server.log"):
            (self.data / leftover).unlink(missing_ok=True)
        options = " ".join(
            f"-c {shlex.quote(f'{key}={value}')}" for key, value in self._settings().items()
        )
        start = ("start", "-D", self.data, "-l", self.log, "-t", PATIENCE, "-o", options)
        self._run("pg_ctl", *start, pass_fds=(lock,))

    def _make_data(self) -> None:
        """Fill a folder of another name first: one cut short must not be taken for a whole one."""
        unfinished = self.folder / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        give(unfinished, self.account)
        # PostgreSQL's own C.UTF-8 needs nothing from the system, which may lack it; before 17 there
        # was only C.
        locale = (
            ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
            if self.version >= FIRST_WITH_BUILTIN_LOCALE
            else []
        )
        sync = [] if self.durable else ["--no-sync"]
        wanted = [
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            *locale,
            *sync,
        ]
        self._run("initdb", "--no-instructions", "-D", unfinished, *wanted)
        unfinished.rename(self.data)

    def _settings(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "listen_addresses": "",
            "port": PORT,
            "unix_socket_directories": self._new_socket_folder(),
            "unix_socket_permissions": "0700",
            # In the data folder, so that a killed server leaves nothing in the system's shared
            # memory, which is also too small in some containers.
            "dynamic_shared_memory_type": "mmap",
        }
        if not self.durable:
            # Commits survive the death of the server all the same, only not that of the machine.
            settings |= {"fsync": "off", "full_page_writes": "off"}
        return settings

    def _new_socket_folder(self) -> Path:
        if fits_socket(self.data):
            return self.data
        folder = new_temporary_folder(self.account)
        folder.chmod(0o700)
        give(folder, self.account)
        return folder

    def _socket_folder(self) -> Path | None:
        line = self._pid_file().get("socket folder")
        return Path(line) if line else None

    def _answers(self) -> bool:
        """Ask the server itself: after a crash its pid file goes on saying that it is ready."""
        folder = self._socket_folder()
        return folder is not None and self._run("pg_isready", "-h", folder, "-p", PORT, check=False)

    def _pid_file(self) -> dict[str, str]:
        """Read what the server says of itself; it writes these lines one after the other."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            lines = []
        return dict(zip(PID_FILE, map(str.strip, lines), strict=False))

    def _run(
        self, program: str, *arguments: object, check: bool = True, pass_fds: tuple[int, ...] = ()
    ) -> bool:
        identity: Identity = self.account.identity if self.account else {}
        done = subprocess.run(
            [str(self.bin / program), *map(str, arguments)],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env=_environment(),
            pass_fds=pass_fds,
            **identity,
        )
        if check and done.returncode:
            log = self.log.read_text() if self.log.exists() else ""
            message = f"{program} failed in {self.folder}:\n{done.stdout}{log}"
            raise RuntimeError(message)
        return done.returncode == 0


def fits_socket(folder: Path) -> bool:
    """Tell whether the server can open its socket there: a short path that is no list of paths."""
    short = len(os.fsencode(folder / SOCKET)) <= LONGEST_SOCKET_PATH
    return short and not set(str(folder)) & set(',"')


def new_temporary_folder(account: Account | None) -> Path:
    """Make a folder that the account can reach, with a path short enough for a socket."""
    # Only where a folder of its own is made in, which mkdtemp keeps others out of.
    for place in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):  # noqa: S108
        longest_inside = place / "django-outbox-12345678" / "data"
        usable = os.access(place, os.W_OK) and can_reach(account, place)
        if usable and fits_socket(longest_inside):
            return open_to(account, Path(tempfile.mkdtemp(prefix="django-outbox-", dir=place)))
    message = "PostgreSQL needs a temporary folder with a short path: set TMPDIR to one."
    raise RuntimeError(message)


def open_to(account: Account | None, folder: Path) -> Path:
    """Let the account pass through a folder that belongs to this program, and return it."""
    folder.chmod(0o700 if account is None else 0o711)
    return folder


def _environment() -> dict[str, str]:
    """Return the environment without PGDATA, PGPORT and the like, which point elsewhere."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    return kept | {"LC_ALL": "C"}
