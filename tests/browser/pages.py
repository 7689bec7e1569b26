"""Every page of the admin that is ours, by name."""

from __future__ import annotations

from collections.abc import Callable

from django.urls import reverse
from django.utils import timezone

from django_outbox.models import DeadLetter, OutboxMessage, Schedule
from example_project.shop.models import Order
from tests.browser import demo


def url(name: str, *args: object) -> str:
    """Return the URL of a page of `django_outbox` in the admin."""
    return reverse(f"admin:django_outbox_{name}", args=args)


def letter_of(queue: str) -> int:
    """Return the newest dead letter of a queue."""
    return DeadLetter.objects.filter(queue=queue).latest("failed_at").pk


def message_of(queue: str) -> int:
    """Return the newest message of a queue."""
    return OutboxMessage.objects.filter(queue=queue).latest("pk").pk


def lost_message() -> int:
    """Return a message whose lease has run out."""
    return OutboxMessage.objects.filter(lease_expires_at__lt=timezone.now()).latest("pk").pk


def schedule(name: str) -> int:
    """Return the schedule of this name."""
    return Schedule.objects.get(name=name).pk


PAGES: dict[str, Callable[[], str]] = {
    "overview": lambda: reverse("admin:app_list", args=["django_outbox"]),
    "letters": lambda: url("deadletter_changelist"),
    "letters-of-a-hostile-queue": lambda: (
        url("deadletter_changelist") + "?q=%3Cscript%3Ealert(1)%3C/script%3E"
    ),
    "failing": lambda: url("deadletter_failing"),
    "letter": lambda: url("deadletter_change", letter_of("payments")),
    "letter-hostile": lambda: url("deadletter_change", letter_of(demo.HOSTILE)),
    "letter-of-bytes": lambda: url("deadletter_change", letter_of("devices")),
    "letter-edit": lambda: url("deadletter_edit", letter_of("payments")),
    "letter-edit-bytes": lambda: url("deadletter_edit", letter_of("devices")),
    "letter-discard": lambda: url("deadletter_discard", letter_of(demo.HOSTILE)),
    "messages": lambda: url("outboxmessage_changelist"),
    "message": lambda: url("outboxmessage_change", message_of("payments")),
    "message-lost": lambda: url("outboxmessage_change", lost_message()),
    "message-cancel": lambda: url("outboxmessage_cancel", message_of("payments")),
    "message-release": lambda: url("outboxmessage_release", lost_message()),
    "trail": lambda: reverse("admin:shop_order_change", args=[Order.objects.get().pk]),
    "schedules": lambda: url("schedule_changelist"),
    "schedule": lambda: url("schedule_change", schedule("nightly-report")),
    "schedule-hostile": lambda: url("schedule_change", schedule(demo.HOSTILE)),
    "schedule-new": lambda: url("schedule_add"),
    "schedule-delete": lambda: url("schedule_delete", schedule(demo.HOSTILE)),
}
"""URLs once `demo.fill` has run."""

VIEWED = [
    name
    for name in PAGES
    if name not in {"schedule-new", "schedule-delete", "trail"}
    and not name.startswith(("letter-edit", "letter-discard", "message-cancel", "message-release"))
]
"""Pages that show and do not ask: those that who may only view may open."""
