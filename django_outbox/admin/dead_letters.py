"""Dead letters: what is failing, one letter with its history, and what can be done about them.

Actions run in batches that commit by themselves, each noted in the log as it is done, so what was
interrupted has told how far it came and can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import connections, transaction
from django.db.models import QuerySet
from django.db.models.functions import Left, Now
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html

from ..messages import ReplayResult
from ..models import DeadLetter
from ..publishing import default_alias
from ..querysets import DeadLetterQuerySet
from ..store import dead_letters as store
from . import details, letter_history
from .base import ReadOnlyAdmin, Tool, defer_content
from .counts import Capped, capped_count
from .dead_letter_filters import FILTERS, in_words, is_id, searched
from .failing import HEAD, groups
from .letter_forms import LetterActionForm, Pace, PayloadForm

UP_TO = "up_to"
"""The field of a confirmed discard: the highest id there was when the question was asked."""


class LetterList(ChangeList):
    """The list, without what is large: of an error its head is read, of a payload nothing."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        if request.GET.get(SEARCH_VAR) and not self.query:
            # Django would leave out a search that it has refused, and show every letter.
            raise IncorrectLookupParameters
        letters: QuerySet[Any] = defer_content(super().get_queryset(request, *args, **kwargs))
        listed: QuerySet[Any] = letters.defer("last_exception").annotate(
            head=Left("last_exception", HEAD), now=Now()
        )
        return listed


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    change_list_template = "admin/django_outbox/dead_letters.html"
    change_form_template = "admin/django_outbox/dead_letter.html"
    # First what matters most: a phone shows the others when it is scrolled.
    list_display = ("queue_name", "error", "failed", "reason", "attempts")
    list_filter = FILTERS
    sortable_by = ("failed",)
    ordering = ("-failed_at", "-id")
    search_fields = ("message_id", "correlation_id", "timer_id", "queue", "id")
    search_help_text = "An exact message id, correlation id, timer id, queue, or id of a letter."
    action_form = LetterActionForm
    actions = ("replay_chosen", "replay_chosen_slowly", "discard_chosen")
    tools: ClassVar[Sequence[Tool]] = (
        Tool("replay", "Replay", "replay_deadletter"),
        Tool("edit", "Edit and replay", "edit_deadletter", asks=True),
        Tool("discard", "Discard", "discard_deadletter", asks=True, is_destructive=True),
    )
    fields = (
        "queue",
        "reason",
        "exception_class",
        "attempts_count",
        "deliveries_count",
        "failed_at",
        "created_at",
        "message_id",
        "correlation_id",
        "timer_id",
        "original_id",
    )
    readonly_fields = ("reason",)

    # Who may what

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "replay_deadletter")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "discard_deadletter")

    def may_use(self, request: HttpRequest, tool: Tool) -> bool:
        if tool.name == "edit" and not self.has_replay_permission(request):
            return False
        return super().may_use(request, tool)

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LetterList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters and nothing else: any other lookup may read the whole table."""
        return lookup in {list_filter.parameter_name for list_filter in FILTERS}

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return (queryset.filter(searched(term)) if term else queryset), False

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
        if not all(map(is_id, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            raise BadRequest("A selected letter has no such id.")

    def failing(self, request: HttpRequest) -> HttpResponse:
        """Show one row per queue, reason and fingerprint."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            found = groups(request)
        except IncorrectLookupParameters:
            return redirect(self.url_of("failing"))
        return self._page(request, "failing", "What is failing", {"groups": found})

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
        if not is_id(object_id):
            return None
        return self._one(int(object_id)).annotate(now=Now()).first()

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

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        self.tell(
            request,
            f"Nothing was done: the dead letter {object_id} is gone. Somebody has replayed or "
            "discarded it.",
            level=messages.WARNING,
        )
        return redirect(self.url_of("changelist"))

    def _page(
        self, request: HttpRequest, template: str, title: str, context: dict[str, Any]
    ) -> TemplateResponse:
        return TemplateResponse(
            request,
            f"admin/django_outbox/{template}.html",
            {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "media": self.media,
                "title": title,
                "list_url": self.url_of("changelist"),
                **context,
            },
        )

    # What is done to many

    @admin.action(permissions=["replay"], description="Replay")
    def replay_chosen(self, request: HttpRequest, letters: DeadLetterQuerySet) -> None:
        self._replay_all(request, letters, per_second=None)

    @admin.action(permissions=["replay"], description="Replay slowly")
    def replay_chosen_slowly(self, request: HttpRequest, letters: DeadLetterQuerySet) -> None:
        pace = Pace(request.POST)
        if pace.is_valid():
            self._replay_all(request, letters, per_second=pace.cleaned_data["per_second"])
        else:
            for flaw in pace.errors["per_second"]:
                self.tell(request, f"{flaw} Nothing was replayed.", level=messages.ERROR)

    @admin.action(permissions=["discard"], description="Discard")
    def discard_chosen(
        self, request: HttpRequest, letters: DeadLetterQuerySet
    ) -> HttpResponse | None:
        """Ask first, then delete no more than what was there when it was asked."""
        given = request.POST.get(UP_TO)
        if given is None:
            return self._ask_to_discard_all(request, letters)
        if not is_id(given):
            raise BadRequest("The question was about other letters.")
        self._discard_all(request, letters.filter(pk__lte=int(given)))
        return None

    def _replay_all(
        self, request: HttpRequest, letters: DeadLetterQuerySet, *, per_second: float | None
    ) -> None:
        pace = "" if per_second is None else f" {per_second:g} a second"
        asked = f"Asked to replay{pace}: {_chosen(request)}."
        done = ReplayResult()
        entry = self.log(request, f"{_replayed(done)} {asked}")
        for batch in letters.replay_in_batches(per_second):
            done += batch
            _note(entry, f"{_replayed(done)} {asked}")
        level = messages.WARNING if done.skipped or not done.replayed else messages.SUCCESS
        self.tell(request, _replayed(done) + _last_due(done, per_second), level=level)

    def _ask_to_discard_all(
        self, request: HttpRequest, letters: DeadLetterQuerySet
    ) -> HttpResponse:
        newest = self._all().order_by("-pk").values_list("pk", flat=True).first()
        hidden = [
            ("action", "discard_chosen"),
            ("select_across", request.POST.get("select_across", "0")),
            (UP_TO, newest or 0),
            *((ACTION_CHECKBOX_NAME, pk) for pk in request.POST.getlist(ACTION_CHECKBOX_NAME)),
        ]
        return self._ask_to_discard(
            request,
            count=capped_count(letters),
            which=_chosen(request),
            hidden=hidden,
            back_url=request.get_full_path(),
        )

    def _discard_all(self, request: HttpRequest, letters: DeadLetterQuerySet) -> None:
        asked = f"Asked to discard: {_chosen(request)}."
        discarded = 0
        entry = self.log(request, f"Discarded {_letters(discarded)}. {asked}", flag=DELETION)
        for batch in letters.discard_in_batches():
            discarded += batch
            _note(entry, f"Discarded {_letters(discarded)}. {asked}")
        self.tell(request, f"Discarded {_letters(discarded)}.")

    # What is done to one

    def replay(self, request: HttpRequest, letter: DeadLetter) -> HttpResponse | None:
        """Replay this letter."""
        result = self._one(letter.pk).replay()
        return self._tell_of_one(request, letter, result, "Replayed")

    def edit(self, request: HttpRequest, letter: DeadLetter) -> HttpResponse | None:
        """Show the payload in a form; replay the letter with what comes back."""
        form = PayloadForm(letter, request.POST if request.method == "POST" else None)
        if form.is_valid():
            return self._replay_edited(request, letter, form.cleaned_data["payload"])
        context = {"letter": letter, "form": form, "letter_url": self._url_of(letter)}
        return self._page(request, "edit_letter", "Edit and replay", context)

    def discard(self, request: HttpRequest, letter: DeadLetter) -> HttpResponse | None:
        """Ask, then discard this letter."""
        if request.method != "POST":
            return self._ask_to_discard(
                request,
                count=Capped(1),
                which=str(letter),
                hidden=[],
                back_url=self._url_of(letter),
            )
        if not self._one(letter.pk).discard():
            return self.gone(request, str(letter.pk))
        self.log(request, f"Discarded message {letter.message_id}.", obj=letter, flag=DELETION)
        self.tell(request, f"Discarded {letter}.")
        return None

    def _replay_edited(
        self, request: HttpRequest, letter: DeadLetter, body: bytes
    ) -> HttpResponse | None:
        """Replace the payload and replay, both or neither."""
        alias = default_alias()
        with transaction.atomic(using=alias):
            with connections[alias].cursor() as cursor:
                is_there = store.edit(cursor, letter.pk, body)
            result = self._one(letter.pk).replay() if is_there else ReplayResult()
            if not result.replayed:
                transaction.set_rollback(True, using=alias)
        size = f"{len(bytes(letter.payload)):,} to {len(body):,} bytes"
        return self._tell_of_one(
            request, letter, result, f"Edited the payload ({size}) and replayed"
        )

    def _tell_of_one(
        self, request: HttpRequest, letter: DeadLetter, result: ReplayResult, what: str
    ) -> HttpResponse | None:
        if result.skipped:
            self.tell(
                request,
                f"Skipped, and nothing was changed: a live timer has the timer_id of {letter}.",
                level=messages.WARNING,
            )
            return redirect(self._url_of(letter))
        if not result.replayed:
            return self.gone(request, str(letter.pk))
        self.log(request, f"{what} message {letter.message_id}.", obj=letter)
        self.tell(request, f"{what} {letter}.")
        return None

    def _ask_to_discard(
        self,
        request: HttpRequest,
        *,
        count: Capped,
        which: str,
        hidden: Sequence[tuple[str, Any]],
        back_url: str,
    ) -> TemplateResponse:
        context = {
            "count": str(count),
            "is_one": count == 1,
            "which": which,
            "hidden": hidden,
            "back_url": back_url,
        }
        return self._page(request, "discard_letters", "Discard dead letters", context)

    def _all(self) -> DeadLetterQuerySet:
        letters: DeadLetterQuerySet = DeadLetter.objects.using(default_alias())
        return letters

    def _one(self, pk: int) -> DeadLetterQuerySet:
        return self._all().filter(pk=pk)

    def _url_of(self, letter: DeadLetter) -> str:
        return self.url_of("change", letter.pk)


def _commit_by_itself(pattern: URLPattern) -> None:
    """Keep a view out of ATOMIC_REQUESTS, on each database: its batches are to commit."""
    for alias in connections:
        transaction.non_atomic_requests(alias)(pattern.callback)


def _note(entry: LogEntry, what: str) -> None:
    """Bring the log up to date with what is done by now."""
    entry.change_message = what
    entry.save(update_fields=["change_message"])


def _chosen(request: HttpRequest) -> str:
    """Return which letters an action is about, in words."""
    if request.POST.get("select_across") == "1":
        return in_words(request.GET.dict())
    pks = request.POST.getlist(ACTION_CHECKBOX_NAME)
    return f"selected, with the ids {', '.join(pks)}"


def _letters(count: int) -> str:
    return f"{count:,} dead letter{'' if count == 1 else 's'}"


def _replayed(done: ReplayResult) -> str:
    if done == ReplayResult():
        return "Replayed nothing; the letters may be gone by now."
    skipped = (
        f" Skipped {_letters(done.skipped)}: a live timer has their timer_id."
        if done.skipped
        else ""
    )
    return f"Replayed {_letters(done.replayed)}.{skipped}"


def _last_due(done: ReplayResult, per_second: float | None) -> str:
    tried = done.replayed + done.skipped
    if per_second is None or tried < 2 or not done.replayed:
        return ""
    return f" The last is due in {details.duration(timedelta(seconds=(tried - 1) / per_second))}."
