"""Let a site work for long, and look at what grows: `python -m benchmarks.soak --minutes 10`.

A publisher keeps a steady rate of messages: plain ones, atomic ones, ones that fail once, and
timers of which half are extended; a schedule fires each second. One worker and one scheduler serve
them with default options. Every few seconds their memory, the connections, the sizes of the table
and its indexes, and the latency are noted: from just before the publishing transaction to the
handler's first line. In the end the first quarter is set against the last, and nothing may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import (
    ProgramFailed,
    execute,
    manage,
    prepare,
    query,
    running,
    wait_until_leading,
)
from benchmarks.common import worker as outbox_worker
from benchmarks.databases import databases
from benchmarks.plots import draw_over_time

TURN = 0.05
"""Seconds between two groups of messages."""

DRAINED_WITHIN = 60.0

SIZES = """
SELECT
    pg_relation_size('django_outbox_message') / 1048576.0,
    pg_indexes_size('django_outbox_message') / 1048576.0,
    (SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()),
    (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'django_outbox_message'),
    (SELECT count(*) FROM django_outbox_message WHERE next_attempt_at <= clock_timestamp())
"""

PANELS = {
    "memory, MB": ("worker, MB", "scheduler, MB"),
    "table and indexes, MB": ("table, MB", "indexes, MB"),
    "connections": ("connections",),
    "latency, ms": ("p50, ms", "p99, ms"),
}

Samples = dict[str, list[float]]


def main() -> int:
    options = parsed()
    with databases(postgres=options.postgres, server=options.server) as made:
        prepare()
        try:
            samples, left = soaked(options)
        except ProgramFailed as error:
            print(error, file=sys.stderr)
            return 1
        version = made.version
    table = compared(samples)
    if options.json:
        found = {"PostgreSQL": version, "left": left, "compared": table, "samples": samples}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if options.plot:
        draw_over_time(options.plot, samples, PANELS)
    print(
        f"PostgreSQL {version}, {options.minutes:g} minutes, {options.rate:g} messages a second\n"
    )
    print(f"{'':<16}{'first quarter':>15}{'last quarter':>15}{'most':>10}")
    for name, row in table.items():
        print(f"{name:<16}{row['first']:>15,.1f}{row['last']:>15,.1f}{row['most']:>10,.1f}")
    print(f"\n{samples['published'][-1]:,.0f} messages published, {left} left")
    return 1 if left else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=(
            "Let a site work for long, and look at what grows: one worker, one scheduler, and a "
            "publisher at a steady rate. In the end the first quarter is set against the last."
        ),
        epilog="It ends with 1 if a message is left, and with 2 if the server cannot be used.",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--postgres",
        type=int,
        choices=(16, 18),
        default=18,
        help="version of the embedded PostgreSQL (18)",
    )
    where.add_argument(
        "--server",
        metavar="URL",
        help="postgres://… of a server to use instead, whose user may create databases",
    )
    parser.add_argument(
        "--minutes", type=positive, default=10.0, metavar="N", help="how long it publishes (10)"
    )
    parser.add_argument(
        "--rate", type=positive, default=300.0, metavar="N", help="messages a second (300)"
    )
    parser.add_argument(
        "--every", type=positive, default=5.0, metavar="SECONDS", help="between two samples (5)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an SVG; needs matplotlib")
    return parser.parse_args()


def positive(text: str) -> float:
    """Return the number, which must be above zero."""
    if not 0 < (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above zero")
    return number


def soaked(options: argparse.Namespace) -> tuple[Samples, int]:
    """Return what was noted, and how many messages were left in the end."""
    add_schedule()
    scheduler = manage("outbox_scheduler")
    reader, writer = os.pipe()
    latencies: list[float] = []
    threading.Thread(target=collect, args=(reader, latencies), daemon=True).start()
    with outbox_worker(pipe=writer) as worker:
        os.close(writer)  # so that the reading ends with the worker
        with running(scheduler, {}) as leader:
            wait_until_leading(leader)
            with publishing(options.rate) as published:
                pids = {"worker": worker.pid, "scheduler": leader.pid}
                samples = sampled(options, pids, latencies, published)
        return samples, left_after_draining()


def add_schedule() -> None:
    from django_outbox import outbox

    outbox.schedule("soak", spec="@every 1s", queue="soak_scheduled", payload=None)


def collect(reader: int, latencies: list[float]) -> None:
    """Take in what handlers tell, until there is no worker any more."""
    with os.fdopen(reader) as lines:
        for line in lines:
            latencies.append(float(line))  # noqa: PERF401 - others look at the list meanwhile


@contextmanager
def publishing(rate: float) -> Iterator[list[int]]:
    """Publish so many messages a second until the block ends, from a thread."""
    ended = threading.Event()
    published = [0]

    def publish() -> None:
        from django.db import connection

        began = time.monotonic()
        try:
            while not ended.wait(TURN):
                due = int((time.monotonic() - began) * rate)
                for number in range(published[0], due):
                    publish_one(number)
                published[0] = max(due, published[0])
        finally:
            connection.close()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield published
    finally:
        ended.set()
        thread.join()


def publish_one(number: int) -> None:
    """Publish one message of the mix."""
    from django.db import transaction

    from django_outbox import outbox

    with transaction.atomic():
        match number % 20:
            case 0:
                outbox.publish(number, queue="soak_failing")
            case 1 | 2:
                timer_id = f"timer-{number // 40}"
                outbox.publish(
                    number,
                    queue="soak_timers",
                    timer_id=timer_id,
                    timer_conflict="extend",
                    activate_in=5,
                )
            case 3 | 4 | 5 | 6:
                outbox.publish(number, queue="atomic")
            case _:
                outbox.publish(time.monotonic(), queue="soak")


def sampled(
    options: argparse.Namespace,
    pids: dict[str, int],
    latencies: list[float],
    published: list[int],
) -> Samples:
    """Note everything each few seconds, and show each minute that it goes on."""
    samples: Samples = {}
    began = time.monotonic()
    ends = began + options.minutes * 60
    seen = 0
    while (now := time.monotonic()) < ends:
        time.sleep(min(options.every, ends - now))
        fresh, seen = sorted(latencies[seen:]), len(latencies)
        for name, value in sample(pids, fresh).items():
            samples.setdefault(name, []).append(value)
        samples.setdefault("minutes", []).append((time.monotonic() - began) / 60)
        samples.setdefault("published", []).append(published[0])
        show_progress(samples, options)
    return samples


def sample(pids: dict[str, int], latencies: Sequence[float]) -> dict[str, float]:
    """Return what can be seen now."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(SIZES)
        table, indexes, connections, dead, due = map(float, cursor.fetchone())
    return {
        **{f"{name}, MB": resident(pid) for name, pid in pids.items()},
        "table, MB": table,
        "indexes, MB": indexes,
        "connections": connections,
        "dead rows": dead,
        "due": due,
        "p50, ms": at(latencies, 0.5),
        "p99, ms": at(latencies, 0.99),
    }


def resident(pid: int) -> float:
    """Return the resident memory of a process in MB, NaN where /proc does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return float("nan")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def at(values: Sequence[float], share: float) -> float:
    """Return the value that so large a share of these sorted ones does not exceed."""
    return values[int(len(values) * share)] if values else float("nan")


def show_progress(samples: Samples, options: argparse.Namespace) -> None:
    if len(samples["minutes"]) % max(1, round(60 / options.every)) == 0:
        print(
            f"… {samples['minutes'][-1]:.0f} of {options.minutes:g} minutes, "
            f"{samples['published'][-1]:,.0f} published, worker {samples['worker, MB'][-1]:.0f} MB",
            file=sys.stderr,
            flush=True,
        )


def left_after_draining() -> int:
    """Wait until everything is delivered, and return how many messages are not."""
    execute("UPDATE django_outbox_schedule SET enabled = false")
    deadline = time.monotonic() + DRAINED_WITHIN
    while (left := int(query("SELECT count(*) FROM django_outbox_message"))) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.2)
    return left + int(query("SELECT count(*) FROM django_outbox_dead_letter"))


def compared(samples: Samples) -> dict[str, dict[str, float]]:
    """Return the median of the first quarter, that of the last, and the most."""
    quarter = max(1, len(samples["minutes"]) // 4)
    return {
        name: {
            "first": statistics.median(values[:quarter]),
            "last": statistics.median(values[-quarter:]),
            "most": max(values),
        }
        for name, values in samples.items()
        if name not in {"minutes", "published"}
    }


if __name__ == "__main__":
    sys.exit(main())
