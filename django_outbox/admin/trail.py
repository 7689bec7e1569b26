"""An inline that shows what the outbox holds about an object, on the object's own page.

There is no foreign key to follow: messages and dead letters carry a `ref` as text, and may be in
another database than the object. So this inline has rows to show but no forms, and takes no part in
saving the page that it is on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib.admin import AdminSite
from django.contrib.admin.checks import InlineModelAdminChecks
from django.contrib.admin.options import InlineModelAdmin
from django.core.checks import CheckMessage
from django.db import Error, connections, transaction
from django.db.models import Model
from django.forms.models import BaseModelFormSet, modelformset_factory
from django.http import HttpRequest
from django.urls import reverse
from django.utils.safestring import SafeString

from .. import refs
from ..models import DeadLetter, OutboxMessage
from ..publishing import default_alias
from ..store import trail as store
from . import details
from .states import state_word

if TYPE_CHECKING:  # generic in the stubs only
    _FormSet = BaseModelFormSet[Any, Any]
    _Inline = InlineModelAdmin[Any, Any]
else:
    _FormSet, _Inline = BaseModelFormSet, InlineModelAdmin

logger = logging.getLogger("django_outbox")

MOST_SHOWN = 50

LOOK_AT = 10_000
"""Messages about one object, and letters, among which the newest are looked for."""


_REASONS: dict[str, str] = {str(value): str(label) for value, label in DeadLetter.Reason.choices}


@dataclass(frozen=True, slots=True)
class Step:
    """A message or a dead letter as a row of the trail."""

    at: datetime
    state: SafeString
    number: int
    url: str | None
    queue: str
    timer_id: str | None
    what: str
    when: SafeString | str
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class ReadTrail:
    """The newest steps, and whether there are older ones."""

    steps: list[Step]
    has_more: bool
    error: str = ""
    """Why nothing can be shown; that is no reason for the object's page to fail."""


class Trail:
    """What a user may see of an object's messages and dead letters, the newest first."""

    def __init__(self, obj: Model | None, request: HttpRequest, site: AdminSite) -> None:
        self._ref = _ref_to(obj)
        self._site = site
        self._may_see_messages = _may_view(request, OutboxMessage)
        self._may_see_letters = _may_view(request, DeadLetter)

    def read(self) -> ReadTrail:
        """Look for the newest steps, without harm to a transaction that the page is in."""
        alias = default_alias()
        try:
            with transaction.atomic(using=alias):
                found = [] if self._ref is None else list(self._steps(self._ref))
        except Error:
            logger.exception("trail_failed")
            return ReadTrail([], has_more=False, error=f"The database {alias!r} cannot be read.")
        steps = sorted(found, key=lambda step: step.at, reverse=True)
        return ReadTrail(steps[:MOST_SHOWN], has_more=len(steps) > MOST_SHOWN)

    def _steps(self, ref: str) -> Iterator[Step]:
        with connections[default_alias()].cursor() as cursor:
            if self._may_see_messages:
                for live in store.messages(cursor, ref, look_at=LOOK_AT, most=MOST_SHOWN + 1):
                    yield self._live_step(live)
            if self._may_see_letters:
                for dead in store.letters(cursor, ref, look_at=LOOK_AT, most=MOST_SHOWN + 1):
                    yield self._dead_step(dead)

    def _live_step(self, live: store.Live) -> Step:
        return Step(
            at=live.created_at,
            state=state_word(live),
            number=live.id,
            url=self._url(OutboxMessage, live.id),
            queue=live.queue,
            timer_id=live.timer_id,
            what="next attempt",
            when=details.when(live.next_attempt_at, live.now),
            attempts=live.attempts_count,
            error=details.first_line(live.last_error),
        )

    def _dead_step(self, dead: store.Dead) -> Step:
        return Step(
            at=dead.failed_at,
            state=details.word("dead", "bad"),
            number=dead.original_id,
            url=self._url(DeadLetter, dead.id),
            queue=dead.queue,
            timer_id=dead.timer_id,
            what=_REASONS.get(dead.failure_reason, dead.failure_reason),
            when=details.when(dead.failed_at, dead.now),
            attempts=dead.attempts_count,
            error=details.first_line(dead.last_exception),
        )

    def _url(self, model: type[Model], pk: int) -> str | None:
        if not self._site.is_registered(model):
            return None
        opts = model._meta  # noqa: SLF001 - Django's documented name
        return reverse(f"{self._site.name}:{opts.app_label}_{opts.model_name}_change", args=[pk])


class TrailFormSet(_FormSet):
    """A formset of no forms, which is always valid and saves nothing.

    It is never bound: a page that is posted without it, or with anything in its place, is saved as
    if it were not there.
    """

    trail: Trail

    def __init__(self, *args: Any, prefix: str | None = None, **kwargs: Any) -> None:
        super().__init__(queryset=OutboxMessage.objects.none(), prefix=prefix)

    @classmethod
    def get_default_prefix(cls) -> str:
        return "outbox-trail"

    def read_trail(self) -> ReadTrail:
        """Return what there is to show; nothing is read before the page is rendered."""
        return self.trail.read()

    def is_valid(self) -> bool:
        return True

    def save(self, commit: bool = True) -> list[Any]:
        self.new_objects: list[Any] = []
        self.changed_objects: list[Any] = []
        self.deleted_objects: list[Any] = []
        return []

    def save_m2m(self) -> None:
        """Do nothing; those who save a formset without committing call this."""


class TrailChecks(InlineModelAdminChecks):
    """Django's checks without those of the foreign key, which there is none of."""

    def _check_exclude_of_parent_model(self, obj: Any, parent_model: Any) -> list[CheckMessage]:
        return []

    def _check_relation(self, obj: Any, parent_model: Any) -> list[CheckMessage]:
        return []


class OutboxTrailInline(_Inline):
    """Show the messages, timers and dead letters about an object on its admin page.

    Put it into the `inlines` of any `ModelAdmin` and publish with `ref=obj`. It is read-only, shows
    the newest 50, and needs the permission to view messages or dead letters.
    """

    model = OutboxMessage
    formset = TrailFormSet  # type: ignore[assignment] # the stubs want a foreign key
    checks_class = TrailChecks
    template = "admin/django_outbox/trail.html"
    verbose_name = "outbox"
    verbose_name_plural = "outbox"
    extra = 0
    max_num = 0
    can_delete = False

    @property
    def media(self) -> forms.Media:
        return forms.Media(css={"all": ["django_outbox/admin.css", "django_outbox/messages.css"]})

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        """Return a class of formsets that know the object whose page it is."""
        options: dict[str, Any] = {"formset": self.formset, "fields": (), "extra": 0, "max_num": 0}
        formset: Any = modelformset_factory(self.model, **options)
        formset.trail = Trail(obj, request, self.admin_site)
        return formset

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _may_view(request, OutboxMessage) or _may_view(request, DeadLetter)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _may_view(request: HttpRequest, model: type[Model]) -> bool:
    opts = model._meta  # noqa: SLF001 - Django's documented name
    return any(
        request.user.has_perm(f"{opts.app_label}.{verb}_{opts.model_name}")
        for verb in ("view", "change")
    )


def _ref_to(obj: Model | None) -> str | None:
    """Return what messages about this object carry; None if they cannot carry it."""
    try:
        return None if obj is None else refs.ref_to(obj)
    except ValueError:
        return None
