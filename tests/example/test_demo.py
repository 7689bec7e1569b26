"""`manage.py demo` as a process, on a database that it creates on the tests' server and drops."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from example_project.shop.demo.database import URL
from tests.support import wait_until

MANAGE = str(settings.BASE_DIR / "manage.py")
ENVIRONMENT = {
    **os.environ,
    "DJANGO_SETTINGS_MODULE": "example_project.settings",
    "PYTHONUNBUFFERED": "1",
}


@contextmanager
def demo(environment: dict[str, str] = ENVIRONMENT) -> Iterator[subprocess.Popen[str]]:
    """Run it for the block, and never longer."""
    process = subprocess.Popen(
        [sys.executable, MANAGE, "demo"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def worker_of(process: subprocess.Popen[str]) -> int:
    """Return the process number of the demo's worker, once it says that it has one."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"outbox_worker runs as process (\d+)", line):
            return int(found[1])
    pytest.fail("The demo started no worker")


def is_alive(pid: int) -> bool:
    """Tell whether it runs; one that has ended, and that nobody waits for, does not."""
    with suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def demo_databases() -> list[str]:
    params = {**connection.get_connection_params(), "dbname": "postgres"}
    params["cursor_factory"] = psycopg.Cursor
    with psycopg.connect(**params) as session:
        rows = session.execute("SELECT datname FROM pg_database WHERE datname LIKE 'outbox_demo%'")
        return [name for (name,) in rows]


@pytest.mark.timeout(120)
def test_the_demo_tells_its_story_and_its_books_are_right() -> None:
    with demo() as process:
        output, _ = process.communicate()

    assert process.returncode == 0, output
    assert "SIGKILL" in output
    assert output.count("retry_terminal after 3 attempts") == 3
    assert re.search(r"p50 [\d.]+ ms, p99 [\d.]+ ms", output)
    assert "ok   every order was booked exactly once" in output
    assert re.search(r"it came once, \d+ ms after the last deadline", output)
    assert "ok   the abandoned cart was reminded of once" in output
    assert "ok   nothing is left in the outbox" in output
    assert "FAIL" not in output
    assert "\x1b" not in output
    assert len(output.splitlines()) <= 35
    assert demo_databases() == []


def test_an_interrupted_demo_leaves_no_worker_and_no_database() -> None:
    with demo() as process:
        worker = worker_of(process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()

        assert process.returncode == 130
        assert "Interrupted; all that was started is stopped." in output
        assert "Traceback" not in output
        assert not is_alive(worker)
        assert demo_databases() == []


def test_a_killed_demo_leaves_no_worker() -> None:
    # On a server of its own: it could not drop a database on the tests'.
    with demo({key: value for key, value in ENVIRONMENT.items() if key != URL}) as process:
        worker = worker_of(process)
        process.kill()

        wait_until(lambda: not is_alive(worker))
