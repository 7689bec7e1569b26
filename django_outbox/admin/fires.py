"""When a spec fires next, in its zone and in UTC, with what the change of clocks does to it. Pure.

A row may hold anything that somebody has written into the table by hand. What cannot be read is
said in words, and nothing here raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from ..errors import InvalidSpec
from ..scheduling.boundaries import in_step
from ..scheduling.clocks import as_utc
from ..scheduling.planning import next_boundary
from ..scheduling.specs import Cron, Spec, parse
from ..store.schedules import Candidate

SHOWN = 5

_FORMAT = "%Y-%m-%d %H:%M:%S %Z"
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_BEYOND = (ValueError, OverflowError, OSError)


@dataclass(frozen=True, slots=True)
class Fire:
    """A boundary to come, written out, and what is odd about it."""

    local: str
    utc: str
    note: str


@dataclass(frozen=True, slots=True)
class Fires:
    """The next boundaries in the zone of this name, or why there are none to show."""

    zone: str
    fires: tuple[Fire, ...] = ()
    error: str = ""


def fires_of(text: str, *, default_zone: str, now: datetime, row: Candidate | None = None) -> Fires:
    """Return the next boundaries of a spec, of a schedule that has it, or of a new one."""
    is_of_row = row is not None and row.spec == text
    try:
        spec = parse(text, default_zone=row.timezone if row and is_of_row else default_zone)
        start = next_boundary(row, spec, now) if row and is_of_row else spec.first(now)
    except InvalidSpec as error:
        return Fires("", error=str(error))
    except _BEYOND:
        return Fires("", error="The next boundary lies outside of the years 1 to 9999.")
    zone = spec.zone if isinstance(spec, Cron) else ZoneInfo("UTC")
    boundaries = list(_from(spec, start))
    before = [now, *boundaries]
    return Fires(
        zone.key,
        tuple(
            Fire(
                written(boundary, zone),
                written(boundary, UTC),
                _overdue(boundary, now) or clock_note(boundary, previous, zone),
            )
            for previous, boundary in zip(before, boundaries, strict=False)
        ),
    )


def resumed(row: Candidate, now: datetime) -> Candidate:
    """Return a row that is switched off as it would go on if it were switched on at this moment."""
    try:
        spec = parse(row.spec, default_zone=row.timezone)
        boundary = in_step(spec, next_boundary(row, spec, now), now)
    except _BEYOND:  # an InvalidSpec too
        return row
    return row._replace(next_run_at=boundary.timestamp(), plan_from=None)


def clock_note(boundary: datetime, previous: datetime, zone: ZoneInfo) -> str:
    """Say what the zone's clocks do at a boundary, or have done since the previous one."""
    local = boundary.astimezone(zone)
    offset = local.utcoffset()
    first, second = (local.replace(fold=fold).utcoffset() for fold in (0, 1))
    if first != second:
        return f"the hour that comes twice, the {'second' if local.fold else 'first'} time"
    has_changed = previous.astimezone(zone).utcoffset() != offset
    return "after the change of clocks" if has_changed else ""


def moment(epoch: float | None) -> datetime | None:
    """Return seconds since 1970 as a moment, None for none and for what Python cannot hold."""
    try:
        return None if epoch is None else as_utc(epoch)
    except _BEYOND:
        return None


def written(instant: datetime, zone: tzinfo) -> str:
    """Return a moment as it is read in a zone."""
    local = instant.astimezone(zone)
    return f"{_WEEKDAYS[local.weekday()]} {local:{_FORMAT}}"


def zone_of(name: str) -> ZoneInfo | None:
    """Return the zone of this name, None if there is none."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _from(spec: Spec, boundary: datetime) -> Iterator[datetime]:
    try:
        for _ in range(SHOWN):
            yield boundary
            boundary = spec.after(boundary)
    except OverflowError:  # past the year 9999
        return


def _overdue(boundary: datetime, now: datetime) -> str:
    return "overdue" if now - boundary > timedelta(seconds=1) else ""
