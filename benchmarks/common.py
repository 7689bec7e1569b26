"""What the benchmarks share: a server, tables, worker processes, and a table of figures."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
def worker(*arguments: str, pipe: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run an `outbox_worker` until the block ends; it is serving when the block begins."""
    environment = {**os.environ, "BENCH_PIPE": str(pipe)}
    process = subprocess.Popen(
        [sys.executable, "manage.py", "outbox_worker", "--no-reload", *arguments],
        cwd=ROOT,
        env=environment,
        pass_fds=() if pipe is None else (pipe,),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        process.stderr.readline()  # "Worker … serves …"
        time.sleep(0.5)
        yield process
    finally:
        process.terminate()
        process.wait(30)


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
