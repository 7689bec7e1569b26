"""The messages that wait to be delivered, or are being delivered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from ..conf import settings
from ..functions import ClockTimestamp
from ..models import OutboxMessage
from ..presence import LOST_AFTER
from ..publishing import default_alias
from ..store.messages import operating
from . import details, moments
from .base import Tool, defer_content
from .ids import as_id, as_uuid
from .message_columns import MessageColumns
from .message_list import (
    LOOK_AT_ENDS,
    MOMENTS,
    MessageList,
    QueueFilter,
    StateFilter,
    cursor,
)
from .message_operations import CANCEL, RELEASE, Operation, Question
from .states import state_of

MOST_AT_ONCE = 1_000


@admin.register(OutboxMessage)
class OutboxMessageAdmin(MessageColumns):
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
        """Return the rows without what Python may be unable to hold: `get_object` settles it."""
        rows = super().get_queryset(request).annotate(now=ClockTimestamp()).defer("headers")
        return moments.readable(rows, *MOMENTS)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the newest first; with a queue its claim order, since that has an index."""
        return ("next_attempt_at", "pk") if QueueFilter.parameter_name in request.GET else ("-pk",)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return MessageList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset, False  # `MessageList` searches

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        message: Any = super().get_object(request, object_id, from_field)
        headers = None if message is None else _headers_text(message)
        if headers is None:
            return None
        moments.settle([message], *MOMENTS)
        message.about = details.ref_link(message.ref, request, self.admin_site)
        message.headers_read = details.headers_of(headers)
        return message

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

    def is_useful(self, tool: Tool, obj: Any) -> bool:
        if tool.name == "release":
            return obj.lease_token is not None
        if obj.lease_token is not None:
            return False
        return tool.name != "run_now" or state_of(obj) in ("scheduled", "retrying")

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
        tokens = {id_: as_uuid(request.POST.get(_token_name(id_), "")) for id_ in ids}
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
        asked = self.get_queryset(request).filter(pk__in=ids)
        rows = list(defer_content(asked).defer("last_error"))
        moments.settle(rows, *MOMENTS)
        held_by = self.lease if len(rows) == 1 else self.holder
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": question.title,
            "question": question,
            "messages_asked": [
                (row, self.state(row), self.next_attempt(row), held_by(row)) for row in rows
            ],
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


def _headers_text(message: Any) -> str | None:
    """Return headers as the database writes them, None if the message is gone by now."""
    rows = OutboxMessage.objects.using(default_alias()).filter(pk=message.pk)
    found: str | None = rows.values_list(Cast("headers", TextField()), flat=True).first()
    return found


def _selected(request: HttpRequest) -> list[int]:
    """Return the ids that were ticked; those that are no ids are nobody's."""
    given: Iterable[str] = request.POST.getlist(ACTION_CHECKBOX_NAME)
    ids = {id_ for text in given if (id_ := as_id(text)) is not None}
    return sorted(ids)[:MOST_AT_ONCE]


def _is_answer(request: HttpRequest) -> bool:
    return "answer" in request.POST


def _token_name(id_: int) -> str:
    return f"token-{id_}"
