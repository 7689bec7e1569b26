"""How fast it goes, measured on the worker that runs.

Moments are read from this machine's clock by the publisher and by the handler. So they compare
without a question to the database, which would be a part of what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from statistics import quantiles
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from example_project.shop.models import WebhookEvent

PING = {"zen": "Keep it logically awesome.", "hook_id": 1}
HEADERS = {"X-GitHub-Event": "ping"}
BETWEEN_PINGS = 0.025
"""Seconds; the worker is idle again long before."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds from sending COMMIT to the handler's first line."""

    p50: float
    p99: float
    count: int


def throughput(count: int, wait: Callable[[], None]) -> float:
    """Publish so many at once and return how many were handled a second; `wait` sees to the end."""
    with transaction.atomic():
        outbox.publish_many([PING] * count, queue="github", headers=HEADERS)
    began = time.perf_counter()
    wait()
    return count / (time.perf_counter() - began)


def latency(pings: Iterator[int], wait: Callable[[], None]) -> Latency:
    """Publish messages one at a time to an idle worker, and return how soon they were taken up."""
    committed_at: dict[UUID, datetime] = {}
    for _ in pings:
        with transaction.atomic():
            [ping] = outbox.publish_many([PING], queue="github", headers=HEADERS)
            message_id = OutboxMessage.objects.values_list("message_id", flat=True).get(pk=ping)
            committed_at[message_id] = timezone.now()
        time.sleep(BETWEEN_PINGS)
    wait()
    delays = [
        (event.received_at - committed_at[event.message_id]).total_seconds() * 1000
        for event in WebhookEvent.objects.filter(message_id__in=committed_at)
    ]
    percentiles = quantiles(delays, n=100, method="inclusive")
    return Latency(p50=percentiles[49], p99=percentiles[98], count=len(delays))
