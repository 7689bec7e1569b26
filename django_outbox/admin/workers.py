"""The workers and schedulers that run, one by one; the overview shows them together."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from ..functions import ClockTimestamp
from ..models import Worker
from ..presence import LOST_AFTER
from . import details
from .base import ReadOnlyAdmin
from .troubles import listed


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ("worker_id", "state", "kind", "place", "serves", "load", "up_since", "seen")
    list_filter = ("kind",)
    search_fields = ("worker_id", "host")
    ordering = ("kind", "worker_id", "id")
    fields = ("worker_id", "state", "kind", "place", "serves", "load", "up_since", "seen")
    readonly_fields = ("state", "place", "serves", "load", "up_since", "seen")
    actions = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(now=ClockTimestamp())
        return rows

    @admin.display(description="state")
    def state(self, worker: Any) -> SafeString:
        silence = (worker.now - worker.last_seen_at).total_seconds()
        return (
            details.word("lost", "bad") if silence > LOST_AFTER else details.word("alive", "good")
        )

    @admin.display(description="host and process")
    def place(self, worker: Any) -> str:
        return f"{worker.host}:{worker.pid}"

    @admin.display(description="queues")
    def serves(self, worker: Any) -> str:
        queues = worker.queues if isinstance(worker.queues, list) else []
        return listed(queues) or details.NOTHING

    @admin.display(description="running")
    def load(self, worker: Any) -> str:
        return (
            f"{worker.running} of {worker.concurrency}" if worker.concurrency else details.NOTHING
        )

    @admin.display(description="up since", ordering="started_at")
    def up_since(self, worker: Any) -> SafeString | str:
        return details.when(worker.started_at, worker.now)

    @admin.display(description="last seen", ordering="last_seen_at")
    def seen(self, worker: Any) -> SafeString | str:
        return details.when(worker.last_seen_at, worker.now)
