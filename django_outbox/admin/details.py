"""What the pages of one message and of one dead letter have in common.

All of it is somebody else's text. It reaches the page through `format_html`, which escapes it, and
a payload leaves the site as a file to keep only: never under a type that a browser would open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from . import moments
from .payloads import MOST_SHOWN, show

NOTHING = "-"  # as the admin shows an empty value

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def payload_block(
    body: bytes | memoryview, headers: Mapping[str, str] | None, *, download_url: str
) -> SafeString:
    """Return a payload as text or as a hex dump, with a link to download the whole of it."""
    shown = show(bytes(body), headers)
    size = number_format(shown.size, force_grouping=True)
    cut = number_format(MOST_SHOWN, force_grouping=True)
    return format_html(
        '<pre class="outbox-pre{}" tabindex="0">{}</pre><p>{}, <a href="{}">download</a></p>',
        "" if shown.is_text else " outbox-hex",
        shown.text,
        f"the first {cut} of {size} bytes" if shown.is_cut else f"{size} bytes",
        download_url,
    )


def download(body: bytes | memoryview, *, name: str) -> HttpResponse:
    """Return a payload as a file of bytes, whatever its content type says that it is.

    `name` is ours, made of an id: what a producer has written must not name files.
    """
    return HttpResponse(
        bytes(body),
        content_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox",
        },
    )


def headers_of(text: str) -> Any:
    """Return headers, which were read as text; that text, if Python cannot load it.

    `jsonb` holds numbers of more digits, and deeper levels, than `json` does.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def headers_table(headers: Any) -> SafeString | str:
    """Return headers as a table; what was written by hand and is no mapping, as it is."""
    if not isinstance(headers, dict):
        return pre(_written(headers))
    rows = format_html_join(
        "",
        '<tr><th scope="row">{}</th><td>{}</td></tr>',
        ((name, _cut(_written(value))) for name, value in headers.items()),
    )
    return format_html('<table class="outbox-facts">{}</table>', rows) if rows else NOTHING


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def pre(text: str | None) -> SafeString | str:
    """Return text of several lines, such as a traceback; cut, if it is too long for a page."""
    if not text:
        return NOTHING
    return format_html('<pre class="outbox-pre" tabindex="0">{}</pre>', _cut(text))


def _cut(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[:MOST_SHOWN]}\n… and {len(text) - MOST_SHOWN:,} more characters"


def first_line(text: str | None, *, length: int = 120) -> str:
    """Return what a list shows of an error: its first line that is not blank, cut if need be."""
    line = next((line.strip() for line in (text or "").splitlines() if line.strip()), "")
    return line if len(line) <= length else f"{line[: length - 1]}…"


def word(text: str, colour: str) -> SafeString:
    """Return a coloured word; `colour` is good, busy, wait, warn or bad."""
    return format_html('<span class="outbox-word outbox-{}">{}</span>', colour, text)


def duration(length: timedelta) -> str:
    """Return a length of time in its largest unit: `45 s`, `3 min`, `2 h`, `9 d`."""
    seconds = int(abs(length.total_seconds()))
    size, unit = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    return f"{seconds // size:,} {unit}"


def precise(length: timedelta) -> str:
    """Return a length of time in its two largest units, rounded: `1 min 40 s`, `2 h`."""
    rest = round(abs(length.total_seconds()))
    parts: list[str] = []
    for size, unit in _UNITS:
        if rest >= size and len(parts) < 2:
            parts.append(f"{rest // size:,} {unit}")
            rest %= size
    return " ".join(parts) or "0 s"


def relative(moment: datetime, now: datetime) -> str:
    """Return how far off a moment is: `in 3 min`, `2 h ago`. Take `now` from the database."""
    if abs(moment - now) < timedelta(seconds=1):
        return "now"
    return f"in {duration(moment - now)}" if moment > now else f"{duration(now - moment)} ago"


def when(moment: datetime | None, now: datetime) -> SafeString | str:
    """Return a moment in the site's time zone, and how far off it is."""
    if moment is None:
        return NOTHING
    return moments.beyond(moment) or format_html(
        '<time datetime="{}">{}</time> <span class="outbox-relative">({})</span>',
        moment.isoformat(),
        date_format(_local(moment), "Y-m-d H:i:s"),
        relative(moment, now),
    )


def minute(moment: datetime) -> str:
    """Return a moment to the minute, in the site's time zone."""
    return moments.beyond(moment) or date_format(_local(moment), "Y-m-d H:i")


def _local(moment: datetime) -> datetime:
    """Return the moment in the site's time zone; what no clock there can show stays as it is."""
    try:
        return timezone.localtime(moment)
    except (OverflowError, ValueError):
        return moment


def history(events: Iterable[tuple[datetime | None, Any]], now: datetime) -> SafeString | str:
    """Return what has happened, and what will, in the order of time.

    An event without a moment has not happened.
    """
    known = sorted(
        ((moment, what) for moment, what in events if moment is not None),
        key=lambda event: event[0],
    )
    rows = format_html_join(
        "", "<li>{} {}</li>", ((when(moment, now), what) for moment, what in known)
    )
    return format_html('<ol class="outbox-history">{}</ol>', rows) if rows else NOTHING


def ref_link(ref: str | None, request: HttpRequest, site: AdminSite) -> SafeString | str:
    """Return `shop.order:42` as a link to that object's page, if there is one for this user."""
    if not ref:
        return NOTHING
    label, _, pk = ref.partition(":")
    try:
        model = apps.get_model(label)
    except (LookupError, ValueError):
        return ref
    if not site.is_registered(model) or not site.get_model_admin(model).has_view_permission(
        request
    ):
        return ref
    name = f"{site.name}:{model._meta.app_label}_{model._meta.model_name}_change"  # noqa: SLF001
    try:
        return format_html('<a href="{}">{}</a>', reverse(name, args=[quote(pk)]), ref)
    except NoReverseMatch:
        return ref
