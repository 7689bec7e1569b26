"""The workers and schedulers that run, one by one; the overview shows them together."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.safestring import SafeString

from ..functions import ClockTimestamp
from ..models import Worker
from ..presence import LOST_AFTER
from . import details, moments
from .base import ReadOnlyAdmin
from .json_columns import loaded_names
from .troubles import listed


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ("worker_id", "state", "seen", "kind", "place", "load", "up_since", "serves")
    list_filter = ("kind",)
    search_fields = ("worker_id", "host")
    ordering = ("kind", "worker_id", "id")
    fields = ("worker_id", "state", "kind", "place", "serves", "load", "up_since", "seen")
    readonly_fields = ("state", "place", "serves", "load", "up_since", "seen")
    actions = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows without what Python may be unable to hold; that comes beside it."""
        rows = super().get_queryset(request).defer("queues", "started_at", "last_seen_at")
        read: QuerySet[Any] = rows.annotate(
            now=ClockTimestamp(),
            queues_text=Cast("queues", TextField()),
            started=moments.Moment("started_at"),
            last_seen=moments.Moment("last_seen_at"),
        )
        return read

    @admin.display(description="state")
    def state(self, worker: Any) -> SafeString:
        silence = (worker.now - worker.last_seen).total_seconds()
        return (
            details.word("lost", "bad") if silence > LOST_AFTER else details.word("alive", "good")
        )

    @admin.display(description="host and process")
    def place(self, worker: Any) -> str:
        return f"{worker.host}:{worker.pid}"

    @admin.display(description="queues")
    def serves(self, worker: Any) -> str:
        return listed(loaded_names(worker.queues_text)) or details.NOTHING

    @admin.display(description="running")
    def load(self, worker: Any) -> str:
        return (
            f"{worker.running} of {worker.concurrency}" if worker.concurrency else details.NOTHING
        )

    @admin.display(description="up since", ordering="started_at")
    def up_since(self, worker: Any) -> SafeString | str:
        return details.when(worker.started, worker.now)

    @admin.display(description="last seen", ordering="last_seen_at")
    def seen(self, worker: Any) -> SafeString | str:
        return details.when(worker.last_seen, worker.now)
