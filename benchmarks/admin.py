"""Measure the admin on full tables: `python -m benchmarks.admin`.

Fills a PostgreSQL with default, durable settings with a million dead letters and five million
messages, opens each page with each of its filters and searches, and replays letters. A row of the
table is a page: how long it took at the median and at the worst, until its last byte, and with how
many queries.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections.abc import Iterable, Iterator
from html import unescape
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_plus, urlencode

from benchmarks.common import execute, run

if TYPE_CHECKING:
    from django.test import Client

# Eight queues have nearly all rows, as unevenly as anywhere, and two hundred have a few each.
QUEUES = """
CREATE FUNCTION pg_temp.some_queue() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN random() < 0.01 THEN 'tenant-' || floor(200 * random())
        ELSE (ARRAY['orders', 'payments', 'shipments', 'carts', 'github', 'letters', 'reports',
            'devices'])[1 + floor(8 * power(random(), 2.5))::int] END
$$
"""

# In each hundred 20 ready, 50 for later (half of them timers) and 30 retrying; of what an operator
# looks for, a hundred leased and fifty expired, there is little among very much.
MESSAGES = """
INSERT INTO django_outbox_message
    (queue, payload, headers, correlation_id, ref, timer_id, created_at, next_attempt_at,
     expires_at, attempts_count, deliveries_count, last_attempt_at, last_error,
     lease_token, lease_expires_at, leased_by)
SELECT
    pg_temp.some_queue(),
    convert_to('{"order_id": ' || n || ', "note": "' || repeat('x', 200) || '"}', 'UTF8'),
    '{"content-type": "application/json"}',
    'order-' || n,
    'shop.order:' || n,
    CASE WHEN part BETWEEN 20 AND 44 THEN 'timer-' || n END,
    clock_timestamp() - n * interval '10 ms',
    clock_timestamp() + n * interval '50 ms' * CASE WHEN part < 20 THEN -1 ELSE 1 END,
    CASE WHEN n %% 100000 = 99 THEN clock_timestamp() - interval '1 minute' END,
    CASE WHEN part >= 70 THEN 3 ELSE 0 END,
    CASE WHEN part >= 70 THEN 3 ELSE 0 END,
    CASE WHEN part >= 70 THEN clock_timestamp() - interval '1 minute' END,
    CASE WHEN part >= 70 THEN 'TimeoutError: The bank did not answer' END,
    CASE WHEN n %% 50000 = 0 THEN gen_random_uuid() END,
    CASE WHEN n %% 50000 = 0
        THEN clock_timestamp() + (n / 50000 %% 60 - 20) * interval '1 minute' END,
    CASE WHEN n %% 50000 = 0 THEN 'worker-' || n / 50000 %% 40 END
FROM generate_series(1, %(rows)s) AS n, LATERAL (SELECT n %% 100 AS part) AS parts
"""

# 200 causes in each queue, of which the commonest has a third of its letters, over a month. The
# classes are those of one queue only, so a filter by queue and class may have nothing to find.
LETTERS = """
INSERT INTO django_outbox_dead_letter
    (original_id, message_id, queue, payload, headers, correlation_id, ref, timer_id, created_at,
     first_attempt_at, last_attempt_at, attempts_count, deliveries_count, failed_at,
     failure_reason, exception_class, last_exception, fingerprint)
SELECT
    n,
    gen_random_uuid(),
    queue,
    convert_to('{"order_id": ' || n || ', "note": "' || repeat('x', 200) || '"}', 'UTF8'),
    '{"content-type": "application/json"}',
    'order-' || n,
    'shop.order:' || n,
    CASE WHEN n %% 3 = 0 THEN 'letter-timer-' || n END,
    failed_at - interval '1 hour',
    failed_at - interval '50 minutes',
    failed_at,
    8,
    8,
    failed_at,
    reason,
    queue || '.Error' || cause %% 40,
    queue || '.Error' || cause %% 40 || ': cause ' || cause || repeat(E'\\n  File "shop.py"', 40),
    md5(queue || reason || cause)
FROM generate_series(1, %(rows)s) AS n,
    LATERAL (
        SELECT
            pg_temp.some_queue() AS queue,
            clock_timestamp() - random() * interval '30 days' AS failed_at,
            (ARRAY['retry_terminal', 'rejected', 'max_deliveries', 'expired', 'invalid_payload'])
                [1 + floor(5 * power(random(), 3))::int] AS reason,
            floor(200 * power(random(), 5))::int + 0 * n AS cause
    ) AS letter
"""

COUNTERS = """
INSERT INTO django_outbox_counter (minute, queue, completed, retried, buried)
SELECT date_trunc('minute', clock_timestamp()) - n * interval '1 minute', queue, 100, 10, 1
FROM generate_series(0, 1439) AS n,
    unnest(ARRAY['orders', 'payments', 'shipments', 'carts', 'github', 'letters', 'reports',
        'devices']) AS queue
"""

WORKERS = """
INSERT INTO django_outbox_worker (id, worker_id, kind, host, pid, queues, concurrency, running)
SELECT gen_random_uuid(), 'worker-' || n, 'worker', 'host-' || n % 4, n,
    '["orders", "payments"]', 8, 3
FROM generate_series(1, 40) AS n
"""


MOST_LINKS = 12
"""Of one filter; all its choices cost the same."""


class Figures(NamedTuple):
    """What several visits to one page have cost."""

    median: float
    worst: float
    queries: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--letters", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--messages", type=int, default=5_000_000, metavar="N")
    parser.add_argument("--replayed", type=int, default=100_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    os.environ["DEBUG"] = "off"
    run(parser, measure, settings="example_project.settings")


def measure(options: argparse.Namespace, _log: Path) -> dict[str, float]:
    """Return all figures by name; for people, those of pages are printed as a table instead."""
    figures = {"filling the tables, s": timed_fill(options.letters, options.messages)}
    pages = dict(visit_all(options.rounds))
    if options.json:
        for name, page in pages.items():
            figures |= {f"{name}, {what}": value for what, value in page._asdict().items()}
    else:
        print_table(pages)
    figures[f"replaying {options.replayed:,} letters, s"] = timed_replay(options.replayed)
    return figures


def print_table(pages: dict[str, Figures]) -> None:
    """Print a row for each page."""
    print(f"{'page':<72} {'median, ms':>10} {'worst, ms':>10} {'queries':>8}")
    for name, page in pages.items():
        print(f"{name:<72} {page.median:>10,.0f} {page.worst:>10,.0f} {page.queries:>8}")


# Filling


def timed_fill(letters: int, messages: int) -> float:
    """Write all rows, as autovacuum would have left them, and return the seconds it took."""
    began = time.perf_counter()
    execute(QUEUES)
    execute(LETTERS, {"rows": letters})
    execute(MESSAGES, {"rows": messages})
    execute(COUNTERS)
    execute(WORKERS)
    execute("VACUUM ANALYZE")
    execute("CHECKPOINT")
    return time.perf_counter() - began


# Opening pages


def visit_all(rounds: int) -> Iterator[tuple[str, Figures]]:
    """Open each page so many times, and each that its filters, headings and pages lead to."""
    client = logged_in()
    for name, path in pages():
        yield name, visit(client, path, rounds)
        for link in links(client, path) if "?" not in path else ():
            yield f"{name} {unquote_plus(link)}", visit(client, path.partition("?")[0] + link, 2)


def logged_in() -> Client:
    """Return the browser of a superuser."""
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.create_superuser("bench"))
    return client


def visit(client: Client, path: str, rounds: int) -> Figures:
    """Open a page so many times; any answer but a page is an error."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    seconds, queries = [], 0
    for _ in range(rounds):
        began = time.perf_counter()
        with CaptureQueriesContext(connection) as captured:
            response = client.get(path)
        seconds.append(time.perf_counter() - began)
        queries = max(queries, len(captured))
        assert response.status_code == 200, f"{path}: {response.status_code}"
    return Figures(statistics.median(seconds) * 1000, max(seconds) * 1000, queries)


def links(client: Client, path: str) -> Iterator[str]:
    """Yield links of a list to itself: the first few of each filter, to other orders and pages."""
    body = client.get(path).content.decode()
    found = sorted({unescape(link) for link in re.findall(r'href="(\?[^"]+)"', body)})
    for _, alike in groupby(found, key=lambda link: link.partition("=")[0]):
        yield from islice(alike, MOST_LINKS)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the path of each page, of each kind of search, and of filters together."""
    from django.urls import reverse

    from django_outbox.models import DeadLetter, OutboxMessage

    letters, messages, schedules = (
        reverse(f"admin:django_outbox_{model}_changelist")
        for model in ("deadletter", "outboxmessage", "schedule")
    )
    letter, message = DeadLetter.objects.order_by("-pk")[0], OutboxMessage.objects.order_by("pk")[0]
    yield "overview", reverse("admin:app_list", args=["django_outbox"])
    yield "schedules", schedules
    yield "dead letters", letters
    yield "what is failing", reverse("admin:django_outbox_deadletter_failing")
    yield "dead letter", f"{letters}{letter.pk}/change/"
    yield from looked_for("dead letters", letters, letter, LETTER_QUERIES)
    yield "messages", messages
    yield "message", f"{messages}{message.pk}/change/"
    yield from looked_for("messages", messages, message, MESSAGE_QUERIES)


LETTER_QUERIES = (
    {"q": "letter-timer-3"},
    {"queue": "orders", "exception": "orders.Error0"},
    {"queue": "orders", "exception": "payments.Error0"},
    {"queue": "orders", "reason": "rejected", "failed": "older"},
    {"reason": "rejected", "exception": "orders.Error0", "failed": "week"},
    {"queue": "devices", "failed": "hour"},
    {"q": "orders", "exception": "payments.Error0"},
    {"q": "orders", "reason": "invalid_payload"},
)
MESSAGE_QUERIES = (
    {"q": "timer-20"},
    {"q": "shop.order:77"},
    *(
        {"queue": queue, "state": state}
        for queue in ("orders", "devices")
        for state in ("ready", "leased", "scheduled", "retrying", "expired")
    ),
    {"q": "orders", "state": "leased"},
)


def looked_for(
    name: str, path: str, row: Any, queries: Iterable[dict[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield the searches that find this row, one that finds nothing, and these queries."""
    searches = (str(row.message_id), row.correlation_id, row.queue, "nothing")
    for query in (*({"q": text} for text in searches), *queries):
        link = f"?{urlencode(query)}"
        yield f"{name} {unquote_plus(link)}", path + link


# Replaying


def timed_replay(letters: int) -> float:
    """Replay so many letters and return the seconds it took."""
    from django_outbox.models import DeadLetter

    ids = DeadLetter.objects.order_by("pk").values_list("pk", flat=True)
    last = ids[letters - 1 : letters].get()
    began = time.perf_counter()
    result = DeadLetter.objects.filter(pk__lte=last).replay()
    took = time.perf_counter() - began
    assert result.replayed == letters, result
    return took


if __name__ == "__main__":
    main()
