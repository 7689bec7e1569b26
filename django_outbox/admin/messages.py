"""The messages that wait to be delivered, or are being delivered.

The table is made for workers: its indexes are the primary key, the claim index and two partial
ones, and no page may cost them another. So whatever this page searches or filters by goes along
one of these, ends after so many rows, and the page says where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, cast
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString

from .. import names
from ..conf import settings
from ..functions import ClockTimestamp
from ..models import OutboxMessage, Worker
from ..presence import LOST_AFTER
from ..publishing import default_alias
from ..store import Cursor
from ..store.messages import operating
from . import details
from .base import ReadOnlyAdmin, Tool, defer_content
from .states import COLOURS, State, state_word

MOST_QUEUES = 500
"""Queues that are offered to filter by, and whose timers are searched."""

LOOK_AT = 10_000
"""Rows in which a state is looked for: in claim order, so each may be on a page of its own."""

LOOK_AT_ENDS = 100_000
"""Rows at each end of the table in which a message id is looked for: they lie side by side."""

MOST_FOUND = 1_000
MOST_AT_ONCE = 1_000
MOST_NAMED = 100
"""Messages that the log names by their ids."""

_BIGGEST_ID = 2**63 - 1

_SKIPPED: dict[operating.Outcome, str] = {
    "gone": "no longer there",
    "leased": "leased by a worker",
    "due": "due already",
    "busy": "being changed by somebody else",
    "unleased": "without a lease",
    "changed": "leased anew since",
    "held": "held by a worker that lives",
}


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
        if (state := by_state.value()) is not None:
            rows = self._in_state(rows, cast("State", state))
        rows = self._searched(rows, self.query.strip())
        if chosen is None and len(self._queues) >= MOST_QUEUES:
            self.notes.append(f"There may be more than these {MOST_QUEUES:,} queues.")
        return rows

    def _in_state(self, rows: QuerySet[Any], state: State) -> QuerySet[Any]:
        if state not in COLOURS:
            raise IncorrectLookupParameters
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

    def _searched(self, rows: QuerySet[Any], text: str) -> QuerySet[Any]:
        """Return the rows that have this id, timer, ref or queue; or message or correlation id."""
        if not text:
            return rows
        with cursor() as open_cursor:
            ids = operating.find(
                open_cursor, text, id_=_as_id(text), queues=self._queues, most=MOST_FOUND
            )
            if ids:
                return rows.filter(pk__in=ids)
            if OutboxMessage.objects.using(default_alias()).filter(queue=text).exists():
                return rows.filter(queue=text).order_by("next_attempt_at", "pk")
            ids = operating.find_near_the_ends(
                open_cursor, text, message_id=_as_uuid(text), look_at=LOOK_AT_ENDS, most=MOST_FOUND
            )
        self.notes.append(
            "No id, timer id, ref or queue is this. As a message id or correlation id, which have "
            f"no index here, it was looked for among the newest and the oldest {LOOK_AT_ENDS:,} "
            "messages only."
        )
        return rows.filter(pk__in=ids)


@dataclass(frozen=True, slots=True)
class Question:
    """What a page asks before something is done."""

    title: str
    text: str
    answer: str
    is_destructive: bool = False


CANCEL = Question(
    "Cancel messages",
    "A cancelled message is deleted and never delivered. One that a worker has leased by then is "
    "left alone.",
    "Yes, cancel",
    is_destructive=True,
)

RELEASE = Question(
    "Release messages from their leases",
    "A message is released if its lease has run out, or if its worker has not been seen for "
    f"{LOST_AFTER:g} s, and only from the lease that is shown here. Another worker may then take "
    "it at once; what the lost one has done of it is done again.",
    "Yes, release",
)


@admin.register(OutboxMessage)
class OutboxMessageAdmin(ReadOnlyAdmin):
    tools = (
        Tool("run_now", "Run now", "run_outboxmessage"),
        Tool("release", "Release", "release_outboxmessage", asks=True),
        Tool("cancel", "Cancel", "cancel_outboxmessage", asks=True, is_destructive=True),
    )
    actions = ("run_selected", "release_selected", "cancel_selected")
    change_list_template = "admin/django_outbox/message_list.html"
    list_display = (
        "number",
        "state",
        "queue_name",
        "next_attempt",
        "holder",
        "tries",
        "timer",
        "created",
    )
    list_display_links = ("number",)
    list_filter = (QueueFilter, StateFilter)
    search_fields = ("id",)
    search_help_text = (
        "An id, a timer id, a queue, or a ref such as shop.order:42; and among the newest and the "
        f"oldest {LOOK_AT_ENDS:,} messages a message id or a correlation id."
    )
    readonly_fields = (
        "state",
        "timer",
        "about",
        "next_attempt",
        "expiry",
        "tries_allowed",
        "lease",
        "error",
        "payload_text",
        "headers_table",
        "history",
    )
    fieldsets = (
        (None, {"fields": ("state", "queue", "message_id", "correlation_id", "timer", "about")}),
        (
            "Delivery",
            {"fields": ("next_attempt", "expiry", "tries_allowed", "lease", "error", "history")},
        ),
        ("Content", {"fields": ("payload_text", "headers_table")}),
    )

    class Media:
        css: ClassVar = {"all": ["django_outbox/messages.css"]}

    # What is shown

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(now=ClockTimestamp())
        return rows

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the newest first; with a queue its claim order, since that has an index."""
        return ("next_attempt_at", "pk") if QueueFilter.parameter_name in request.GET else ("-pk",)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return MessageList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset, False  # `MessageList` searches

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Allow no other lookups than the filters': `?payload__contains=` would read the table."""
        return lookup in {QueueFilter.parameter_name, StateFilter.parameter_name}

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        message = super().get_object(request, object_id, from_field)
        if message is not None:
            message.about = details.ref_link(message.ref, request, self.admin_site)
        return message

    @admin.display(description="id")
    def number(self, message: Any) -> str:
        return str(message.pk)

    @admin.display(description="queue")
    def queue_name(self, message: Any) -> str:
        return str(message.queue)

    @admin.display(description="state")
    def state(self, message: Any) -> SafeString:
        return state_word(message)

    @admin.display(description="timer id")
    def timer(self, message: Any) -> str:
        return str(message.timer_id or details.NOTHING)

    @admin.display(description="held by")
    def holder(self, message: Any) -> SafeString | str:
        return details.NOTHING if message.lease_expires_at is None else _lease(message)

    @admin.display(description="attempts / deliveries")
    def tries(self, message: Any) -> str:
        return f"{message.attempts_count:,} / {message.deliveries_count:,}"

    @admin.display(description="attempts / deliveries")
    def tries_allowed(self, message: Any) -> str:
        limit = message.max_attempts
        return self.tries(message) + ("" if limit is None else f", {limit:,} attempts at most")

    @admin.display(description="next attempt")
    def next_attempt(self, message: Any) -> SafeString | str:
        return details.when(message.next_attempt_at, message.now)

    @admin.display(description="created")
    def created(self, message: Any) -> SafeString | str:
        return details.when(message.created_at, message.now)

    @admin.display(description="expires")
    def expiry(self, message: Any) -> SafeString | str:
        return details.when(message.expires_at, message.now)

    @admin.display(description="lease")
    def lease(self, message: Any) -> SafeString | str:
        if message.lease_expires_at is None:
            return details.NOTHING
        return format_html("{} {}", _lease(message), _life_of(message.leased_by, message.now))

    @admin.display(description="about")
    def about(self, message: Any) -> SafeString | str:
        return cast("SafeString | str", message.about)

    @admin.display(description="last error")
    def error(self, message: Any) -> SafeString | str:
        return details.pre(message.last_error)

    @admin.display(description="payload")
    def payload_text(self, message: Any) -> SafeString:
        url = self.url_of("payload", message.pk)
        return details.payload_block(message.payload, message.headers, download_url=url)

    @admin.display(description="headers")
    def headers_table(self, message: Any) -> SafeString | str:
        return details.headers_table(message.headers)

    @admin.display(description="history")
    def history(self, message: Any) -> SafeString | str:
        events = [
            (message.created_at, "published"),
            (message.first_attempt_at, "the first attempt failed"),
            (message.next_attempt_at, "next attempt"),
            (message.expires_at, "expires"),
        ]
        if message.attempts_count > 1:
            events.insert(2, (message.last_attempt_at, "the last attempt failed"))
        return details.history(events, message.now)

    # The payload as a file

    def get_urls(self) -> list[URLPattern]:
        download = path(
            "<path:object_id>/payload/",
            self.admin_site.admin_view(self.download),
            name=self.url_name("payload"),
        )
        return [download, *super().get_urls()]

    def download(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send the payload as a file."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        message = self.get_object(request, unquote(object_id))
        if message is None:
            raise Http404(f"There is no message {object_id} any more.")
        return details.download(message.payload, name=f"message-{message.pk}.bin")

    # What can be done

    def has_run_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "run_outboxmessage")

    def has_release_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "release_outboxmessage")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "cancel_outboxmessage")

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Say that there is no such message; one that was run now is soon gone."""
        self.tell(request, f"There is no message {object_id} any more.", level=messages.WARNING)
        return redirect(self.url_of("changelist"))

    def run_now(self, request: HttpRequest, message: Any) -> None:
        self._run(request, [message.pk], message)

    @admin.action(description="Run now", permissions=["run"])
    def run_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._run(request, _selected(request))

    def _run(self, request: HttpRequest, ids: list[int], message: Any = None) -> None:
        with self._operation(request, "made due now", message) as operation:
            operation.outcomes = operating.run_now(operation.cursor, ids, notify=settings.notify)

    def cancel(self, request: HttpRequest, message: Any) -> HttpResponse | None:
        if request.method != "POST":
            return self._ask(request, CANCEL, [message.pk], url=self.url_of("change", message.pk))
        self._cancel(request, [message.pk], message)
        return None

    @admin.action(description="Cancel", permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        ids = _selected(request)
        if not _is_answer(request):
            return self._ask(request, CANCEL, ids)
        self._cancel(request, ids)
        return None

    def _cancel(self, request: HttpRequest, ids: list[int], message: Any = None) -> None:
        with self._operation(request, "cancelled", message) as operation:
            operation.outcomes = operating.cancel(operation.cursor, ids)

    def release(self, request: HttpRequest, message: Any) -> HttpResponse | None:
        if request.method != "POST":
            return self._ask(request, RELEASE, [message.pk], url=self.url_of("change", message.pk))
        self._release(request, [message.pk], message)
        return None

    @admin.action(description="Release", permissions=["release"])
    def release_selected(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse | None:
        ids = _selected(request)
        if not _is_answer(request):
            return self._ask(request, RELEASE, ids)
        self._release(request, ids)
        return None

    def _release(self, request: HttpRequest, ids: list[int], message: Any = None) -> None:
        tokens = {id_: _as_uuid(request.POST.get(_token_name(id_), "")) for id_ in ids}
        with self._operation(request, "released", message) as operation:
            operation.outcomes = operating.release_abandoned(
                operation.cursor, tokens, lost_after=LOST_AFTER, notify=settings.notify
            )

    def _ask(
        self,
        request: HttpRequest,
        question: Question,
        ids: list[int],
        *,
        url: str | None = None,
    ) -> HttpResponse:
        """Show the messages once more, with the leases that the answer is about.

        `url` is where an operator goes who thinks better of it.
        """
        rows = list(defer_content(self.get_queryset(request)).filter(pk__in=ids))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": question.title,
            "question": question,
            "messages_asked": [(row, self.state(row), self.holder(row)) for row in rows],
            "tokens": [(_token_name(row.pk), row.lease_token) for row in rows if row.lease_token],
            "selection": ACTION_CHECKBOX_NAME,
            "action": None if url else request.POST.get("action"),
            "back": url or request.get_full_path(),
        }
        return TemplateResponse(request, "admin/django_outbox/message_question.html", context)

    @contextmanager
    def _operation(self, request: HttpRequest, done: str, message: Any) -> Iterator[Operation]:
        """Do, log and report something; without its line in the log it is not done."""
        with transaction.atomic(using=default_alias()):
            with cursor() as open_cursor:
                operation = Operation(open_cursor)
                yield operation
            self.log(request, operation.logged(done), obj=message)
        level = messages.SUCCESS if operation.ids("done") else messages.WARNING
        self.tell(request, operation.told(done), level=level)


class Operation:
    """Something done to messages by hand, and how it went with each."""

    def __init__(self, open_cursor: Cursor) -> None:
        self.cursor = open_cursor
        self.outcomes: Mapping[int, operating.Outcome] = {}

    def ids(self, outcome: operating.Outcome) -> list[int]:
        """Return the messages with which it went so."""
        return sorted(id_ for id_, how in self.outcomes.items() if how == outcome)

    def told(self, done: str) -> str:
        """Return how many were done, and how many skipped and why."""
        return self._sentence(done, lambda ids: "")

    def logged(self, done: str) -> str:
        """Return the same with the ids."""
        return self._sentence(done, _listed)

    def _sentence(self, done: str, listed: Callable[[list[int]], str]) -> str:
        ids = self.ids("done")
        noun = "message" if len(ids) == 1 else "messages"
        skipped = [
            f"{len(left):,} {why}{listed(left)}"
            for outcome, why in _SKIPPED.items()
            if (left := self.ids(outcome))
        ]
        sentence = f"{len(ids):,} {noun} {done}{listed(ids)}."
        return f"{sentence} Skipped: {', '.join(skipped)}." if skipped else sentence


@contextmanager
def cursor() -> Iterator[Cursor]:
    """Open a cursor on the database that messages are written to."""
    with connections[default_alias()].cursor() as open_cursor:
        yield open_cursor


def _listed(ids: list[int]) -> str:
    shown = ", ".join(f"#{id_}" for id_ in ids[:MOST_NAMED])
    more = f" and {len(ids) - MOST_NAMED:,} more" if len(ids) > MOST_NAMED else ""
    return f" ({shown}{more})" if ids else ""


def _lease(message: Any) -> SafeString:
    """Return who holds a message and until when, or who held it."""
    has_run_out = message.lease_expires_at < message.now
    return format_html(
        "{}, {} {}",
        message.leased_by or "an unnamed worker",
        "has run out" if has_run_out else "until",
        details.when(message.lease_expires_at, message.now),
    )


def _life_of(worker_id: str | None, now: Any) -> SafeString:
    """Return whether a worker lives, by when it was last seen."""
    seen = (
        Worker.objects.using(default_alias())
        .filter(worker_id=worker_id)
        .order_by("-last_seen_at")
        .values_list("last_seen_at", flat=True)
        .first()
    )
    if seen is None:
        return details.word("unknown worker", "warn")
    lives = now - seen <= timedelta(seconds=LOST_AFTER)
    return format_html(
        "{} seen {}",
        details.word("alive", "good") if lives else details.word("lost", "bad"),
        details.relative(seen, now),
    )


def _selected(request: HttpRequest) -> list[int]:
    """Return the ids that were ticked; those that are no ids are nobody's."""
    given: Iterable[str] = request.POST.getlist(ACTION_CHECKBOX_NAME)
    ids = {id_ for text in given if (id_ := _as_id(text)) is not None}
    return sorted(ids)[:MOST_AT_ONCE]


def _is_answer(request: HttpRequest) -> bool:
    return "answer" in request.POST


def _token_name(id_: int) -> str:
    return f"token-{id_}"


def _as_id(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_BIGGEST_ID))
    return id_ if is_number and (id_ := int(text)) <= _BIGGEST_ID else None


def _as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
