"""Measure one worker process: `python -m benchmarks.worker`.

Starts a PostgreSQL of its own with its default, durable settings, and a real `outbox_worker` for
each scenario. Absolute figures move from machine to machine; the point is the order of magnitude,
and what changes between two runs on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from example_project.embedded.temporary import start_temporary

PAYLOAD = "x" * 254  # 256 bytes as JSON
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=20_000, metavar="N")
    parser.add_argument("--samples", type=int, default=300, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    options = parser.parse_args()
    with start_temporary() as server:
        os.environ["DATABASE_URL"] = server.url
        figures = measure(
            options.messages, options.samples, options.rounds, server.data / "server.log"
        )
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:<44} {value:>10,.2f}")


def measure(messages: int, samples: int, rounds: int, log: Path) -> dict[str, float]:
    """Return all figures by name; of several rounds the median."""
    prepare()
    figures: dict[str, float] = {}
    drained = [drain("empty", messages) for _ in range(rounds)]
    figures["empty handler, messages/s"] = statistics.median(rate for rate, _ in drained)
    figures["empty handler, peak memory, MB"] = max(memory for _, memory in drained)
    atomic = [drain("atomic", messages // 4, "--concurrency=8") for _ in range(rounds)]
    figures["atomic handler, 8 threads, messages/s"] = statistics.median(r for r, _ in atomic)
    figures |= latency(samples)
    figures["idle worker, statements/s"] = idle_statements(10, log)
    return figures


def prepare() -> None:
    """Make the tables."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bench_effect (message bigint)")


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


def drain(queue: str, messages: int, *arguments: str) -> tuple[float, float]:
    """Return messages a second from the commit to the empty table, and the peak memory in MB."""
    with worker(f"--queue={queue}", *arguments) as process:
        publish(queue, messages)
        started = time.monotonic()
        while queue_is_busy():
            time.sleep(0.01)
        elapsed = time.monotonic() - started
        return messages / elapsed, peak_memory(process.pid)


def publish(queue: str, messages: int) -> None:
    """Publish all messages in one transaction, then analyze the table as autovacuum would."""
    from django.db import transaction

    from django_outbox import outbox

    with transaction.atomic():
        outbox.publish_many([PAYLOAD] * messages, queue=queue)


def queue_is_busy() -> bool:
    """Tell whether a message is left."""
    return bool(query("SELECT EXISTS (SELECT FROM django_outbox_message)"))


def query(sql: str) -> Any:
    """Return the first value of a query."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def peak_memory(pid: int) -> float:
    """Return the most resident memory a process has had, in MB; 0 where /proc does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def latency(samples: int) -> dict[str, float]:
    """Return how long after the commit, in ms, an idle worker's handler has begun."""
    from django.db import transaction

    from django_outbox import outbox

    reader, writer = os.pipe()
    delays = []
    with worker("--queue=latency", pipe=writer), os.fdopen(reader) as reached:
        for n in range(samples):
            with transaction.atomic():
                outbox.publish(n, queue="latency")
                about_to_commit = time.monotonic()
            delays.append((float(reached.readline()) - about_to_commit) * 1000)
            time.sleep(0.02)
    os.close(writer)
    delays.sort()
    return {
        "idle, commit to handler, p50, ms": delays[len(delays) // 2],
        "idle, commit to handler, p99, ms": delays[int(len(delays) * 0.99)],
    }


def idle_statements(seconds: float, log: Path) -> float:
    """Return the statements a second of a worker that has nothing to do, from the server's log."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("ALTER SYSTEM SET log_statement = 'all'")
        cursor.execute("SELECT pg_reload_conf()")
    with worker():
        time.sleep(2)
        before = log.read_text().count("execute <unnamed>")
        time.sleep(seconds)
        return (log.read_text().count("execute <unnamed>") - before) / seconds


if __name__ == "__main__":
    main()
