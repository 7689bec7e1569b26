"""What operators do about dead letters: replay, edit and discard, one or many.

Nothing is done without its line in the log. Of one letter both are one transaction. An action on
many goes in batches that commit by themselves, each with the log brought up to date, so what was
interrupted has told how far it came and can be repeated. Where the log is in another database, it
is written before the outbox commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, DELETION
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.core.exceptions import BadRequest
from django.db import connections, transaction
from django.forms import BooleanField
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse

from ..messages import ReplayResult
from ..models import DeadLetter
from ..publishing import default_alias
from ..querysets import DeadLetterQuerySet
from ..store import dead_letters as store
from . import details
from .base import ReadOnlyAdmin, Tool
from .counts import Capped, capped_count
from .dead_letter_filters import AS_OF, in_words
from .ids import as_id
from .letter_forms import LetterActionForm, Pace, PayloadForm

_Done = TypeVar("_Done", int, ReplayResult)

UP_TO = "up_to"
"""The field of a confirmed discard: the highest id there was when the question was asked."""


class LetterActions(ReadOnlyAdmin):
    """The actions above the list and the buttons above a letter, and who may use them."""

    action_form = LetterActionForm
    actions = ("replay_chosen", "replay_chosen_slowly", "discard_chosen")
    tools: ClassVar[Sequence[Tool]] = (
        Tool("replay", "Replay", "replay_deadletter"),
        Tool("edit", "Edit and replay", "edit_deadletter", asks=True),
        Tool("discard", "Discard", "discard_deadletter", asks=True, is_destructive=True),
    )

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "replay_deadletter")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "discard_deadletter")

    def may_use(self, request: HttpRequest, tool: Tool) -> bool:
        if tool.name == "edit" and not self.has_replay_permission(request):
            return False
        return super().may_use(request, tool)

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        self.tell(
            request,
            f"Nothing was done: the dead letter {object_id} is gone. Somebody has replayed or "
            "discarded it.",
            level=messages.WARNING,
        )
        return self.back_to_list(request)

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
        last = as_id(given)
        if last is None or last < 0:
            raise BadRequest("The question was about other letters.")
        self._discard_all(request, letters.filter(pk__lte=last))
        return None

    def _replay_all(
        self, request: HttpRequest, letters: DeadLetterQuerySet, *, per_second: float | None
    ) -> None:
        pace = "" if per_second is None else f" {per_second:g} a second"
        asked = f"Asked to replay{pace}: {_chosen(request)}."
        done = self._in_batches(
            request,
            letters.replay_in_batches(per_second),
            ReplayResult(),
            lambda done: f"{_replayed(done)} {asked}",
        )
        level = messages.WARNING if done.skipped or not done.replayed else messages.SUCCESS
        self.tell(request, _replayed(done) + _last_due(done, per_second), level=level)

    def _discard_all(self, request: HttpRequest, letters: DeadLetterQuerySet) -> None:
        asked = f"Asked to discard: {_chosen(request)}."
        discarded = self._in_batches(
            request,
            letters.discard_in_batches(),
            0,
            lambda count: f"Discarded {_letters(count)}. {asked}",
            flag=DELETION,
        )
        self.tell(request, f"Discarded {_letters(discarded)}.")

    def _in_batches(
        self,
        request: HttpRequest,
        batches: Iterator[_Done],
        done: _Done,
        in_words: Callable[[_Done], str],
        *,
        flag: int = CHANGE,
    ) -> _Done:
        """Commit each batch together with what the log says is done by then."""
        entry = self.log(request, in_words(done), flag=flag)
        while True:
            with transaction.atomic(using=default_alias()):
                if (batch := next(batches, None)) is None:
                    return done
                done += batch
                entry.change_message = in_words(done)
                entry.save(update_fields=["change_message"])

    def _ask_to_discard_all(
        self, request: HttpRequest, letters: DeadLetterQuerySet
    ) -> HttpResponse:
        with connections[default_alias()].cursor() as cursor:
            now = store.moment_before(cursor, timedelta())
        newest = self.all_letters().order_by("-pk").values_list("pk", flat=True).first()
        hidden = [
            ("action", "discard_chosen"),
            ("select_across", request.POST.get("select_across", "0")),
            (UP_TO, newest or 0),
            (AS_OF, now.isoformat()),
            *((ACTION_CHECKBOX_NAME, pk) for pk in request.POST.getlist(ACTION_CHECKBOX_NAME)),
        ]
        return self._ask_to_discard(
            request,
            count=capped_count(letters),
            which=_chosen(request),
            hidden=hidden,
            back_url=request.get_full_path(),
        )

    # What is done to one

    def replay(self, request: HttpRequest, letter: DeadLetter) -> HttpResponse:
        """Replay this letter."""
        return self._replay_one(request, letter, "Replayed")

    def edit(self, request: HttpRequest, letter: DeadLetter) -> HttpResponse:
        """Show the payload in a form; replay the letter with what comes back."""
        form = PayloadForm(letter, request.POST if request.method == "POST" else None)
        if form.is_valid():
            body = form.cleaned_data["payload"]
            size = f"{len(bytes(letter.payload)):,} to {len(body):,} bytes"
            return self._replay_one(
                request, letter, f"Edited the payload ({size}) and replayed", body=body
            )
        context = {"letter": letter, "form": form, "letter_url": self.url_back(request, letter)}
        return self.page(request, "edit_letter", "Edit and replay", context)

    def discard(self, request: HttpRequest, letter: DeadLetter) -> HttpResponse:
        """Ask, then discard this letter."""
        if request.method != "POST":
            return self._ask_to_discard(
                request,
                count=Capped(1),
                which=str(letter),
                hidden=[],
                back_url=self.url_back(request, letter),
            )
        with transaction.atomic(using=default_alias()):
            is_done = self.one_letter(letter.pk).discard()
            if is_done:
                what = f"Discarded message {letter.message_id}."
                self.log(request, what, obj=letter, flag=DELETION)
        if not is_done:
            return self.gone(request, str(letter.pk))
        self.tell(request, f"Discarded {letter}.")
        return self.back_to_list(request)

    def _replay_one(
        self, request: HttpRequest, letter: DeadLetter, what: str, *, body: bytes | None = None
    ) -> HttpResponse:
        """Replay a letter, with another payload if one is given; all of it or nothing."""
        alias = default_alias()
        with transaction.atomic(using=alias):
            is_there = body is None or _edit(letter.pk, body)
            result = self.one_letter(letter.pk).replay() if is_there else ReplayResult()
            if result.replayed:
                self.log(request, f"{what} message {letter.message_id}.", obj=letter)
            else:
                transaction.set_rollback(True, using=alias)
        if result.skipped:
            self.tell(
                request,
                f"Skipped, and nothing was changed: a live timer has the timer_id of {letter}.",
                level=messages.WARNING,
            )
            return redirect(self.url_back(request, letter))
        if not result.replayed:
            return self.gone(request, str(letter.pk))
        self.tell(request, f"{what} {letter}.")
        return self.back_to_list(request)

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
        return self.page(request, "discard_letters", "Discard dead letters", context)

    # What the pages share

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context["tools"] = [
            (tool, self._with_filters(request, url)) for tool, url in context.get("tools", ())
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    def back_to_list(self, request: HttpRequest) -> HttpResponse:
        """Lead back to the list, filtered as it was."""
        return redirect(self._with_filters(request, self.url_of("changelist")))

    def url_back(self, request: HttpRequest, letter: DeadLetter) -> str:
        """Return the URL of a letter's page, from which the way back is the same."""
        return self._with_filters(request, self.url_of("change", letter.pk))

    def _with_filters(self, request: HttpRequest, url: str) -> str:
        filters = self.get_preserved_filters(request)
        kept: str = add_preserved_filters({"preserved_filters": filters, "opts": self.opts}, url)
        return kept

    def page(
        self, request: HttpRequest, template: str, title: str, context: dict[str, Any]
    ) -> TemplateResponse:
        """Return a page of ours within the admin's."""
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

    def all_letters(self) -> DeadLetterQuerySet:
        """Return the letters of the database that messages are written to."""
        letters: DeadLetterQuerySet = DeadLetter.objects.using(default_alias())
        return letters

    def one_letter(self, pk: int) -> DeadLetterQuerySet:
        return self.all_letters().filter(pk=pk)


def _edit(pk: int, body: bytes) -> bool:
    with connections[default_alias()].cursor() as cursor:
        return store.edit(cursor, pk, body)


def _chosen(request: HttpRequest) -> str:
    """Return which letters an action is about, in words."""
    if _is_across(request):
        return in_words(request.GET.dict())
    pks = request.POST.getlist(ACTION_CHECKBOX_NAME)
    return f"selected, with the ids {', '.join(pks)}"


def _is_across(request: HttpRequest) -> bool:
    """Tell whether all that match were asked for, as Django reads it: `on` says so, too."""
    return bool(BooleanField().to_python(request.POST.get("select_across")))


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
    return f" The last is due in {details.precise(timedelta(seconds=(tried - 1) / per_second))}."
