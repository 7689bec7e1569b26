"""What has happened to the message of a dead letter, as far as the tables still tell.

A replayed letter is gone, and a message that fails again leaves a new one; what holds them
together is the `message_id`, which is also in the log of what operators did.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.contrib.admin import AdminSite
from django.db.models import Model, Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import DeadLetter, OutboxMessage
from ..publishing import default_alias
from . import operators
from .moments import Moment

MOST_LETTERS = 20

Event = tuple[datetime | None, SafeString | str]


def events(letter: DeadLetter, site: AdminSite) -> list[Event]:
    """Return what has happened, each with its moment, in no order."""
    return [*_own(letter), *_other_letters(letter, site), *_what_operators_did(letter)]


def live_timer(letter: DeadLetter, request: HttpRequest, site: AdminSite) -> SafeString | None:
    """Return what keeps the letter from being replayed: a live message with its timer_id.

    Live messages are found by `timer_id` only; on their table nothing else is indexed that could.
    """
    if letter.timer_id is None:
        return None
    live = OutboxMessage.objects.using(default_alias()).filter(
        queue=letter.queue, timer_id=letter.timer_id
    )
    pk = live.values_list("pk", flat=True).first()
    if pk is None:
        return None
    return format_html(
        "It cannot be replayed for now: {} has its timer_id.",
        _link(site, request, OutboxMessage, pk, f"live message {pk}"),
    )


def _own(letter: DeadLetter) -> Iterator[Event]:
    yield letter.created_at, "published"
    if letter.first_attempt_at != letter.last_attempt_at:
        yield letter.first_attempt_at, "first failed attempt"
    yield letter.last_attempt_at, f"last failed attempt, number {letter.attempts_count:,}"
    attempts = _times(letter.attempts_count, "attempt")
    deliveries = _times(letter.deliveries_count, "delivery", "deliveries")
    reason = letter.get_failure_reason_display()
    yield letter.failed_at, f"buried as this letter: {reason}, after {attempts} and {deliveries}"


def _other_letters(letter: DeadLetter, site: AdminSite) -> Iterator[Event]:
    others: Any = (
        DeadLetter.objects.using(default_alias())
        .filter(message_id=letter.message_id)
        .exclude(pk=letter.pk)
        .only("queue", "original_id", "failure_reason")
        .annotate(buried_at=Moment("failed_at"))
        .order_by("-failed_at", "-id")[:MOST_LETTERS]
    )
    for other in others:
        url = _url(site, DeadLetter, other.pk)
        yield other.buried_at, format_html('buried as <a href="{}">{}</a>', url, str(other))


def _what_operators_did(letter: DeadLetter) -> Iterator[Event]:
    which = Q(object_id=str(letter.pk)) | Q(change_message__contains=str(letter.message_id))
    return operators.acts(operators.about(DeadLetter, which))


def _times(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _link(
    site: AdminSite, request: HttpRequest, model: type[Model], pk: int, text: str
) -> SafeString | str:
    """Return a link to what the user may see, else the text."""
    is_shown = site.is_registered(model)
    if not is_shown or not site.get_model_admin(model).has_view_permission(request):
        return text
    return format_html('<a href="{}">{}</a>', _url(site, model, pk), text)


def _url(site: AdminSite, model: type[Model], pk: int) -> str:
    opts = model._meta  # noqa: SLF001 - Django's documented name
    return reverse(f"{site.name}:{opts.app_label}_{opts.model_name}_change", args=[pk])
