"""Measure one worker process: `python -m benchmarks.worker`.

Starts a PostgreSQL of its own with its default, durable settings, and a real `outbox_worker` for
each scenario. Absolute figures move from machine to machine; the point is the order of magnitude,
and what changes between two runs on the same machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from benchmarks.common import PAYLOAD, execute, query, run, worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=20_000, metavar="N")
    parser.add_argument("--samples", type=int, default=300, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    run(parser, measure)


def measure(options: argparse.Namespace, log: Path) -> dict[str, float]:
    """Return all figures by name; of several rounds the median."""
    messages, rounds = options.messages, range(options.rounds)
    figures: dict[str, float] = {}
    drained = [drain("empty", messages) for _ in rounds]
    figures["empty handler, messages/s"] = statistics.median(rate for rate, _ in drained)
    figures["empty handler, peak memory, MB"] = max(memory for _, memory in drained)
    atomic = [drain("atomic", messages // 4, "--concurrency=8") for _ in rounds]
    figures["atomic handler, 8 threads, messages/s"] = statistics.median(r for r, _ in atomic)
    figures |= latency(options.samples)
    figures["idle worker, statements/s"] = idle_statements(10, log)
    return figures


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
    """Publish all messages in one transaction."""
    from django.db import transaction

    from django_outbox import outbox

    with transaction.atomic():
        outbox.publish_many([PAYLOAD] * messages, queue=queue)


def queue_is_busy() -> bool:
    """Tell whether a message is left."""
    return bool(query("SELECT EXISTS (SELECT FROM django_outbox_message)"))


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
    execute("ALTER SYSTEM SET log_statement = 'all'")
    execute("SELECT pg_reload_conf()")
    with worker():
        time.sleep(2)
        before = log.read_text().count("execute <unnamed>")
        time.sleep(seconds)
        return (log.read_text().count("execute <unnamed>") - before) / seconds


if __name__ == "__main__":
    main()
