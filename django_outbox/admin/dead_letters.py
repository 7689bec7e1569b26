"""Dead letters: what is failing, and one letter with its history.

What can be done about them is in `letter_actions`.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import OperationalError, connections, transaction
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Left, Now
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.html import format_html

from ..models import DeadLetter
from ..publishing import default_alias
from ..store import dead_letters as store
from . import details, letter_history
from .base import defer_content
from .dead_letter_filters import FILTERS, searched
from .failing import HEAD, groups
from .ids import as_id
from .letter_actions import LetterActions
from .moments import readable, settle

MOST_SECONDS = 1
"""For each of counting and finding the letters of a page; some filters share no index."""

_MOMENTS = ("created_at", "first_attempt_at", "last_attempt_at", "failed_at")
_QUERY_CANCELED = "57014"


class LetterList(ChangeList):
    """The list, without what is large: of an error its head is read, of a payload nothing."""

    is_too_slow = False

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        if request.GET.get(SEARCH_VAR) and not self.query:
            # Django would leave out a search that it has refused, and show every letter.
            raise IncorrectLookupParameters
        letters: QuerySet[Any] = defer_content(super().get_queryset(request, *args, **kwargs))
        return readable(
            letters.defer("last_exception").annotate(head=Left("last_exception", HEAD), now=Now()),
            *_MOMENTS,
        )

    def get_results(self, request: HttpRequest) -> None:
        """Read a page of letters; none, if that takes too long."""
        alias = default_alias()
        try:
            with transaction.atomic(using=alias):
                with connections[alias].cursor() as cursor:
                    store.read_by_index(cursor, seconds=MOST_SECONDS)
                super().get_results(request)
                self.result_list = list(self.result_list)
                transaction.set_rollback(True, using=alias)  # and the settings with it
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != _QUERY_CANCELED:
                raise
            self.is_too_slow = True
            self.queryset = self.queryset.none()
            super().get_results(request)
        settle(self.result_list, *_MOMENTS)


@admin.register(DeadLetter)
class DeadLetterAdmin(LetterActions):
    change_list_template = "admin/django_outbox/dead_letters.html"
    change_form_template = "admin/django_outbox/dead_letter.html"
    # First what matters most: a phone shows the others when it is scrolled.
    list_display = ("number", "queue_name", "error", "failed", "reason", "attempts")
    list_filter = FILTERS
    sortable_by = ("failed",)
    ordering = ("-failed_at", "-id")
    search_fields = ("message_id", "correlation_id", "timer_id", "queue", "id")
    search_help_text = "An exact message id, correlation id, timer id, queue, or id of a letter."
    fields = (
        "number",
        "queue",
        "reason",
        "exception_class",
        "attempts_count",
        "deliveries_count",
        "failed",
        "created",
        "message_id",
        "correlation_id",
        "timer_id",
        "original_id",
    )
    readonly_fields = ("number", "reason", "failed", "created")

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LetterList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return (queryset.filter(searched(term)) if term else queryset), False

    @admin.display(description="id")
    def number(self, letter: DeadLetter) -> str:
        return str(letter.pk)

    @admin.display(description="queue")
    def queue_name(self, letter: DeadLetter) -> str:
        return letter.queue

    @admin.display(description="reason")
    def reason(self, letter: DeadLetter) -> str:
        return details.word(letter.get_failure_reason_display(), "bad")

    @admin.display(description="error", empty_value=details.NOTHING)
    def error(self, letter: Any) -> str | None:
        return details.first_line(letter.head) or letter.exception_class

    @admin.display(description="attempts")
    def attempts(self, letter: DeadLetter) -> int:
        return letter.attempts_count

    @admin.display(description="failed", ordering="failed_at")
    def failed(self, letter: Any) -> str:
        return details.when(letter.failed_at, letter.now)

    @admin.display(description="created")
    def created(self, letter: Any) -> str:
        return details.when(letter.created_at, letter.now)

    # Pages

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path("failing/", view(self.failing), name=self.url_name("failing")),
            path(
                "<path:object_id>/payload/", view(self.payload_view), name=self.url_name("payload")
            ),
        ]
        inherited = super().get_urls()
        for pattern in inherited:
            if pattern.name == self.url_name("changelist"):
                _commit_by_itself(pattern)
        return [*own, *inherited]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method == "POST":
            self._check_action(request)
        links = {"failing_url": self.url_of("failing")}
        return super().changelist_view(request, {**links, **(extra_context or {})})

    def _check_action(self, request: HttpRequest) -> None:
        """Refuse, where Django would only say that nothing was chosen."""
        chosen = {name for name in request.POST.getlist("action") if name in self.actions}
        if chosen - set(self.get_actions(request)):
            raise PermissionDenied
        if None in map(as_id, request.POST.getlist(ACTION_CHECKBOX_NAME)):
            raise BadRequest("A selected letter has no such id.")

    def failing(self, request: HttpRequest) -> HttpResponse:
        """Show one row per queue, reason and fingerprint."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            found = groups(request)
        except IncorrectLookupParameters:
            return redirect(self.url_of("failing"))
        return self.page(request, "failing", "What is failing", {"groups": found})

    def payload_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send the whole payload as a file."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        letter = self.get_object(request, unquote(object_id))
        if letter is None:
            raise Http404(f"There is no dead letter {object_id} any more.")
        return details.download(letter.payload, name=f"dead-letter-{letter.pk}.bin")

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> DeadLetter | None:
        if (id_ := as_id(object_id)) is None:
            return None
        letter: Any = (
            readable(self.one_letter(id_), *_MOMENTS)
            .defer("headers")
            .annotate(headers_text=Cast("headers", TextField()), now=Now())
            .first()
        )
        if letter is not None:
            settle([letter], *_MOMENTS)
            letter.headers = details.headers_of(letter.headers_text)
        found: DeadLetter | None = letter
        return found

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        letter = kwargs["obj"]
        context |= {
            "live_timer": letter_history.live_timer(letter, request, self.admin_site),
            "sections": self._sections(request, letter),
        }
        return super().render_change_form(request, context, *args, **kwargs)

    def _sections(self, request: HttpRequest, letter: Any) -> list[tuple[str, str]]:
        """Return what the page shows below the columns: headings and their content."""
        payload = details.payload_block(
            letter.payload, letter.headers, download_url=self.url_of("payload", letter.pk)
        )
        happened = letter_history.events(letter, self.admin_site)
        sections = [
            ("Error", details.pre(letter.last_exception)),
            ("Payload", payload),
            ("Headers", details.headers_table(letter.headers)),
            ("History", details.history(happened, letter.now)),
        ]
        if letter.ref:
            ref = details.ref_link(letter.ref, request, self.admin_site)
            sections.append(("Object", format_html("<p>{}</p>", ref)))
        return sections


def _commit_by_itself(pattern: URLPattern) -> None:
    """Keep a view out of ATOMIC_REQUESTS, on each database: its batches are to commit."""
    for alias in connections:
        transaction.non_atomic_requests(alias)(pattern.callback)
