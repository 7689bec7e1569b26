"""What the list of schedules can be filtered by, beside its own columns."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from .. import names
from ..models import Schedule
from ..publishing import default_alias

MOST_QUEUES = 200
"""Queues that are offered."""


class QueueFilter(admin.SimpleListFilter):
    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = Schedule.objects.using(default_alias()).order_by("queue")
        queues = rows.values_list("queue", flat=True).distinct()[:MOST_QUEUES]
        return [(queue, queue) for queue in queues]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        queue = self.value()
        if queue is None:
            return queryset
        return queryset.none() if names.flaw_in_text(queue) else queryset.filter(queue=queue)


class ErrorFilter(admin.SimpleListFilter):
    title = "last error"
    parameter_name = "error"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Has an error"), ("no", "Has none")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in ("yes", "no"):
            return queryset
        return queryset.filter(last_error__isnull=self.value() == "no")
