"""The list of messages: its filters and its search, each along an index and to an end.

The table is made for workers: its indexes are the primary key, the claim index and two partial
ones, and no page may cost them another. Where looking had to end, the page says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest

from .. import names
from ..models import OutboxMessage
from ..publishing import default_alias
from ..store import Cursor
from ..store.messages import operating
from . import moments
from .base import defer_content
from .ids import as_id, as_uuid
from .states import COLOURS, State, is_in

MOST_QUEUES = 500
"""Queues that are offered to filter by, and whose timers are searched."""

LOOK_AT = 5_000
"""Rows in which a state is looked for: in claim order, so each may be on a page of its own."""

LOOK_AT_ENDS = 50_000
"""Rows at each end of the table in which a message id is looked for: they lie side by side."""

MOST_FOUND = 1_000

MOMENTS = (
    "created_at",
    "next_attempt_at",
    "expires_at",
    "first_attempt_at",
    "last_attempt_at",
    "lease_expires_at",
)
"""Columns that may hold what Python cannot."""


class QueueFilter(admin.SimpleListFilter):
    """The queues that have messages."""

    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        with cursor() as open_cursor:
            self.queues = operating.queues(open_cursor, most=MOST_QUEUES)
        chosen = self.value()
        absent = [chosen] if chosen is not None and chosen not in self.queues else []
        return [(queue, queue) for queue in [*absent, *self.queues]]

    def has_output(self) -> bool:
        return True  # a queue that is empty by now is still what was asked for

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        if (queue := self.value()) is None:
            return None
        if names.flaw_in_text(queue):
            raise IncorrectLookupParameters
        return queryset.filter(queue=queue)


class StateFilter(admin.SimpleListFilter):
    """The states, each looked for along the claim index."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state) for state in COLOURS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        return None  # `MessageList` knows the queue as well


class MessageList(ChangeList):
    """A page of the list, and what is to be said of how it came about."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        self.notes: list[str] = []
        rows = defer_content(super().get_queryset(request, *args, **kwargs)).defer("last_error")
        by_queue, by_state = cast("tuple[QueueFilter, StateFilter]", self.filter_specs)
        chosen = by_queue.value()
        self._queues = by_queue.queues if chosen is None else [chosen]
        text, state = self.query.strip(), _state(by_state.value())
        ids = self._found(text) if text else None
        if ids is not None:
            rows = rows.filter(pk__in=ids)
        elif text:
            rows = rows.filter(queue=text).order_by("next_attempt_at", "pk")
        if state is not None:
            rows = self._in_state(rows, state) if ids is None else rows.filter(is_in(state))
        if chosen is None and len(self._queues) >= MOST_QUEUES:
            self.notes.append(f"There may be more than these {MOST_QUEUES:,} queues.")
        return rows

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        moments.settle(self.result_list, *MOMENTS)

    def _in_state(self, rows: QuerySet[Any], state: State) -> QuerySet[Any]:
        with cursor() as open_cursor:
            found = operating.in_state(
                open_cursor, state, self._queues, look_at=LOOK_AT, most=MOST_FOUND
            )
        if found.is_partial:
            share = max(LOOK_AT // max(len(self._queues), 1), 1)
            self.notes.append(
                f"There may be more that are {state}: this shows {MOST_FOUND:,} at most, of the "
                f"first {share:,} messages of each queue, in the order of their claims."
            )
        return rows.filter(pk__in=found.ids)

    def _found(self, text: str) -> list[int] | None:
        """Return the ids of what is searched for; None if it is a queue, to look into that one.

        It is an id, a timer, a ref or a queue, or else a message id or correlation id.
        """
        with cursor() as open_cursor:
            ids = operating.find(
                open_cursor, text, id_=as_id(text), queues=self._queues, most=MOST_FOUND
            )
            if ids:
                return ids
            if OutboxMessage.objects.using(default_alias()).filter(queue=text).exists():
                self._queues = [text]
                return None
            ids = operating.find_near_the_ends(
                open_cursor, text, message_id=as_uuid(text), look_at=LOOK_AT_ENDS, most=MOST_FOUND
            )
        self.notes.append(
            "No id, timer id, ref or queue is this. As a message id or correlation id, which have "
            f"no index here, it was looked for among the newest and the oldest {LOOK_AT_ENDS:,} "
            "messages only."
        )
        return ids


@contextmanager
def cursor() -> Iterator[Cursor]:
    """Open a cursor on the database that messages are written to."""
    with connections[default_alias()].cursor() as open_cursor:
        yield open_cursor


def _state(given: str | None) -> State | None:
    if given is not None and given not in COLOURS:
        raise IncorrectLookupParameters
    return given
