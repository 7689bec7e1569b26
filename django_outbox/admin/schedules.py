"""Schedules: add, edit, switch on and off, run now, delete; when they fire next, and what is wrong.

A row may hold anything that somebody has written into the table by hand, so nothing is read of it
in a way that could break the page: moments and durations come as seconds, headers as text. Of a
row that is edited only what was changed is written, and never what schedulers keep.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path

from .. import names
from ..errors import OutboxError, summary
from ..handlers import registry
from ..models import Schedule
from ..publishing import default_alias
from ..scheduling.by_hand import run_now
from ..scheduling.clocks import clock
from ..scheduling.declaring import declarations
from ..store import schedules as store
from . import details
from .base import Tool
from .payloads import MOST_SHOWN
from .schedule_columns import ScheduleColumns
from .schedule_filters import ErrorFilter, QueueFilter
from .schedule_forms import ScheduleForm
from .schedule_rows import light, note_differences, with_details

MOST_NAMED = 20
"""Schedules that a message names; of more it says how many there are."""

_MESSAGE = ("queue", "payload", "payload_is", "headers")
_MESSAGE_SHOWN = ("queue", "payload_shown", "headers_shown")
_OPTIONS = ("max_attempts", "expires_in", "catch_up", "enabled", "seen")
_OPTIONS_SHOWN = ("max_attempts", "lifetime_shown", "catch_up", "state")
_STATE = (
    "source",
    "last_fire",
    "last_boundary",
    "last_message",
    "error",
    "rests_until",
    "skipped_count",
)


class NameTaken(Exception):
    """Somebody else has made a schedule of this name since the form was checked."""


class ScheduleList(ChangeList):
    """The list, which also compares what it shows with what the code declares."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        note_differences(self.result_list)


@admin.register(Schedule)
class ScheduleAdmin(ScheduleColumns):
    form = ScheduleForm
    change_form_template = "admin/django_outbox/schedule/change_form.html"
    delete_confirmation_template = "admin/django_outbox/schedule/delete_confirmation.html"
    delete_selected_confirmation_template = (
        "admin/django_outbox/schedule/delete_selected_confirmation.html"
    )
    tools = (
        Tool("run_now", "Run now", "run_schedule"),
        Tool("enable", "Enable", "change_schedule"),
        Tool("disable", "Disable", "change_schedule"),
    )
    actions = ("enable_selected", "disable_selected", "run_selected")
    list_display = (
        "name",
        "state",
        "next_fire",
        "spec_in_zone",
        "queue",
        "last_fire",
        "error_line",
        "skipped_count",
        "source",
    )
    list_filter = ("enabled", "source", QueueFilter, ErrorFilter)
    search_fields = ("name", "queue")
    search_help_text = "Searches names and queues."
    ordering = ("name",)

    class Media:
        js: ClassVar = ["django_outbox/schedule.js"]

    # Rows

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows without what is large, and without what Python may be unable to hold."""
        return light(super().get_queryset(request))

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        row: Any = super().get_object(request, object_id, from_field)
        return row if row is None else with_details(row)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ScheduleList

    # Pages

    def get_urls(self) -> list[URLPattern]:
        views = (
            ("preview/", self.preview, "preview"),
            ("<path:object_id>/payload/", self.download, "payload"),
        )
        own = [
            path(route, self.admin_site.admin_view(view), name=self.url_name(name))
            for route, view, name in views
        ]
        return [*own, *super().get_urls()]

    def download(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Give the whole payload, as a file that no browser opens."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404(f"There is no schedule {object_id} any more.")
        return details.download(row.body, name=f"schedule-{row.pk}.bin")

    def preview(self, request: HttpRequest) -> HttpResponse:
        """Show when a spec fires next, as a part of a page; `name` may say whose spec it is."""
        if not (self.has_view_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied
        name = request.GET.get("name", "")
        is_name = names.flaw_in_name(name) is None
        row = self.get_queryset(request).filter(name=name).first() if is_name else None
        return HttpResponse(self.fires_html(request.GET.get("spec", "").strip(), row))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        is_form = obj is None or self.has_change_permission(request, obj)
        message: tuple[str, ...] = _MESSAGE if is_form else _MESSAGE_SHOWN
        options = _OPTIONS if is_form else _OPTIONS_SHOWN
        if is_form and obj is not None and len(obj.body) > MOST_SHOWN:
            message = ("queue", "payload_shown", *_MESSAGE[1:])
        fieldsets = [
            (None, {"fields": ("name", "spec", "next_fires", *message)}),
            ("Options", {"fields": options}),
        ]
        return fieldsets if obj is None else [*fieldsets, ("How it stands", {"fields": _STATE})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("next_fires",) if obj is None else ("name", "next_fires", "payload_shown", *_STATE)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Name the columns for the form; what else it shows of a row it reads by itself."""
        is_shown = obj is not None and not self.has_change_permission(request, obj)
        kwargs["fields"] = [] if is_shown else ScheduleForm.Meta.fields
        return super().get_form(request, obj, change=change, **kwargs)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method == "GET":
            self._warn_of_declarations(request)
        return super().changelist_view(request, extra_context)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        view = partial(super().changeform_view, request, object_id, form_url, extra_context)
        try:
            return view()
        except NameTaken:
            return view()  # By now the form can see who has taken it, and says so.

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        row: Any = context.get("original")
        context["queues"] = sorted({q for one in registry.handlers() for q in one.queues})
        if row is not None:
            context["badge"] = row.badge
            context["is_of_code"] = row.source == Schedule.Source.CODE and row.is_declared
        return super().render_change_form(request, context, *args, **kwargs)

    def _warn_of_declarations(self, request: HttpRequest) -> None:
        try:
            declarations()
        except ImproperlyConfigured as error:
            self.tell(
                request,
                f"What the code declares cannot be compared: {error}",
                level=messages.WARNING,
            )

    # Writing

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        using = default_alias()
        with connections[using].cursor() as cursor:
            plan = form.declaration.plan(source=Schedule.Source.ADMIN.value, now=clock(cursor))
            if not change:
                obj.pk = store.add(cursor, plan)
                if obj.pk is None:
                    raise NameTaken
                return
        changes = form.changes()
        if form.is_to_be_planned:
            changes |= {
                "spec": plan.spec,
                "timezone": plan.timezone,
                "next_run_at": plan.next_run_at,
                "planned_for": plan.planned_for,
                "plan_from": None,
            }
        rows = Schedule.objects.using(using).filter(pk=obj.pk)
        if changes and not rows.update(**changes):
            raise Http404(f"The schedule {obj.name!r} has been deleted meanwhile.")

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Collect what would be deleted, and note for the page which of it the code declares."""
        note_differences(objs)
        return super().get_deleted_objects(objs, request)

    # What can be done to one, and to many; without its line in the log it is not done

    def is_useful(self, tool: Tool, obj: Any) -> bool:
        return tool.name != ("enable" if obj.enabled else "disable")

    def has_run_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "run_schedule")

    def run_now(self, request: HttpRequest, row: Any) -> HttpResponse:
        """Publish one message at once."""
        self._run(request, [row])
        return redirect(self.url_of("change", row.pk))

    def enable(self, request: HttpRequest, row: Any) -> HttpResponse:
        """Switch the schedule on; it goes on with the first boundary from now."""
        self._switch(request, [row], on=True)
        return redirect(self.url_of("change", row.pk))

    def disable(self, request: HttpRequest, row: Any) -> HttpResponse:
        """Switch the schedule off."""
        self._switch(request, [row], on=False)
        return redirect(self.url_of("change", row.pk))

    @admin.action(description="Run selected schedules now", permissions=["run"])
    def run_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._run(request, queryset)

    @admin.action(description="Enable selected schedules", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._switch(request, queryset, on=True)

    @admin.action(description="Disable selected schedules", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._switch(request, queryset, on=False)

    def _run(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        ran: list[Any] = []
        failed: list[str] = []
        for row in rows:
            try:
                message_id = self._run_one(request, row)
            except (OutboxError, ValueError, OverflowError, DatabaseError) as error:
                failed.append(f"The schedule {row.name!r} cannot be run: {summary(error)}")
                continue
            if message_id is None:
                failed.append(f"The schedule {row.name!r} has been deleted meanwhile.")
                continue
            ran.append(row)
        for failure in failed[:MOST_NAMED]:
            self.tell(request, failure, level=messages.ERROR)
        if failed[MOST_NAMED:]:
            more = f"Nor can {len(failed) - MOST_NAMED:,} more."
            self.tell(request, more, level=messages.ERROR)
        if ran:
            self.tell(request, f"Published a message now for {_named(ran)}.")

    def _run_one(self, request: HttpRequest, row: Any) -> int | None:
        with transaction.atomic(using=default_alias()):
            message_id = run_now(row.pk, using=default_alias())
            if message_id is not None:
                self.log(request, f"Run now: message {message_id} for {row.queue}.", obj=row)
        return message_id

    def _switch(self, request: HttpRequest, rows: Iterable[Any], *, on: bool) -> None:
        word = "Enabled" if on else "Disabled"
        by_id = {row.pk: row for row in rows}
        with transaction.atomic(using=default_alias()):
            with connections[default_alias()].cursor() as cursor:
                switched = [by_id[id_] for id_ in store.switch(cursor, list(by_id), on=on)]
            what = f"{word}, one of {len(switched)}." if switched[1:] else f"{word}."
            self._log_each(request, switched, what)
        if switched:
            self.tell(request, f"{word} {_named(switched)}.")
        else:
            self.tell(request, f"{word} none: it is so already.", level=messages.INFO)

    def _log_each(self, request: HttpRequest, rows: list[Any], what: str) -> None:
        user = request.user.pk or 0
        if rows:
            LogEntry.objects.log_actions(user, rows, CHANGE, change_message=what)


def _named(rows: list[Any]) -> str:
    """Return how many schedules there are, and their names."""
    shown = ", ".join(row.name for row in rows[:MOST_NAMED])
    more = "" if len(rows) <= MOST_NAMED else f" and {len(rows) - MOST_NAMED} more"
    return f"{len(rows)} schedule{'' if len(rows) == 1 else 's'}: {shown}{more}"
