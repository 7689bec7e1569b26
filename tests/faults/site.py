"""The site under test: a server with a small disk, and programs, each behind a proxy."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg

from example_project.embedded import TemporaryServer, start_temporary
from example_project.embedded.account import give, server_account
from example_project.embedded.server import open_to
from tests.faults import ledger
from tests.faults.fleet import ROOT, Fleet, Program
from tests.faults.ledger import Journal
from tests.faults.proxy import Proxy
from tests.older import NoHistory, unpack_before

VERSION = int(os.environ.get("TEST_POSTGRES_VERSION", "18"))
DATABASE = "faults"
ROLE = "site"
"""Not a superuser, so that the slots reserved for those are left to the suite."""

SETTINGS = {"max_connections": "80", "autovacuum_naptime": "5s", "log_min_messages": "fatal"}
DISK = "1g"
WORKERS = ("worker-1", "worker-2", "workers")
SCHEDULERS = ("scheduler-1", "scheduler-2")
WITH_SCHEDULER = "worker-1"
PUBLISHERS = ("publisher-1", "publisher-2")
DJANGO = ("-m", "django")
"""It takes the package from the working directory, and the suite from `PYTHONPATH`."""

CLOCKED = ("worker-2", "scheduler-2")
"""Programs whose clock can be shifted while they run."""


class Clock:
    """The clock of one program, which libfaketime reads from a file."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self._library = library
        self.shift(0)

    def shift(self, seconds: int) -> None:
        """Have the program's clock be off by so much from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.rename(self._file)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


class Site:
    """All that a fault can touch; it ends with the block."""

    def __init__(self, folder: Path, *, messages: int, seconds: float, seed: int) -> None:
        self.folder = folder
        self.fleet = Fleet()
        self.disk: Path | None = None
        self.older: Path | None = None
        """A folder with the package of the version before."""
        self.clocks: dict[str, Clock] = {}
        self.proxies: dict[str, Proxy] = {}
        self.missing: list[str] = []
        self.first_boundaries: dict[str, Any] = {}
        self.calm = threading.Event()
        """Set when the nemesis is to end."""
        self._messages = messages
        self._seconds = seconds
        self._seed = seed
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.disk = stack.enter_context(_small_disk(self.missing))
            self.server: TemporaryServer = stack.enter_context(start_temporary(VERSION))
            self._configure()
            stack.callback(self.fleet.kill)
            self._start_programs(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @contextmanager
    def session(self, database: str = DATABASE) -> Iterator[psycopg.Connection[Any]]:
        """Open a superuser's connection past the proxy, in autocommit."""
        with psycopg.connect(
            self.server.url,
            dbname=database,
            autocommit=True,
            options="-c default_transaction_read_only=off",
        ) as session:
            yield session

    def query(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        with self.session() as session:
            return session.execute(sql, params).fetchall()

    def execute(self, *statements: str, database: str = DATABASE) -> None:
        with self.session(database) as session:
            for statement in statements:
                session.execute(statement)

    def hold(self, seconds: float) -> None:
        """Let a fault last so long, or until the nemesis is to end."""
        self.calm.wait(seconds)

    def wait_until(self, condition: Callable[[], bool], *, within: float) -> bool:
        """Wait for a condition and tell whether it came true; a database error is not yet."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            try:
                if condition():
                    return True
            except psycopg.Error:
                pass
            time.sleep(0.1)  # it can only be asked
        return False

    @property
    def schedulers(self) -> list[Program]:
        """The programs that may lead, a worker with a scheduler of its own among them."""
        return [self.fleet.programs[name] for name in (*SCHEDULERS, WITH_SCHEDULER)]

    def leader(self) -> Program | None:
        """Return the program whose scheduler leads now."""
        rows = self.query("SELECT owner FROM django_outbox_lease WHERE name = '__scheduler'")
        owners = " ".join(owner for (owner,) in rows)
        return next((one for one in self.schedulers if f":{one.pid}:" in owners), None)

    def read_ledger(self) -> ledger.Ledger:
        with self.session() as session:
            book = ledger.read(session.cursor())
        book.first_boundaries = self.first_boundaries
        for path in self.folder.glob("*.journal"):
            book.acknowledged |= Journal(path).read("committed")
            book.rolled_back |= Journal(path).read("rolled_back")
        return book

    def _configure(self) -> None:
        settings = [f"ALTER SYSTEM SET {name} = '{value}'" for name, value in SETTINGS.items()]
        self.execute(*settings, database="postgres")
        self.server.restart()
        place = ""
        if self.disk is not None:
            create = f"CREATE TABLESPACE small LOCATION '{self.disk}'"
            self.execute(create, database="postgres")
            place = "TABLESPACE small"
        role, database = f"CREATE ROLE {ROLE} LOGIN", f"CREATE DATABASE {DATABASE} OWNER {ROLE}"
        self.execute(role, f"{database} {place}", database="postgres")
        direct = f"postgres://{ROLE}@/{DATABASE}?{self.server.url.partition('?')[2]}"
        self._manage(direct, "migrate")
        self.execute(f"SET ROLE {ROLE}", ledger.SQL)
        self._manage(direct, "outbox_scheduler", "--once")
        first = self.query("SELECT name, next_run_at FROM django_outbox_schedule")
        self.first_boundaries = dict(first)

    def _manage(self, url: str, *arguments: str) -> None:
        environment = self._environment() | {"DATABASE_URL": url}
        command = [sys.executable, *DJANGO, *arguments]
        subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {
            **kept,
            "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }

    def _start_programs(self, stack: ExitStack) -> None:
        self._find_clocks()
        self._find_older_code()
        for name in (*WORKERS, *SCHEDULERS, *PUBLISHERS):
            proxy = Proxy(f"{self.server.data}/.s.PGSQL.5432")
            self.proxies[name] = stack.enter_context(proxy)
        worker = (*DJANGO, "outbox_worker", "--no-reload", "--concurrency", "8")
        for name in WORKERS:
            several = ("--processes", "2") if name == "workers" else ()
            scheduler = ("--with-scheduler",) if name == WITH_SCHEDULER else ()
            ready = "processes. Stop" if several else "serves"
            self._add(name, (*worker, *several, *scheduler), ready)
        for name in SCHEDULERS:
            self._add(name, (*DJANGO, "outbox_scheduler"), "Scheduler on")
        for name in PUBLISHERS:
            options = {
                "messages": -(-self._messages // len(PUBLISHERS)),
                "seconds": self._seconds,
                "seed": self._seed,
            }
            given = (f"--{option}={value}" for option, value in options.items())
            journal = str(self.folder / f"{name}.journal")
            self._add(name, (*DJANGO, "faults_publish", name, journal, *given))
        self.fleet.start_keeping()

    def _find_clocks(self) -> None:
        library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
        if library is None:
            self.missing.append("the clock fault: libfaketime (Debian's faketime) is not there")
            return
        self.clocks = {name: Clock(self.folder / f"{name}.clock", library) for name in CLOCKED}

    def _find_older_code(self) -> None:
        newest = max(path.stem for path in (ROOT / "django_outbox" / "migrations").glob("0*.py"))
        try:
            self.older = unpack_before(newest, self.folder / "older")
        except NoHistory as error:
            self.missing.append(f"code of the version before: {error}")

    def _add(self, name: str, arguments: tuple[str, ...], ready: str = "") -> None:
        url = f"postgres://{ROLE}@127.0.0.1:{self.proxies[name].port}/{DATABASE}"
        options = "sslmode=disable&gssencmode=disable&connect_timeout=5"
        environment = self._environment() | {"DATABASE_URL": f"{url}?{options}"}
        if name in self.clocks:
            environment |= self.clocks[name].environment
        self.fleet.add(
            Program(name, arguments, environment=environment, logs=self.folder, ready=ready)
        )


@contextmanager
def _small_disk(missing: list[str]) -> Iterator[Path | None]:
    """Mount a file system of its own for the database, so that it can be filled."""
    if os.geteuid() != 0:
        missing.append("the full disk: only root can mount a small one")
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="outbox-faults-") as name:
        mount = open_to(server_account(), Path(name)) / "disk"
        mount.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(mount)]
        if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
            missing.append("the full disk: mounting a small one is not allowed here")
            yield None
            return
        try:
            place = mount / "tables"
            place.mkdir(mode=0o700)
            give(place, server_account())
            yield place
        finally:
            subprocess.run(["umount", "--lazy", str(mount)], check=True)
