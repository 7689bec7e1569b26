"""Schedules: add, edit, switch on and off, run now, delete; when they fire next, and what is wrong.

A row may hold anything that somebody has written into the table by hand, so nothing is read of it
in a way that could break the page: moments and durations come as seconds, headers as text. Of a
row that is edited only what was changed is written, and never what schedulers keep.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

from django.conf import settings as django_settings
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import DatabaseError, connections
from django.db.models import (
    QuerySet,
)
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.html import format_html

from .. import names
from ..errors import OutboxError
from ..handlers import registry
from ..models import OutboxMessage, Schedule
from ..publishing import default_alias
from ..scheduling.by_hand import run_now
from ..scheduling.clocks import clock
from ..scheduling.declaring import declarations
from ..store import schedules as store
from . import fires
from .base import OutboxAdmin, Tool
from .details import NOTHING, pre
from .schedule_filters import ErrorFilter, QueueFilter
from .schedule_forms import ScheduleForm, duration
from .schedule_rows import light, note_differences, shown_moment, with_details

MOST_NAMED = 20
"""Schedules that a message names; of more it says how many there are."""

_MESSAGE = ("queue", "payload", "payload_is", "headers")
_MESSAGE_SHOWN = ("queue", "payload_shown", "headers_shown")
_OPTIONS = ("max_attempts", "expires_in", "catch_up", "enabled")
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
class ScheduleAdmin(OutboxAdmin):
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
        "spec_in_zone",
        "queue",
        "next_fire",
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

    # Columns

    @admin.display(description="state", ordering="enabled")
    def state(self, row: Any) -> str:
        kind, word = ("good", "enabled") if row.enabled else ("wait", "disabled")
        state = format_html('<span class="outbox-word outbox-{}">{}</span>', kind, word)
        if not row.badge:
            return state
        return format_html('{}<br><span class="outbox-warn">{}</span>', state, row.badge)

    @admin.display(description="spec", ordering="spec")
    def spec_in_zone(self, row: Any) -> str:
        is_said = row.spec.endswith(f" {row.timezone}")
        zone = "" if is_said else format_html('<br><span class="quiet">{}</span>', row.timezone)
        return format_html("{}{}", row.spec, zone)

    @admin.display(description="next fire", ordering="next_run_at")
    def next_fire(self, row: Any) -> str:
        if not row.enabled:
            return NOTHING
        is_planned = row.planned_for == store.planned_for(row.spec, row.timezone)
        if row.next_run_epoch is None or row.plan_from_epoch is not None or not is_planned:
            return "yet to be worked out"
        return shown_moment(row.next_run_epoch, row.timezone)

    @admin.display(description="last fire", ordering="last_run_at")
    def last_fire(self, row: Any) -> str:
        return shown_moment(row.last_run_epoch, row.timezone)

    @admin.display(description="last error", ordering="last_error")
    def error_line(self, row: Any) -> str:
        return (row.error_head or "").strip().partition("\n")[0] or NOTHING

    # What the page of one schedule shows besides

    @admin.display(description="last boundary")
    def last_boundary(self, row: Any) -> str:
        return shown_moment(row.last_boundary_epoch, row.timezone)

    @admin.display(description="rests after its error until")
    def rests_until(self, row: Any) -> str:
        return shown_moment(row.retry_epoch, row.timezone)

    @admin.display(description="last error")
    def error(self, row: Any) -> str:
        return pre(row.error_text)

    @admin.display(description="last message")
    def last_message(self, row: Any) -> str:
        id_ = row.last_message_id
        if id_ is None:
            return NOTHING
        if not OutboxMessage.objects.using(default_alias()).filter(pk=id_).exists():
            return f"{id_}, which is no longer in the outbox"
        try:
            url = reverse(f"{self.admin_site.name}:django_outbox_outboxmessage_change", args=[id_])
        except NoReverseMatch:
            return str(id_)
        return format_html('<a href="{}">{}</a>', url, id_)

    @admin.display(description="next five fires")
    def next_fires(self, row: Any) -> str:
        return format_html(
            '<div id="outbox-fires" aria-live="polite" data-url="{}" data-name="{}">{}</div>',
            self.url_of("preview"),
            row.name,
            self._fires(row.spec, row),
        )

    @admin.display(description="payload")
    def payload_shown(self, row: Any) -> str:
        form = ScheduleForm(instance=row)
        return pre(form.initial["payload"] or str(form.fields["payload"].help_text))

    @admin.display(description="headers")
    def headers_shown(self, row: Any) -> str:
        return pre(row.headers_text)

    @admin.display(description="expires in")
    def lifetime_shown(self, row: Any) -> str:
        lifetime = duration(row.lifetime)
        return NOTHING if row.lifetime is None else str(lifetime or f"{row.lifetime} s")

    def _fires(self, spec: str, row: Any = None) -> str:
        """Return the next fires of a spec as HTML: those of a row, if it has this very spec."""
        if not spec:
            return ""
        with connections[default_alias()].cursor() as cursor:
            now = clock(cursor)
            candidates = store.read(cursor, [row.pk]) if row is not None and row.pk else []
        candidate = candidates[0] if candidates else None
        is_off = candidate is not None and candidate.spec == spec and not row.enabled
        if candidate is not None and is_off:
            candidate = fires.resumed(candidate, now)
        found = fires.fires_of(spec, default_zone=django_settings.TIME_ZONE, now=now, row=candidate)
        context = {"found": found, "is_off": is_off}
        return render_to_string("admin/django_outbox/schedule/fires.html", context)

    # Pages

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.preview)
        return [path("preview/", view, name=self.url_name("preview")), *super().get_urls()]

    def preview(self, request: HttpRequest) -> HttpResponse:
        """Show when a spec fires next, as a part of a page; `name` may say whose spec it is."""
        if not (self.has_view_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied
        name = request.GET.get("name", "")
        is_name = names.flaw_in_name(name) is None
        row = self.get_queryset(request).filter(name=name).first() if is_name else None
        return HttpResponse(self._fires(request.GET.get("spec", "").strip(), row))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        is_form = obj is None or self.has_change_permission(request, obj)
        message, options = (_MESSAGE, _OPTIONS) if is_form else (_MESSAGE_SHOWN, _OPTIONS_SHOWN)
        fieldsets = [
            (None, {"fields": ("name", "spec", "next_fires", *message)}),
            ("Options", {"fields": options}),
        ]
        return fieldsets if obj is None else [*fieldsets, ("How it stands", {"fields": _STATE})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("next_fires",) if obj is None else ("name", "next_fires", *_STATE)

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
            pointless = "enable" if row.enabled else "disable"
            context["tools"] = [t for t in context.get("tools", ()) if t[0].name != pointless]
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

    # What can be done to one, and to many

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
        for row in rows:
            try:
                message_id = run_now(row.pk, using=default_alias())
            except (OutboxError, ValueError, OverflowError, DatabaseError) as error:
                self._tell_failure(request, row, str(error))
                continue
            if message_id is None:
                self._tell_failure(request, row, "it has been deleted meanwhile.")
                continue
            self.log(request, f"Run now: message {message_id} for {row.queue}.", obj=row)
            ran.append(row)
        if ran:
            self.tell(request, f"Published a message now for {_named(ran)}.")

    def _tell_failure(self, request: HttpRequest, row: Any, why: str) -> None:
        self.tell(request, f"The schedule {row.name!r} cannot be run: {why}", level=messages.ERROR)

    def _switch(self, request: HttpRequest, rows: Iterable[Any], *, on: bool) -> None:
        word = "Enabled" if on else "Disabled"
        table = Schedule.objects.using(default_alias())
        switched = [
            row for row in rows if table.filter(pk=row.pk, enabled=not on).update(enabled=on)
        ]
        if not switched:
            self.tell(request, f"{word} none: it is so already.", level=messages.INFO)
            return
        LogEntry.objects.log_actions(
            request.user.pk or 0,
            switched,
            CHANGE,
            change_message=f"{word}, one of {len(switched)}." if switched[1:] else f"{word}.",
        )
        self.tell(request, f"{word} {_named(switched)}.")


def _named(rows: list[Any]) -> str:
    """Return how many schedules there are, and their names."""
    shown = ", ".join(row.name for row in rows[:MOST_NAMED])
    more = "" if len(rows) <= MOST_NAMED else f" and {len(rows) - MOST_NAMED} more"
    return f"{len(rows)} schedule{'' if len(rows) == 1 else 's'}: {shown}{more}"
