"""Write schedules: arguments → a validated plan → one statement, in the caller's transaction.

Everything that can be wrong is found before any SQL, as in publishing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.db import connections, transaction

from .. import names
from ..drafts import build_draft
from ..messages import Draft, Seconds, current_message
from ..publishing import default_alias
from ..store import schedules as store
from ..store.schedules import Plan, Written
from ..store.storage import require_postgres
from .boundaries import CATCH_UPS, CatchUp
from .clocks import clock
from .specs import Cron, Spec, parse

if TYPE_CHECKING:
    from ..models import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A schedule as it is asked for: checked and encoded, and not yet placed in time."""

    name: str
    spec: Spec
    text: str
    timezone: str
    draft: Draft
    catch_up: CatchUp
    enabled: bool

    @classmethod
    def checked(
        cls,
        name: str,
        spec: str,
        *,
        queue: str,
        payload: Any = None,
        headers: Mapping[str, str] | None = None,
        max_attempts: int | None = None,
        expires_in: Seconds | None = None,
        catch_up: CatchUp = "all",
        enabled: bool = True,
    ) -> Declaration:
        """Return the declaration; raise for the first argument that cannot be used."""
        name = names.validate_queue(name, kind="schedule's name")
        timezone = django_settings.TIME_ZONE
        parsed = parse(spec, default_zone=timezone)
        if catch_up not in CATCH_UPS:
            raise ValueError(f"catch_up must be one of {', '.join(CATCH_UPS)}; it is {catch_up!r}.")
        if not isinstance(enabled, bool):
            raise TypeError(f"enabled must be True or False; it is {enabled!r}.")
        return cls(
            name=name,
            spec=parsed,
            text=names.plain(spec),
            timezone=parsed.zone.key if isinstance(parsed, Cron) else "UTC",
            draft=_draft(
                payload,
                queue=queue,
                headers=headers,
                expires_in=expires_in,
                max_attempts=max_attempts,
            ),
            catch_up=catch_up,
            enabled=enabled,
        )

    def plan(self, *, source: str, now: datetime) -> Plan:
        """Return what to write for a registration at this moment."""
        return Plan(
            name=self.name,
            spec=self.text,
            timezone=self.timezone,
            queue=self.draft.queue,
            body=self.draft.body,
            headers=self.draft.headers,
            max_attempts=self.draft.max_attempts,
            expires_in=self.draft.expires_in,
            catch_up=self.catch_up,
            enabled=self.enabled,
            source=source,
            next_run_at=self.spec.first(now),
        )

    def differences(self, written: Written) -> list[str]:
        """Return the names of what is written otherwise than it is declared."""
        draft = self.draft
        lifetime = None if draft.expires_in is None else draft.expires_in.total_seconds()
        declared_and_written = {
            "spec": (self.text, written.spec),
            "timezone": (self.timezone, written.timezone),
            "queue": (draft.queue, written.queue),
            "payload": (sha256(draft.body).digest(), bytes(written.digest)),
            "headers": (draft.headers, _json(written.headers)),
            "max_attempts": (draft.max_attempts, written.max_attempts),
            "expires_in": (lifetime, written.expires_in),
            "catch_up": (self.catch_up, written.catch_up),
        }
        return [name for name, (one, other) in declared_and_written.items() if one != other]

    def is_written_as(self, written: Written) -> bool:
        """Tell whether there is nothing to write: the row is code's, and as it is declared."""
        return (
            written.source == "code"
            and not written.is_withdrawn
            and written.declared_enabled == self.enabled
            and not self.differences(written)
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # jsonb holds numbers and nesting that Python does not
        return None


def _draft(payload: Any, **options: Any) -> Draft:
    """Return the draft of every message to come; what a handler schedules is none of its trace."""
    token = current_message.set(None)
    try:
        return build_draft(
            payload,
            correlation_id="none",  # each message gets one of its own, and equal ones are equal
            activate_in=None,
            activate_at=None,
            timer_id=None,
            timer_conflict="ignore",
            **options,
        )
    finally:
        current_message.reset(token)


def schedule(
    name: str,
    spec: str,
    *,
    queue: str,
    payload: Any = None,
    headers: Mapping[str, str] | None = None,
    max_attempts: int | None = None,
    expires_in: Seconds | None = None,
    catch_up: CatchUp = "all",
    enabled: bool = True,
    using: str | None = None,
) -> Schedule:
    """Write the schedule of this name and return it: new, or in place of the one there was.

    It publishes to `queue` at every boundary of `spec`, with the given options; `expires_in` counts
    from each fire. The same spec again keeps the next boundary, a changed one starts afresh.
    `catch_up` says what becomes of boundaries that nobody was there to fire. Part of the caller's
    transaction if one is open.

    Raises `InvalidName`, `ReservedName`, `InvalidSpec`, `ValueError` or `TypeError` before any SQL.
    """
    declaration = Declaration.checked(
        name,
        spec,
        queue=queue,
        payload=payload,
        headers=headers,
        max_attempts=max_attempts,
        expires_in=expires_in,
        catch_up=catch_up,
        enabled=enabled,
    )
    alias = default_alias() if using is None else using
    require_postgres(alias)
    from ..models import Schedule

    # One transaction, so that nobody unschedules it before it is read back.
    with transaction.atomic(using=alias, savepoint=False), connections[alias].cursor() as cursor:
        store.upsert(cursor, declaration.plan(source="api", now=clock(cursor)))
        return Schedule.objects.using(alias).get(name=declaration.name)


def unschedule(name: str, *, using: str | None = None) -> bool:
    """Delete the schedule of this name; False if there is none."""
    names.validate_queue(name, kind="schedule's name")
    alias = default_alias() if using is None else using
    require_postgres(alias)
    with connections[alias].cursor() as cursor:
        return store.delete(cursor, name)
