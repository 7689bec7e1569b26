"""The overview: how the outbox fares, on the landing page of the app, on any admin site.

It costs the same few statements however many queues and workers there are, and looks at no more
rows than it says. A template tag puts it on the page, which is its own fragment: the script fetches
the page again and takes the overview out of it, so there is one URL and one look at permissions.
What a user may not view is not shown, nor counted into what is.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any
from urllib.parse import urlencode

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

from ..conf import settings
from ..handlers import registry
from ..migrated import missing_migrations
from ..models import DeadLetter, OutboxMessage, Schedule
from ..presence import LOST_AFTER
from ..publishing import default_alias
from ..scheduling.leadership import NAME as LEADER
from ..schema import find_differences
from ..store import Cursor
from ..store import overview as store
from . import troubles
from .charts import MINUTES, Chart, chart
from .json_columns import loaded_names
from .troubles import Trouble, age, element_id, listed

logger = logging.getLogger("django_outbox")

MOST_QUEUES = 200
MOST_PROCESSES = 100
MOST_SECONDS = 2.0
"""How long a statement may take, or wait for a lock, before the page does without its part."""

SCHEMA_KEPT = 300.0
"""Seconds for which a schema that is as it should be is not compared again, by each process."""

DEPTHS = ((2, 10_000), (50, 1_000), (MOST_QUEUES, 100))
"""With up to so many queues that hold any, so many rows of each are looked at, due and later."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a user may view."""

    messages: bool
    dead: bool
    schedules: bool
    workers: bool

    @classmethod
    def of(cls, user: Any) -> Sight:
        """Return what the permissions of the models say; who may change may view, as in Django."""

        def may_view(name: str) -> bool:
            return any(user.has_perm(f"django_outbox.{verb}_{name}") for verb in ("view", "change"))

        return cls(*map(may_view, ("outboxmessage", "deadletter", "schedule", "worker")))

    @property
    def queues(self) -> bool:
        return self.messages or self.dead

    def __bool__(self) -> bool:
        return self.queues or self.schedules or self.workers


@dataclass(frozen=True, slots=True)
class Count:
    """How many were seen, and where they are listed; there may be more if counting stopped."""

    number: int
    is_least: bool
    url: str | None

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.is_least else ''}"


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue as the page shows it."""

    key: str
    name: str
    ready: Count
    expired: Count
    leased: Count
    scheduled: Count
    retrying: Count
    dead: Count
    oldest: str
    is_late: bool
    chart: Chart


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A worker or scheduler as the page shows it."""

    key: str
    name: str
    kind: str
    host: str
    queues: str
    load: str
    up_for: str
    seen: str
    is_lost: bool


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads the schedulers, None if nobody does."""

    owner: str | None
    led_for: str
    lease_for: str


@dataclass(slots=True)
class Overview:
    """What the page shows, as far as the user may view it."""

    sight: Sight
    at: datetime
    troubles: list[Trouble] = field(default_factory=list)
    queues: list[QueueRow] | None = None
    has_more_queues: bool = False
    total: Chart | None = None
    processes: list[ProcessRow] | None = None
    has_more_processes: bool = False
    leader: Leader | None = None


def overview_for(request: HttpRequest) -> Overview | None:
    """Return what this user sees, None if that is nothing."""
    sight = Sight.of(request.user)
    if not sight:
        return None
    overview = Overview(sight=sight, at=timezone.now())
    alias = default_alias()
    if connections[alias].vendor != "postgresql":
        overview.troubles.append(troubles.no_postgresql(alias))
        return overview
    try:
        _fill(overview, alias, Links(request))
    except (OperationalError, InterfaceError):
        overview.troubles.append(troubles.database_away(alias))
    overview.troubles.sort(key=lambda trouble: not trouble.is_bad)
    return overview


def _fill(overview: Overview, alias: str, links: Links) -> None:
    if missing := missing_migrations(alias):
        overview.troubles.append(troubles.unmigrated(alias, missing))
        return
    is_slow, unreadable = False, []
    for name, show in _PARTS.items():
        try:
            with _bounded(alias) as cursor:
                show(overview, cursor, links)
        except OperationalError:
            is_slow = True  # the other parts may tell why
        except (DatabaseError, *_UNHOLDABLE):
            logger.exception("overview_part_failed")
            unreadable.append(name)
    if is_slow:
        overview.troubles.append(troubles.slow(MOST_SECONDS))
    if unreadable:
        _good_since.pop(alias, None)  # the schema may be why
        overview.troubles.append(troubles.unreadable(unreadable))


@contextmanager
def _bounded(alias: str) -> Iterator[Cursor]:
    """Give a cursor that reads by index, and not for long; nothing of that outlives the block."""
    with transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor:
            store.read_in_order(cursor, seconds=MOST_SECONDS)
            yield cursor
        transaction.set_rollback(True, using=alias)


def _show_schema(overview: Overview, cursor: Cursor, links: Links) -> None:
    alias, now = default_alias(), monotonic()
    if now - _good_since.get(alias, -SCHEMA_KEPT) < SCHEMA_KEPT:
        return
    if found := find_differences(alias):
        overview.troubles.append(troubles.different(alias, found))
    else:
        _good_since[alias] = now


def _show_server(overview: Overview, cursor: Cursor, links: Links) -> None:
    if overview.sight.messages:
        overview.troubles += troubles.of_server(cursor)


# Queues


def _show_queues(overview: Overview, cursor: Cursor, links: Links) -> None:
    if not overview.sight.queues:
        return
    found = store.names(cursor, most=MOST_QUEUES + 1)
    names = sorted({*found, *registry})
    shown = names[:MOST_QUEUES]
    filled = len({*shown} & {*found})
    most = next(depth for queues, depth in DEPTHS if filled <= queues)
    glances = store.glances(cursor, shown, most=most, lost_after=LOST_AFTER)
    minutes = store.traffic(cursor, shown, minutes=MINUTES)
    overview.queues = _rows(_viewable(glances, overview.sight), minutes, most, links)
    overview.has_more_queues = len(names) > MOST_QUEUES
    if overview.sight.messages:
        overview.total = chart("Deliveries of all queues", minutes)
        overview.troubles += troubles.of_queues(glances, set(registry), links.messages)


def _viewable(glances: Sequence[store.QueueGlance], sight: Sight) -> list[store.QueueGlance]:
    """Leave out queues of which the user may see nothing."""
    return [
        glance
        for glance in glances
        if (sight.dead and glance.dead)
        or (sight.messages and (glance.due or glance.later or glance.queue in registry))
    ]


def _rows(
    glances: Sequence[store.QueueGlance],
    minutes: Sequence[store.Minute],
    most: int,
    links: Links,
) -> list[QueueRow]:
    by_queue: Mapping[str, list[store.Minute]] = defaultdict(list)
    for minute in minutes:
        if minute.queue is not None:
            by_queue[minute.queue].append(minute)
    return [_row(glance, by_queue[glance.queue], most, links) for glance in glances]


def _row(
    glance: store.QueueGlance, minutes: Sequence[store.Minute], most: int, links: Links
) -> QueueRow:
    queue, oldest = glance.queue, glance.oldest_ready
    more_due, more_later = glance.due > most, glance.later > most
    leased = glance.leased + glance.leased_later
    expired = glance.expired + glance.expired_later

    def live(state: str, number: int, *, is_least: bool) -> Count:
        return Count(number, is_least, links.messages(queue=queue, state=state) if number else None)

    return QueueRow(
        key=element_id("queue", queue),
        name=queue,
        ready=live("ready", min(glance.ready, most), is_least=more_due),
        expired=live("expired", expired, is_least=more_due or more_later),
        # Claims go by the same order, so if none of those in front is leased, none is.
        leased=live("leased", leased, is_least=more_due and leased > 0),
        scheduled=live("scheduled", min(glance.scheduled, most), is_least=more_later),
        retrying=live("retrying", min(glance.retrying, most), is_least=more_later),
        dead=Count(
            min(glance.dead, most),
            glance.dead > most,
            links.dead_letters(queue=queue) if glance.dead else None,
        ),
        oldest="-" if oldest is None else age(oldest),
        is_late=oldest is not None and oldest > settings.overview_oldest_ready,
        chart=chart(f"Deliveries of {queue}", minutes),
    )


# Processes and schedules


def _show_processes(overview: Overview, cursor: Cursor, links: Links) -> None:
    if not overview.sight.workers:
        return
    found = store.processes(cursor, most=MOST_PROCESSES + 1, lost_after=LOST_AFTER)
    overview.processes = [_process(one) for one in found[:MOST_PROCESSES]]
    overview.has_more_processes = len(found) > MOST_PROCESSES
    lost = [one.worker_id for one in found if one.silent_for > LOST_AFTER]
    overview.troubles += troubles.of_processes(lost, links.messages(state="leased"))


def _process(one: store.Process) -> ProcessRow:
    return ProcessRow(
        key=element_id("process", str(one.id)),
        name=one.worker_id,
        kind=one.kind,
        host=f"{one.host}:{one.pid}",
        queues=listed(loaded_names(one.queues)),
        load=f"{one.running} of {one.concurrency}" if one.concurrency else "-",
        up_for=age(one.up_for),
        seen=f"{age(one.silent_for)} ago",
        is_lost=one.silent_for > LOST_AFTER,
    )


def _show_schedules(overview: Overview, cursor: Cursor, links: Links) -> None:
    if not overview.sight.schedules:
        return
    found = store.scheduling(cursor, lease=LEADER, most=troubles.MOST_NAMED)
    overview.leader = Leader(
        owner=found.leader,
        led_for=age(found.led_for or 0.0),
        lease_for=age(found.lease_for or 0.0),
    )
    overview.troubles += troubles.of_schedules(found, links.schedules(error="yes"))


_PARTS: Mapping[str, Callable[[Overview, Cursor, Links], None]] = {
    "the schema": _show_schema,
    "queues": _show_queues,
    "schedules": _show_schedules,
    "workers": _show_processes,
    "the server": _show_server,
}

_UNHOLDABLE = (ValueError, ArithmeticError, RecursionError)
"""What Python raises over values that only the database can hold."""

_good_since: dict[str, float] = {}
"""When the schema of a database was last found as it should be."""


class Links:
    """Where the lists are that belong to a count; None where this site has none."""

    def __init__(self, request: HttpRequest) -> None:
        site = getattr(request, "current_app", None)
        self._messages = _list_of(OutboxMessage, site)
        self._dead_letters = _list_of(DeadLetter, site)
        self._schedules = _list_of(Schedule, site)

    def messages(self, **filters: str) -> str | None:
        return self._messages and f"{self._messages}?{urlencode(filters)}"

    def dead_letters(self, **filters: str) -> str | None:
        return self._dead_letters and f"{self._dead_letters}?{urlencode(filters)}"

    def schedules(self, **filters: str) -> str | None:
        return self._schedules and f"{self._schedules}?{urlencode(filters)}"


def _list_of(model: type[Model], site: str | None) -> str | None:
    name = f"admin:django_outbox_{model._meta.model_name}_changelist"  # noqa: SLF001
    try:
        return reverse(name, current_app=site)
    except NoReverseMatch:
        return None
