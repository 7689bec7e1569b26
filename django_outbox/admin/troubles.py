"""What the overview warns of; each trouble says what to do next. Text, never markup."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from time import monotonic
from typing import Any

from ..conf import settings
from ..names import RESERVED_PREFIX
from ..store import Cursor
from ..store import server as store
from ..store.overview import QueueGlance, Scheduling
from .details import duration

MOST_NAMED = 5
"""How many queues, schedules or sessions one trouble names."""

PINNED_SECONDS = 300.0
PINNED_TRANSACTIONS = 100_000
DEAD_ROWS = 10_000
DEAD_TIMES = 5.0
DEAD_SECONDS = 600.0
"""Vacuum is behind with so many dead rows, so many times what it begins at, for so long."""


_never_vacuumed: dict[str, float] = {}
"""When this process first saw too many dead rows in a table that was never vacuumed."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, what to do next, and where; bad is what keeps messages from being delivered.

    `key` is the same at every look as long as the trouble is.
    """

    key: str
    what: str
    advice: str
    url: str | None = None
    is_bad: bool = False


# The database


def no_postgresql(alias: str) -> Trouble:
    return Trouble(
        key="outbox-trouble-database",
        what=f"The database {alias!r} is not PostgreSQL, so nothing can be published.",
        advice=f"Point DATABASES[{alias!r}] to a PostgreSQL server, or have a database router send "
        "django_outbox to one.",
        is_bad=True,
    )


def database_away(alias: str) -> Trouble:
    return Trouble(
        key="outbox-trouble-database",
        what=f"The database {alias!r} did not answer.",
        advice="See whether the server runs and takes connections. Workers and schedulers wait for "
        "it and go on by themselves.",
        is_bad=True,
    )


def unmigrated(alias: str, missing: Sequence[str]) -> Trouble:
    return Trouble(
        key="outbox-trouble-migrations",
        what=f"The database {alias!r} lacks the migration(s) {', '.join(missing)}.",
        advice=f"Run: manage.py migrate django_outbox --database {alias}",
        is_bad=True,
    )


def different(alias: str, differences: Sequence[Any]) -> Trouble:
    return Trouble(
        key="outbox-trouble-schema",
        what=f"Tables in the database {alias!r} are not as the migrations make them: "
        f"{len(differences):,} difference(s).",
        advice=f"Run manage.py outbox_check --database {alias}, which shows each of them with the "
        "statement that mends it.",
    )


def slow(seconds: float) -> Trouble:
    return Trouble(
        key="outbox-trouble-slow",
        what=f"A part of this page is missing: the database took more than {seconds:g} s for it.",
        advice="The server is overloaded, a table is locked, or full of dead rows: see the other "
        "warnings, and pg_stat_activity.",
        is_bad=True,
    )


def unreadable(parts: Sequence[str]) -> Trouble:
    return Trouble(
        key="outbox-trouble-unreadable",
        what=f"A part of this page is missing: {', '.join(parts)} could not be read.",
        advice="The site's log has the error. The schema may differ (manage.py outbox_check), or "
        "a row hold what no program of ours writes.",
        is_bad=True,
    )


# Queues


def of_queues(
    glances: Iterable[QueueGlance],
    handled: Container[str],
    url_of: Callable[..., str | None],
) -> Iterator[Trouble]:
    """Yield what is wrong with queues; those that are pulled from have no handler and no worker."""
    seen = [glance for glance in glances if glance.due or glance.later]
    served = [one for one in seen if not one.queue.startswith(RESERVED_PREFIX)]
    late = [one for one in seen if (one.oldest_ready or 0) > settings.overview_oldest_ready]

    unhandled = [one for one in served if one.queue not in handled and not one.is_served]
    if unhandled:
        yield Trouble(
            key="outbox-trouble-unhandled",
            what=f"There are messages, but no handler, for {_queues(unhandled)}.",
            advice="Deploy the code that handles them, correct the name where they are published, "
            "or cancel them. No worker that is alive serves them either.",
            url=_first(unhandled, url_of),
            is_bad=True,
        )
    unserved = [one for one in served if one.queue in handled and one.due and not one.is_served]
    if unserved:
        yield Trouble(
            key="outbox-trouble-unserved",
            what=f"Messages are due, but no worker is alive, for {_queues(unserved)}.",
            advice="Start manage.py outbox_worker; if one is meant to run, see its log, and that "
            "its --queue options name these.",
            url=_first(unserved, url_of),
            is_bad=True,
        )
    if late:
        most, oldest = settings.overview_oldest_ready, max(one.oldest_ready or 0 for one in late)
        yield Trouble(
            key="outbox-trouble-late",
            what=f"Messages have been ready for up to {age(oldest)}, more than "
            f"{age(most)}, for {_queues(late)}.",
            advice="If workers are busy, run more of them or raise --concurrency; if they are "
            "not, look for a handler that hangs.",
            url=_first(late, url_of),
        )


def _queues(glances: Sequence[QueueGlance]) -> str:
    return listed([one.queue for one in glances])


def _first(glances: Sequence[QueueGlance], url_of: Callable[..., str | None]) -> str | None:
    return url_of(queue=glances[0].queue)


# Processes


def of_processes(lost: Sequence[str], leased_url: str | None) -> Iterator[Trouble]:
    """Yield which workers and schedulers have not been heard of for a while."""
    if lost:
        yield Trouble(
            key="outbox-trouble-lost",
            what=f"Not seen for a minute: {listed(lost)}.",
            advice="See whether the process was killed or its host is gone. What it has leased is "
            "delivered by others once the leases have run out; to have that at once, release it.",
            url=leased_url,
        )


# Schedules


def of_schedules(found: Scheduling, failing_url: str | None) -> Iterator[Trouble]:
    """Yield what is wrong with schedules."""
    if found.enabled and found.leader is None:
        yield Trouble(
            key="outbox-trouble-leader",
            what="No scheduler leads, so none of the enabled schedules fires "
            f"({found.enabled:,} in all).",
            advice="Start manage.py outbox_scheduler, or a worker with --with-scheduler.",
            is_bad=True,
        )
    if found.failing:
        names = listed(found.failing_names, of=found.failing)
        yield Trouble(
            key="outbox-trouble-schedules",
            what=f"The last fire of {names} failed.",
            advice="Open the schedule to see its error; it is tried again once a minute.",
            url=failing_url,
        )


# The server


def of_server(cursor: Cursor) -> Iterator[Trouble]:
    """Yield why dead rows stay in the tables, which makes every claim slower."""
    behind = store.unvacuumed(cursor, least=DEAD_ROWS, times=DEAD_TIMES, seconds=DEAD_SECONDS)
    yield from map(_unvacuumed, _long_behind(behind))
    pins = store.pins(
        cursor, seconds=PINNED_SECONDS, transactions=PINNED_TRANSACTIONS, most=MOST_NAMED
    )
    yield from map(_pinned, pins)


def _long_behind(behind: Sequence[store.Unvacuumed]) -> list[store.Unvacuumed]:
    """Leave out tables that have never been vacuumed, and may not have had dead rows for long."""
    now = monotonic()
    never = {one.table: now for one in behind if one.vacuumed_ago is None}
    for table in set(_never_vacuumed) - set(never):
        _never_vacuumed.pop(table, None)
    since = {table: _never_vacuumed.setdefault(table, now) for table in never}
    return [one for one in behind if now - since.get(one.table, -DEAD_SECONDS) >= DEAD_SECONDS]


def _unvacuumed(behind: store.Unvacuumed) -> Trouble:
    ago = behind.vacuumed_ago
    last = "never" if ago is None else f"{age(ago)} ago"
    advice = (
        f"Run VACUUM {behind.table}. If dead rows stay, an old transaction keeps them; if they "
        "come back, lower autovacuum_vacuum_scale_factor or raise autovacuum's cost limit."
        if behind.is_automatic
        else f"Autovacuum is off: turn it on for the server and {behind.table}, and run VACUUM."
    )
    return Trouble(
        key=f"outbox-trouble-vacuum-{behind.table}",
        what=f"{behind.table} has about {behind.dead_rows:,} dead rows, and autovacuum was to "
        f"begin at {behind.threshold:,}; it was last vacuumed: {last}.",
        advice=advice,
    )


def _pinned(pin: store.Pin) -> Trouble:
    what, advice = _PINNED[pin.kind](pin)
    return Trouble(
        key=element_id(f"trouble-{pin.kind}", pin.name),
        what=f"{what} keeps VACUUM from removing dead rows; {pin.transactions:,} transactions have "
        "begun since.",
        advice=advice,
    )


def _session(pin: store.Pin) -> tuple[str, str]:
    known = [
        f"role {shown(pin.role)}" if pin.role else "",
        f"application {shown(pin.application)}" if pin.application else "",
        pin.state or "",
    ]
    who = ", ".join([f"process {pin.name}", *filter(None, known)])
    since = f"open for {age(pin.seconds)}" if pin.seconds else "old"
    return (
        f"A transaction {since} ({who})",
        f"Find out what it waits for; SELECT pg_terminate_backend({pin.name}) ends it.",
    )


def _prepared(pin: store.Pin) -> tuple[str, str]:
    return (
        f"The prepared transaction {shown(pin.name)}, {age(pin.seconds or 0)} old,",
        "Finish it by COMMIT PREPARED or ROLLBACK PREPARED.",
    )


def _slot(pin: store.Pin) -> tuple[str, str]:
    return (
        f"The {pin.state} replication slot {shown(pin.name)}",
        "See why its consumer lags; pg_drop_replication_slot drops it if there is none any more.",
    )


_PINNED = {"session": _session, "prepared": _prepared, "slot": _slot}


# Texts


def listed(names: Sequence[Any], *, of: int | None = None) -> str:
    """Return the first few names, and how many more there are."""
    some = ", ".join(shown(name) for name in names[:MOST_NAMED])
    more = (len(names) if of is None else of) - MOST_NAMED
    return f"{some} and {more:,} more" if more > 0 else some


def shown(name: Any) -> str:
    """Return a name without what cannot be seen, or turns the text around it."""
    text = str(name)
    return text if text.isprintable() else ascii(text)


def age(seconds: float) -> str:
    """Return a length of time in its largest unit, however long, and none that is negative."""
    return duration(timedelta(seconds=max(0.0, min(seconds, 1e11))))


def element_id(kind: str, name: str) -> str:
    """Return an id for an element: names are anybody's, and come and go between two looks."""
    return f"outbox-{kind}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
