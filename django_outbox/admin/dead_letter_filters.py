"""How the list of dead letters is narrowed.

Each filter is an equality or a range that an index answers. The choices come from the ends of
indexes, never from reading the table. A value that cannot be is refused: to ignore it would show
every letter, and a bulk action would then take them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import BadRequest
from django.db import connections
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from .. import names
from ..models import DeadLetter
from ..publishing import default_alias
from ..store import dead_letters as store
from .ids import as_id, as_uuid

MOST_CHOICES = 50
"""Of queues and exception classes; what is beyond is found by search, or by the groups."""

AS_OF = "as_of"
"""The field of an answer: when the question was asked."""

_PERIODS = {
    "hour": ("in the last hour", timedelta(hours=1)),
    "day": ("in the last day", timedelta(days=1)),
    "week": ("in the last week", timedelta(days=7)),
}
_OLDER = "older"


class _Filter(SimpleListFilter):
    """A filter whose value is text that PostgreSQL can hold."""

    def value(self) -> str | None:
        value = super().value()
        if value is not None and names.flaw_in_text(value):
            raise IncorrectLookupParameters
        return value

    def with_given(self, known: Iterable[str]) -> list[tuple[str, str]]:
        """Return choices, among them the one in use though no letter may have it by now.

        Django drops a filter that has no choices.
        """
        choices = {value: value for value in known}
        given = self.value()
        if given is not None:
            choices.setdefault(given, given)
        return [(value, label or "(none)") for value, label in choices.items()]


class QueueFilter(_Filter):
    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        with connections[default_alias()].cursor() as cursor:
            return self.with_given(store.queues(cursor, most=MOST_CHOICES))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        queue = self.value()
        return queryset if queue is None else queryset.filter(queue=queue)


class ReasonFilter(_Filter):
    title = "reason"
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(value, str(label)) for value, label in DeadLetter.Reason.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        reason = self.value()
        if reason is None:
            return queryset
        if reason not in DeadLetter.Reason.values:
            raise IncorrectLookupParameters
        return queryset.filter(failure_reason=reason)


class ExceptionFilter(_Filter):
    title = "exception"
    parameter_name = "exception"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        with connections[default_alias()].cursor() as cursor:
            found = store.exception_classes(cursor, most=MOST_CHOICES)
        return self.with_given([*found, ""])

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = self.value()
        if name is None:
            return queryset
        if not name:
            return queryset.filter(exception_class=None)
        return queryset.filter(exception_class=name)


class FailedFilter(_Filter):
    title = "time of failure"
    parameter_name = "failed"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [*((key, label) for key, (label, _) in _PERIODS.items()), (_OLDER, "before that")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        period = self.value()
        if period is None:
            return queryset
        if period == _OLDER:
            return queryset.filter(failed_at__lt=_before(_PERIODS["week"][1], request))
        if period not in _PERIODS:
            raise IncorrectLookupParameters
        return queryset.filter(failed_at__gte=_before(_PERIODS[period][1]))


def _before(age: timedelta, request: HttpRequest | None = None) -> datetime:
    """Return the moment so long before now on the database's clock, or before a question.

    It is a fixed moment: `now()` would move on between the batches of an action. Letters that have
    become old since a question was asked are not in what it was about.
    """
    with connections[default_alias()].cursor() as cursor:
        moment = store.moment_before(cursor, age)
    given = None if request is None else request.POST.get(AS_OF)
    if given is None:
        return moment
    try:
        return min(moment, datetime.fromisoformat(given) - age)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest("The question was asked at no such time.") from error


class FingerprintFilter(_Filter):
    """Where the groups lead to; shown only when it is in use."""

    title = "fingerprint"
    parameter_name = "fingerprint"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        return self.with_given([])

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        fingerprint = self.value()
        return queryset if fingerprint is None else queryset.filter(fingerprint=fingerprint)


FILTERS = (QueueFilter, ReasonFilter, ExceptionFilter, FailedFilter, FingerprintFilter)


def searched(term: str) -> Q:
    """Return what a search looks for: one exact id, or the name of a queue."""
    found = Q(queue=term) | Q(correlation_id=term) | Q(timer_id=term)
    if (id_ := as_id(term)) is not None:
        found |= Q(pk=id_)
    if (message_id := as_uuid(term)) is not None:
        found |= Q(message_id=message_id)
    return found


def in_words(params: Mapping[str, str]) -> str:
    """Return which letters a list shows, for the log and for questions."""
    given = [
        f"{list_filter.title} “{params[name] or '(none)'}”"
        for list_filter in FILTERS
        if (name := list_filter.parameter_name) in params
    ]
    if term := params.get(SEARCH_VAR, "").strip():
        given.append(f"search “{term}”")
    return f"all with {', '.join(given)}" if given else "all there are"
