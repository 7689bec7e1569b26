"""What is shown of a schedule: the columns of the list, and what only the page of one has."""

from __future__ import annotations

from typing import Any

from django.conf import settings as django_settings
from django.contrib import admin
from django.db import connections
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe

from ..models import OutboxMessage
from ..publishing import default_alias
from ..scheduling.clocks import clock
from ..store import schedules as store
from . import details, fires
from .base import OutboxAdmin
from .details import NOTHING, payload_block, pre
from .schedule_forms import duration, readable_headers
from .schedule_rows import shown_moment


class ScheduleColumns(OutboxAdmin):
    """The columns; a row is one that `schedule_rows` has read."""

    @admin.display(description="state", ordering="enabled")
    def state(self, row: Any) -> str:
        kind, word = ("good", "enabled") if row.enabled else ("wait", "disabled")
        words = [details.word(word, kind)]
        if row.error_head is not None:
            words.append(details.word("last fire failed", "bad"))
        if row.badge:
            words.append(format_html('<span class="outbox-warn">{}</span>', row.badge))
        return format_html_join(mark_safe("<br>"), "{}", ((one,) for one in words))

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

    # Only on the page of one

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
            self.fires_html(row.spec, row),
        )

    @admin.display(description="payload")
    def payload_shown(self, row: Any) -> str:
        return payload_block(
            row.body,
            readable_headers(row.headers_text),
            download_url=self.url_of("payload", row.pk),
        )

    @admin.display(description="headers")
    def headers_shown(self, row: Any) -> str:
        return pre(row.headers_text)

    @admin.display(description="expires in")
    def lifetime_shown(self, row: Any) -> str:
        lifetime = duration(row.lifetime)
        return NOTHING if row.lifetime is None else str(lifetime or f"{row.lifetime} s")

    def fires_html(self, spec: str, row: Any = None) -> str:
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
