"""What is shown of a message: the columns of the list, and what only the page of one has."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, cast

from django.contrib import admin
from django.db.models import Q
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import DeadLetter, OutboxMessage, Worker
from ..presence import LOST_AFTER
from ..publishing import default_alias
from . import details, moments, operators
from .base import ReadOnlyAdmin
from .states import state_word


class MessageColumns(ReadOnlyAdmin):
    """The columns; a row is one whose moments are settled, see `moments`."""

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
        return details.payload_block(message.payload, message.headers_read, download_url=url)

    @admin.display(description="headers")
    def headers_table(self, message: Any) -> SafeString | str:
        return details.headers_table(message.headers_read)

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
        return details.history([*events, *_what_operators_did(message)], message.now)


def _lease(message: Any) -> SafeString:
    """Return who holds a message and until when, or who held it."""
    has_run_out = message.lease_expires_at < message.now
    return format_html(
        "{}, {} {}",
        message.leased_by or "an unnamed worker",
        "has run out" if has_run_out else "until",
        details.when(message.lease_expires_at, message.now),
    )


def _what_operators_did(message: Any) -> Iterator[tuple[datetime, str]]:
    """Yield what was done to a message by its id, and to it as a dead letter before."""
    named = Q(object_id__isnull=True) & (
        Q(change_message__contains=f"#{message.pk},")
        | Q(change_message__contains=f"#{message.pk})")
        | Q(change_message__contains=f"#{message.pk} and ")
    )
    return operators.acts(
        operators.about(OutboxMessage, Q(object_id=str(message.pk)) | named)
        | operators.about(DeadLetter, Q(change_message__contains=str(message.message_id)))
    )


def _life_of(worker_id: str | None, now: Any) -> SafeString:
    """Return whether a worker lives, by when it was last seen."""
    seen = (
        Worker.objects.using(default_alias())
        .filter(worker_id=worker_id)
        .order_by("-last_seen_at")
        .values_list(moments.Moment("last_seen_at"), flat=True)
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
