"""Rows of schedules as the admin reads them, whatever somebody has written into them by hand.

PostgreSQL holds moments, durations and numbers that Python cannot, such as `infinity`. So moments
and durations are read as seconds, and headers as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models import (
    BooleanField,
    ExpressionWrapper,
    F,
    FloatField,
    Func,
    Q,
    QuerySet,
    TextField,
)
from django.db.models.functions import Cast, Left
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe

from ..models import Schedule
from ..publishing import default_alias
from ..scheduling.declaring import declarations
from ..scheduling.registration import Declaration
from ..store import schedules as store
from . import fires
from .details import NOTHING

MOST_OF_AN_ERROR = 200
"""Characters of an error that a list reads, to show its first line."""


class Epoch(Func):
    """Seconds since 1970, or of an interval; they can be infinite, which a datetime cannot."""

    template = "extract(epoch FROM %(expressions)s)::float8"
    output_field = FloatField()


def light(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Leave out what is large, and what Python may be unable to hold."""
    read: QuerySet[Any] = rows.only(
        "name",
        "spec",
        "timezone",
        "queue",
        "max_attempts",
        "catch_up",
        "enabled",
        "source",
        "planned_for",
        "last_message_id",
        "skipped_count",
    ).annotate(
        next_run_epoch=Epoch("next_run_at"),
        plan_from_epoch=Epoch("plan_from"),
        last_run_epoch=Epoch("last_run_at"),
        error_head=Left("last_error", MOST_OF_AN_ERROR),
        is_withdrawn=_is_set("withdrawn_at"),
    )
    return read


def note_differences(rows: Iterable[Any]) -> None:
    """Give each row its `badge`, in which way the table and the code differ, and `is_declared`."""
    rows = list(rows)
    try:
        declared = declarations()
    except ImproperlyConfigured:
        declared = None
    of_code = [row.name for row in rows if row.source == Schedule.Source.CODE]
    with connections[default_alias()].cursor() as cursor:
        written = store.written(cursor, of_code) if of_code and declared is not None else {}
    for row in rows:
        row.badge = _badge(row, declared, written)
        row.is_declared = row.name in (declared or {})


def _badge(
    row: Any, declared: Mapping[str, Declaration] | None, written: Mapping[str, store.Written]
) -> str:
    if row.source != Schedule.Source.CODE:
        return "declared in code too, ignored there" if row.name in (declared or {}) else ""
    if declared is None:
        return "no longer declared" if row.is_withdrawn else ""
    if row.name not in declared:
        return "no longer declared"
    different = declared[row.name].differences(written[row.name]) if row.name in written else []
    return f"differs from code: {', '.join(different)}" if different else ""


def with_details(row: Any) -> Any:
    """Read what the page of one schedule shows besides what the list does; None if it is gone."""
    details = Schedule.objects.using(default_alias()).filter(pk=row.pk)
    found = details.values(
        "payload",
        last_boundary_epoch=Epoch("last_boundary_at"),
        retry_epoch=Epoch("retry_at"),
        lifetime=Epoch("expires_in"),
        headers_text=Cast("headers", TextField()),
        error_text=F("last_error"),
    ).first()
    if found is None:
        return None
    row.body = bytes(found["payload"])
    vars(row).update({name: value for name, value in found.items() if name != "payload"})
    note_differences([row])
    return row


def _is_set(column: str) -> Any:
    return ExpressionWrapper(Q(**{f"{column}__isnull": False}), output_field=BooleanField())


def shown_moment(epoch: float | None, zone_name: str) -> str:
    """Return a moment in the schedule's zone, and in UTC below it."""
    if epoch is None:
        return NOTHING
    instant = fires.moment(epoch)
    if instant is None:
        return "never" if epoch > 0 else "before all time"
    shown = [fires.written(instant, UTC)]
    if (zone := fires.zone_of(zone_name)) is not None and zone.key != "UTC":
        shown.insert(0, fires.written(instant, zone))
    return format_html_join(
        mark_safe("<br>"), '<span class="outbox-moment">{}</span>', ((text,) for text in shown)
    )
