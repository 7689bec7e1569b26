"""What the benchmarks share: a server, tables, worker processes, and a table of figures."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from example_project.embedded.temporary import start_temporary

PAYLOAD = "x" * 254  # 256 bytes as JSON
ROOT = Path(__file__).resolve().parent.parent


def run(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace, Path], dict[str, float]],
    *,
    settings: str = "benchmarks.settings",
) -> None:
    """Parse the arguments, measure on a PostgreSQL of its own, and print the figures.

    The server has its default, durable settings; `measure` gets the path of its log.
    """
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    options = parser.parse_args()
    with start_temporary() as server:
        os.environ["DATABASE_URL"] = server.url
        prepare(settings)
        figures = measure(options, server.data / "server.log")
    show(figures, as_json=options.json)


def show(figures: Mapping[str, float], *, as_json: bool) -> None:
    """Print the figures as JSON or as a table."""
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:<56} {value:>10,.2f}")


def prepare(settings: str = "benchmarks.settings") -> None:
    """Make the tables."""
    os.environ["DJANGO_SETTINGS_MODULE"] = settings
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    execute("CREATE TABLE IF NOT EXISTS bench_effect (message bigint)")


@contextmanager
def worker(
    *arguments: str, pipe: int | None = None, processes: int = 1
) -> Iterator[subprocess.Popen[bytes]]:
    """Run an `outbox_worker` until the block ends; it is serving when the block begins."""
    execute("TRUNCATE django_outbox_worker")
    more = [] if processes == 1 else [f"--processes={processes}"]
    command = manage("outbox_worker", "--no-reload", *more, *arguments)
    with running(command, {"BENCH_PIPE": str(pipe)}, () if pipe is None else (pipe,)) as process:
        wait_until_serving(process, processes)
        yield process


def manage(*arguments: str) -> list[str]:
    """Return the command line of a management command."""
    return [sys.executable, "manage.py", *arguments]


def wait_until_serving(process: subprocess.Popen[bytes], processes: int = 1) -> None:
    """Wait until so many workers have told that they live, or have done all they were to do."""
    while process.poll() is None and query("SELECT count(*) FROM django_outbox_worker") < processes:
        time.sleep(0.02)
    if process.returncode:
        raise ProgramFailed(f"{process.args!r} ended with {process.returncode}")


def wait_until_leading(process: subprocess.Popen[bytes]) -> None:
    """Wait until a scheduler leads."""
    while not query("SELECT EXISTS (SELECT FROM django_outbox_lease)"):
        if process.poll() is not None:
            raise ProgramFailed(f"{process.args!r} ended with {process.returncode}")
        time.sleep(0.02)


@contextmanager
def running(
    command: list[str], environment: Mapping[str, str], pass_fds: Collection[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in the clone until the block ends; say what it said if it fails."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            pass_fds=pass_fds,
            stderr=said,
        )
        try:
            yield process
        except ProgramFailed as failed:
            said.seek(0)
            raise ProgramFailed(said.read().decode().strip() or str(failed)) from None
        finally:
            process.terminate()
            process.wait(40)


class ProgramFailed(Exception):
    """A program that is measured has ended by itself."""


@contextmanager
def pipe() -> Iterator[tuple[IO[str], int]]:
    """Give the lines to read, and the file descriptor that a measured process writes them to."""
    reader, writer = os.pipe()
    try:
        with os.fdopen(reader) as lines:
            yield lines, writer
    finally:
        os.close(writer)


def execute(sql: str, params: Any = None) -> None:
    """Run a statement."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def query(sql: str, params: Any = None) -> Any:
    """Return the first value of a query."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchone()[0]
