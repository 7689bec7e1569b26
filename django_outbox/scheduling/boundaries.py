"""Which boundaries to fire: what is due, what was missed, and where to go on. Pure.

A boundary is missed when it is more than one leader's term late. What becomes of missed ones is the
schedule's choice: `all` fires the oldest 64 that are due, `latest` only the newest one, `skip` only
those that are still on time. Whatever is passed over is counted, and the next boundary always lies
after now, so nothing is fired again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from .specs import MOMENT, Every, Spec

CatchUp: TypeAlias = Literal["all", "latest", "skip"]
CATCH_UPS = ("all", "latest", "skip")

MISSED_AFTER = timedelta(seconds=10)
MOST_FIRES = 64
MOST_COUNTED = timedelta(days=400)
"""How far back the boundaries of a cron are counted that are passed over in one go."""

_LOOK_BACKS = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=367))


@dataclass(frozen=True, slots=True)
class Due:
    """The boundaries to fire, oldest first, how many are passed over, and the next one."""

    fire: tuple[datetime, ...]
    skipped: int
    next_run_at: datetime


def due(spec: Spec, *, next_run_at: datetime, now: datetime, catch_up: CatchUp) -> Due:
    """Return what to do about the boundaries from `next_run_at` to `now`."""
    if next_run_at > now:
        return Due((), 0, next_run_at)
    if now - next_run_at <= MISSED_AFTER or catch_up == "all":
        fire, following = _oldest(spec, next_run_at, now)
        skipped, following = _pass_over(spec, following, now)
        return Due(fire, skipped, following)
    count, following = _pass_over(spec, next_run_at, now)
    if catch_up == "latest":
        newest = _newest(spec, next_run_at, now)
        return Due((newest,), max(0, count - 1), following)
    fire = tuple(_on_time(spec, next_run_at, now))
    return Due(fire, count - len(fire), following)


def in_step(spec: Spec, boundary: datetime, start: datetime) -> datetime:
    """Return the first boundary after `start` in the row that `boundary` belongs to."""
    if boundary > start:
        return boundary
    if isinstance(spec, Every):
        return boundary + ((start - boundary) // spec.step + 1) * spec.step
    return spec.after(start)


def _oldest(spec: Spec, boundary: datetime, now: datetime) -> tuple[tuple[datetime, ...], datetime]:
    fire: list[datetime] = []
    while boundary <= now and len(fire) < MOST_FIRES:
        fire.append(boundary)
        boundary = spec.after(boundary)
    return tuple(fire), boundary


def _pass_over(spec: Spec, boundary: datetime, now: datetime) -> tuple[int, datetime]:
    """Count the boundaries from `boundary` to `now` and return the first after it."""
    if boundary > now:
        return 0, boundary
    following = in_step(spec, boundary, now)
    if isinstance(spec, Every):
        return (following - boundary) // spec.step, following
    start = max(boundary - MOMENT, now - MOST_COUNTED)
    return spec.count(start, now), following


def _newest(spec: Spec, boundary: datetime, now: datetime) -> datetime:
    """Return the last boundary up to `now`; there is one, at `boundary` or later."""
    if isinstance(spec, Every):
        return boundary + (now - boundary) // spec.step * spec.step
    for look_back in _LOOK_BACKS:
        start = now - look_back
        if start <= boundary:
            break
        if (found := spec.after(start)) <= now:
            boundary = found
            break
    while (following := spec.after(boundary)) <= now:
        boundary = following
    return boundary


def _on_time(spec: Spec, boundary: datetime, now: datetime) -> Iterator[datetime]:
    """Yield the boundaries that are due and not missed."""
    boundary = _first_from(spec, boundary, now - MISSED_AFTER)
    while boundary <= now:
        yield boundary
        boundary = spec.after(boundary)


def _first_from(spec: Spec, boundary: datetime, start: datetime) -> datetime:
    """Return the first boundary at `start` or later."""
    if boundary >= start:
        return boundary
    if isinstance(spec, Every):
        behind = -((boundary - start) // spec.step)  # rounded up
        return boundary + behind * spec.step
    return spec.after(start - MOMENT)
