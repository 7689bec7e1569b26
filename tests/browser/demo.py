"""A shop's outbox on a bad night: what the pages are tested and shown with."""

from __future__ import annotations

import json
import zlib
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.db import connection
from django.utils import timezone

from django_outbox import outbox
from django_outbox.models import Counter, DeadLetter, Lease, OutboxMessage, Schedule, Worker
from django_outbox.refs import ref_to
from django_outbox.scheduling.leadership import NAME as LEADERSHIP
from django_outbox.worker.failures import Failure, fingerprint
from example_project.shop.models import Customer, Order, Product

HOSTILE = "<script>alert(1)</script>"
HOSTILE_ERROR = '"><img src=x onerror="alert(\'error\')">'
JSON = {"content-type": "application/json"}

TRACEBACK = """\
{error}

Traceback (most recent call last):
  File "/srv/shop/outbox_handlers.py", line {line}, in {function}
    receipt = partners.charge(order.total, key=message.message_id, attempt=message.attempt)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/shop/partners.py", line 88, in charge
    with urlopen(request, timeout=10) as answer:
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{error}
"""

FAILURES = [
    # queue, reason, exception class, first line, where, how many, minutes between two
    ("payments", "retry_terminal", "TimeoutError", "The bank did not answer", 61, 46, 1.3),
    ("payments", "rejected", "shop.CardRefused", "The card has expired", 74, 9, 40),
    ("orders", "rejected", "django_outbox.errors.Reject", "More than in stock", 41, 14, 11),
    ("shipments", "max_deliveries", None, None, 0, 3, 90),
    ("carts", "expired", None, None, 0, 21, 17),
    (HOSTILE, "retry_terminal", "ValueError", HOSTILE_ERROR, 12, 2, 300),
]


def fill() -> None:
    """Write letters, messages, timers, schedules, processes and counters."""
    now = timezone.now()
    fill_letters(now)
    fill_messages(now)
    fill_trail(now)
    fill_schedules(now)
    fill_processes(now)
    fill_counters(now)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def fill_letters(now: datetime) -> None:
    """Write a few groups of failures, the newest a minute ago."""
    letters = []
    for queue, reason, kind, error, line, count, minutes in FAILURES:
        for n in range(count):
            failed_at = now - timedelta(minutes=1 + n * minutes)
            letters.append(letter(queue, reason, kind, error, line, number=n, failed_at=failed_at))
    letters.append(webhook(now))
    letters.append(bytes_of_a_device(now))
    DeadLetter.objects.bulk_create(letters)


def letter(
    queue: str,
    reason: str,
    kind: str | None,
    error: str | None,
    line: int,
    *,
    number: int,
    failed_at: datetime,
) -> DeadLetter:
    """Return one failure of its group."""
    failure = kind and Failure(exception_class=kind, text=error, origin=f"shop.py:{line}")
    first_line = f"{kind}: {error} (order-{5200 + number})"
    return DeadLetter(
        original_id=90_000 + number,
        message_id=uuid4(),
        queue=queue,
        payload=json.dumps({"order_id": 5200 + number, "note": HOSTILE}).encode(),
        headers={**JSON, "x-shop": HOSTILE},
        correlation_id=f"order-{5200 + number}",
        ref=f"shop.order:{5200 + number}",
        timer_id=f"cart-{number}" if queue == "carts" else None,
        created_at=failed_at - timedelta(minutes=20),
        first_attempt_at=None if kind is None else failed_at - timedelta(minutes=19),
        last_attempt_at=None if kind is None else failed_at,
        attempts_count=0 if kind is None else 8,
        deliveries_count=100 if reason == "max_deliveries" else 8,
        failed_at=failed_at,
        failure_reason=reason,
        exception_class=kind,
        last_exception=kind
        and TRACEBACK.format(error=first_line, line=line, function="take_payment"),
        fingerprint=fingerprint(queue, reason, failure or None),
    )


def webhook(now: datetime) -> DeadLetter:
    """Return an event whose payload is not what its handler reads, until somebody edits it."""
    return DeadLetter(
        original_id=95_000,
        message_id=uuid4(),
        queue="github",
        payload=b'{"action": ["opened"], "repository": {"full_name": "shop/till"}}',
        headers={**JSON, "X-GitHub-Event": "issues"},
        correlation_id="delivery-7",
        created_at=now - timedelta(minutes=7),
        failed_at=now - timedelta(minutes=7),
        deliveries_count=1,
        failure_reason="invalid_payload",
        exception_class="django_outbox.errors.InvalidPayload",
        last_exception="django_outbox.errors.InvalidPayload: action must be str or None",
        fingerprint=fingerprint("github", "invalid_payload", None),
    )


def bytes_of_a_device(now: datetime) -> DeadLetter:
    """Return a letter whose payload is no text, and large."""
    return DeadLetter(
        original_id=95_001,
        message_id=uuid4(),
        queue="devices",
        payload=zlib.compress(b"telemetry") + bytes(range(256)) * 600,
        headers={"content-type": "application/octet-stream"},
        correlation_id="device-17",
        created_at=now - timedelta(days=2),
        failed_at=now - timedelta(days=1, hours=3),
        deliveries_count=100,
        failure_reason="max_deliveries",
        fingerprint=fingerprint("devices", "max_deliveries", None),
    )


def fill_messages(now: datetime) -> None:
    """Write messages in each state there is."""
    minutes = timedelta(minutes=1)
    lease = {"lease_token": uuid4(), "leased_by": "web-1:4242:7f3a"}
    states: list[tuple[str, int, dict[str, Any]]] = [
        ("orders", 12, {"next_attempt_at": now - 2 * minutes}),
        ("payments", 4, {**lease, "lease_expires_at": now + minutes, "deliveries_count": 1}),
        (
            "payments",
            9,
            {
                "next_attempt_at": now + 4 * minutes,
                "attempts_count": 3,
                "deliveries_count": 3,
                "first_attempt_at": now - 6 * minutes,
                "last_attempt_at": now - minutes,
                "last_error": "TimeoutError: The bank did not answer\n\nTraceback …",
            },
        ),
        (
            "shipments",
            2,
            {
                "lease_token": uuid4(),
                "leased_by": f"lost-{HOSTILE}",
                "lease_expires_at": now - 5 * minutes,
                "deliveries_count": 2,
            },
        ),
        ("carts", 1, {"expires_at": now - minutes}),
        ("letters-to-nobody", 3, {"next_attempt_at": now - 95 * minutes}),
        (HOSTILE, 1, {"next_attempt_at": now + 600 * minutes}),
    ]
    number = 6000
    for queue, count, fields in states:
        for _ in range(count):
            number += 1
            message(queue, number, **fields)
    for cart in range(6):
        due = now + timedelta(minutes=7 * cart + 3)
        message("carts", 300 + cart, timer_id=f"cart-{300 + cart}", next_attempt_at=due)


def message(queue: str, number: int, **fields: Any) -> OutboxMessage:
    """Write one message about an order."""
    given = {
        "payload": json.dumps({"order_id": number, "note": HOSTILE}).encode(),
        "headers": JSON,
        "correlation_id": f"order-{number}",
        "ref": f"shop.order:{number}",
        "created_at": timezone.now() - timedelta(hours=2),
        **fields,
    }
    return OutboxMessage.objects.create(queue=queue, **given)


def fill_trail(now: datetime) -> None:
    """Write an order of the shop that has a message, a timer and a dead letter of its own."""
    order = Order.objects.create(
        customer=Customer.objects.create(name="Ada Lovelace", email="ada@example.org"),
        product=Product.objects.create(name="Lamp", price="39.90", stock=7),
        quantity=2,
    )
    ref = ref_to(order)
    message("shipments", 6500, ref=ref, created_at=now - timedelta(minutes=9))
    message("orders", 6501, ref=ref, timer_id="remind-7", next_attempt_at=now + timedelta(days=2))
    queue, reason, kind, error, line, *_ = FAILURES[0]
    failed = letter(queue, reason, kind, error, line, number=300, failed_at=now)
    failed.ref = ref
    failed.save()


def fill_schedules(now: datetime) -> None:
    """Write schedules of several zones; one has failed, one is off."""
    for name, spec, queue in [
        ("nightly-report", "@cron 30 2 * * * Europe/Berlin", "reports"),
        ("market-open", "@cron 30 9 * * MON-FRI America/New_York", "orders"),
        ("refresh-prices", "@every 15m", "orders"),
        ("invoices", "@cron 0 6 1 * * Asia/Kolkata", "payments"),
        (HOSTILE, "@every 1d", HOSTILE),
    ]:
        outbox.schedule(name, spec, queue=queue, payload={"note": HOSTILE})
    Schedule.objects.filter(name="refresh-prices").update(
        last_run_at=now - timedelta(minutes=4), last_boundary_at=now - timedelta(minutes=4)
    )
    Schedule.objects.filter(name="invoices").update(enabled=False, skipped_count=3)
    Schedule.objects.filter(name="market-open").update(
        last_error=f"ValueError: {HOSTILE_ERROR}", skipped_count=1
    )


def fill_processes(now: datetime) -> None:
    """Write two workers that live, one that has been silent for long, and the schedulers."""
    for worker_id, kind, host, queues, running, silent in [
        ("web-1:4242:7f3a", "worker", "web-1", ["orders", "payments"], 4, 3),
        ("web-2:4177:01bc", "worker", "web-2", ["carts", "orders", "shipments"], 0, 8),
        (f"lost-{HOSTILE}", "worker", "web-3", ["shipments"], 2, 340),
        ("web-1:4250:aa10", "scheduler", "web-1", [], 0, 2),
        ("web-2:4181:be77", "scheduler", "web-2", [], 0, 6),
    ]:
        Worker.objects.create(
            id=uuid4(),
            worker_id=worker_id,
            kind=kind,
            host=host,
            pid=int(worker_id.split(":")[1]) if ":" in worker_id else 77,
            queues=queues,
            concurrency=8 if kind == "worker" else 0,
            running=running,
            started_at=now - timedelta(hours=7),
            last_seen_at=now - timedelta(seconds=silent),
        )
    Lease.objects.create(
        name=LEADERSHIP,
        owner="web-1:4250:aa10",
        acquired_at=now - timedelta(hours=7),
        expires_at=now + timedelta(seconds=20),
    )


def fill_counters(now: datetime) -> None:
    """Write an hour in which payments began to fail twenty minutes ago."""
    minute = now.replace(second=0, microsecond=0)
    Counter.objects.bulk_create(
        Counter(
            minute=minute - timedelta(minutes=n),
            queue=queue,
            completed=base + (n * 7) % 13,
            retried=(40 - n if n < 20 else n % 2) if queue == "payments" else 0,
            buried=(n % 3 if n < 20 else 0) if queue == "payments" else 0,
        )
        for queue, base in [("orders", 120), ("payments", 60), ("shipments", 35), ("carts", 4)]
        for n in range(60)
    )


TAME = """
UPDATE django_outbox_dead_letter SET
    queue = replace(queue, %(hostile)s, 'newsletter'),
    headers = '{"content-type": "application/json"}',
    last_exception = replace(last_exception, %(error)s, 'no such address'),
    payload = CASE WHEN queue = 'devices' THEN payload
        ELSE convert_to(replace(convert_from(payload, 'UTF8'), %(hostile)s, 'gift'), 'UTF8') END;
UPDATE django_outbox_message SET
    queue = replace(queue, %(hostile)s, 'newsletter'),
    leased_by = replace(leased_by, %(hostile)s, 'web-3');
UPDATE django_outbox_worker SET worker_id = replace(worker_id, %(hostile)s, 'web-3');
UPDATE django_outbox_schedule SET
    name = replace(name, %(hostile)s, 'newsletter'),
    queue = replace(queue, %(hostile)s, 'newsletter'),
    payload = convert_to('{"format": "pdf"}', 'UTF8'),
    last_error = replace(last_error, %(error)s, 'no such queue');
"""


def tame() -> None:
    """Give what is hostile a harmless name, for the pictures in the documentation."""
    with connection.cursor() as cursor:
        for statement in TAME.split(";\n"):
            if statement.strip():
                cursor.execute(statement, {"hostile": HOSTILE, "error": HOSTILE_ERROR})
