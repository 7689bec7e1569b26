"""What operators did, as the admin's log has it: a part of the history of what they did it to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model, Q

LOOK_AT = 10_000
"""The newest entries of the log, which are looked at: it has no index for this, and no end."""

MOST_ENTRIES = 50


def acts(which: Q) -> Iterator[tuple[datetime, str]]:
    """Yield who did what and when, of the newest entries those that are asked for."""
    newest = LogEntry.objects.order_by("-pk").values_list("pk", flat=True).first()
    if newest is None:
        return
    entries = LogEntry.objects.filter(which, pk__gt=newest - LOOK_AT)
    for entry in entries.select_related("user").order_by("-pk")[:MOST_ENTRIES]:
        who: Any = entry.user
        yield entry.action_time, f"{who.get_username()}: {entry.get_change_message()}"


def about(model: type[Model], which: Q) -> Q:
    """Narrow a question to the log to entries about a model."""
    return Q(content_type=ContentType.objects.get_for_model(model)) & which
