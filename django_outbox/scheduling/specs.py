"""Specs: `@every <n><unit>` and `@cron <five fields> [zone]`. Pure; moments are aware, in UTC.

A cron follows the wall clock of its zone. When its minute or hour field begins with `*` it is meant
as a rhythm and runs in elapsed time: it fires at every moment whose wall time matches, 23 or 25
times on the days of change for `0 * * * *`. Any other is meant as a time of day: one that a change
skips fires at the first moment after the gap, and one that comes twice fires the first time.
"""

from __future__ import annotations

import re
import zoneinfo
from bisect import bisect_right
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import TypeAlias
from zoneinfo import ZoneInfo

from ..errors import InvalidSpec
from .fields import FIELDS
from .suggestions import suggestions

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
MOMENT = timedelta(microseconds=1)
LONGEST = 255
"""Characters of a spec; its column holds no more."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EVERY = re.compile(r"@every ([1-9][0-9]*)([smhd])")
_NO_ZONES = {"Factory", "localtime"}
"""Names that some systems list among the zones, where they stand for another zone on each host."""
_ACCEPTED = "Accepted are '@every <n><s|m|h|d>' and '@cron <five fields> [zone]'."


@dataclass(frozen=True, slots=True)
class Every:
    """A boundary each `step`, counted from registration."""

    step: timedelta

    def after(self, boundary: datetime) -> datetime:
        """Return the boundary that follows `boundary`."""
        return boundary + self.step

    def first(self, registered_at: datetime) -> datetime:
        """Return the first boundary of a schedule registered at this moment."""
        return registered_at + self.step


@dataclass(frozen=True, slots=True)
class Cron:
    """Boundaries at the wall-clock times of `zone` that match the five fields."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    times: tuple[int, ...]
    """Minutes after midnight, sorted: each of the hours with each of the minutes."""
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    zone: ZoneInfo
    is_rhythm: bool
    either_day: bool
    """Day of month or day of week: when both are given, a day that matches one of them does."""

    def after(self, moment: datetime) -> datetime:
        """Return the first boundary later than `moment`; `OverflowError` past the year 9999."""
        return self._next_of_rhythm(moment) if self.is_rhythm else self._next_time_of_day(moment)

    def first(self, registered_at: datetime) -> datetime:
        """Return the first boundary of a schedule registered at this moment."""
        return self.after(registered_at)

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many boundaries are later than `after` and not later than `until`.

        Only days on which the clocks change are walked through; others are counted by their times.
        """
        day, last = (moment.astimezone(self.zone).date() for moment in (after, until))
        total, counted = 0, after
        start = self._instant(_midnight(day))
        while day <= last:
            end = self._instant(_midnight(day + DAY))
            is_plain = self._offset(start - MOMENT) == self._offset(end - MOMENT)
            # A day may be over before it is `after`: clocks set back over midnight repeat its end.
            if end - start == DAY and is_plain and counted < end:
                if counted < start - MOMENT:
                    total += self._walk(counted, start - MOMENT)
                    counted = start - MOMENT
                upto = min(until, end - MOMENT)
                if self._is_day(day):
                    total += self._times_until(upto - start) - self._times_until(counted - start)
                counted = upto
            day, start = day + DAY, end
        return total + self._walk(counted, until)

    def _walk(self, after: datetime, until: datetime) -> int:
        count = 0
        while after < until and (after := self.after(after)) <= until:
            count += 1
        return count

    def _times_until(self, since_midnight: timedelta) -> int:
        """Return how many of a matching day's times have come so long after its midnight."""
        return bisect_right(self.times, since_midnight // MINUTE)

    def _offset(self, moment: datetime) -> timedelta | None:
        return moment.astimezone(self.zone).utcoffset()

    def _next_of_rhythm(self, moment: datetime) -> datetime:
        """Step through elapsed time, as far at a time as nothing can match."""
        candidate = moment.replace(second=0, microsecond=0) + MINUTE
        while True:
            local = candidate.astimezone(self.zone)
            if not self._is_day(local.date()):
                candidate = self._skip(local, 24 * 60 - local.hour * 60 - local.minute)
                day = candidate.astimezone(self.zone).date()
                if day > local.date():  # else a change of clocks is near, perhaps back a day
                    candidate = max(candidate, self._instant(_midnight(self._next_day(day))))
            elif local.hour not in self.hours:
                candidate = self._skip(local, 60 - local.minute)
            elif local.minute not in self.minutes:
                minute = next((m for m in self.minutes if m > local.minute), 60)
                candidate = self._skip(local, minute - local.minute)
            else:
                return candidate

    def _skip(self, local: datetime, minutes: int) -> datetime:
        """Go on by so many minutes, or by one if the clocks change on the way."""
        start = local.astimezone(UTC)
        end = start + timedelta(minutes=minutes)
        has_changed = end.astimezone(self.zone).utcoffset() != local.utcoffset()
        return start + MINUTE if has_changed else end

    def _next_time_of_day(self, moment: datetime) -> datetime:
        """Look through the days' times, which are in the order of their instants, by halves."""
        # The day before may end in a gap, and its last times fall on this one.
        day = self._next_day(moment.astimezone(self.zone).date() - DAY)
        while self._instant_of(day, self.times[-1]) <= moment:
            day = self._next_day(day + DAY)
        found = bisect_right(self.times, moment, key=lambda time: self._instant_of(day, time))
        return self._instant_of(day, self.times[found])

    def _instant_of(self, day: date, time: int) -> datetime:
        return self._instant(_midnight(day) + time * MINUTE)

    def _instant(self, wall: datetime) -> datetime:
        """Return when the zone's clocks show `wall`: the first time, or right after a gap."""
        first = wall.replace(tzinfo=self.zone, fold=0).astimezone(UTC)
        if first.astimezone(self.zone).replace(tzinfo=None) == wall:
            return first
        # In a gap the offset after it gives a moment before the change, and that before it a
        # moment after; the change lies between.
        before = wall.replace(tzinfo=self.zone, fold=1).astimezone(UTC)
        return _change_between(before, first, self.zone)

    def _is_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        is_day_of_month = day.day in self.days
        is_weekday = day.isoweekday() % 7 in self.weekdays
        if self.either_day:
            return is_day_of_month or is_weekday
        return is_day_of_month and is_weekday

    def _next_day(self, day: date) -> date:
        """Return the first matching day from `day` on."""
        while not self._is_day(day):
            if day.month in self.months:
                day += timedelta(days=1)
            else:
                length = monthrange(day.year, day.month)[1]
                day += timedelta(days=length - day.day + 1)
        return day


Spec: TypeAlias = Every | Cron


def parse(spec: str, *, default_zone: str) -> Spec:
    """Return what `spec` says; a cron that names no zone goes by `default_zone`.

    Raises `InvalidSpec`, which says what was given, what is accepted, and the nearest that works.
    """
    if not isinstance(spec, str):
        raise InvalidSpec(f"A spec is a str; {spec!r} is of type {type(spec).__name__}.")
    try:
        parsed = _read(spec, default_zone)
    except InvalidSpec as error:
        raise InvalidSpec(f"{error}{_question(spec, default_zone)}") from None
    if len(spec) > LONGEST:
        raise InvalidSpec(f"{_shown(spec)} has {len(spec)} characters, more than {LONGEST}.")
    return parsed


def _read(spec: str, default_zone: str) -> Spec:
    if match := _EVERY.fullmatch(spec):
        return _every(spec, match[1], match[2])
    if spec.startswith("@cron "):
        return _cron(spec, default_zone)
    raise InvalidSpec(f"{_shown(spec)} is no spec. {_ACCEPTED}")


def _question(spec: str, default_zone: str) -> str:
    """Ask for what may be meant, if it can be read."""
    found = suggestions(spec, zones=_zone_names()) if len(spec) <= LONGEST else []
    readable = [repr(meant) for meant in found if _is_readable(meant, default_zone)]
    return f" Did you mean {' or '.join(readable)}?" if readable else ""


def _is_readable(spec: str, default_zone: str) -> bool:
    try:
        _read(spec, default_zone)
    except InvalidSpec:
        return False
    return len(spec) <= LONGEST


def _every(spec: str, count: str, unit: str) -> Every:
    try:
        step = timedelta(seconds=int(count) * _UNITS[unit])
        datetime.now(UTC) + step
    except (OverflowError, ValueError):  # int() has a limit of digits
        raise InvalidSpec(f"{_shown(spec)} would fire past the year 9999.") from None
    return Every(step)


def _cron(spec: str, default_zone: str) -> Cron:
    if spec.endswith(" "):
        raise InvalidSpec(f"{_shown(spec)} ends with a space, as if its zone had been left blank.")
    if odd := next((text for text in spec if text != " " and text.isspace()), None):
        raise InvalidSpec(f"{_shown(spec)} holds {odd!r}. Separate the fields with spaces.")
    parts = re.split(" +", spec)[1:]
    if len(parts) not in (5, 6):
        count = "1 field" if len(parts) == 1 else f"{len(parts)} fields"
        raise InvalidSpec(
            f"{_shown(spec)} has {count}. A cron has five (minute, hour, day of month, "
            "month, day of week), and a zone may follow: '@cron 30 7 * * MON-FRI Europe/Berlin'."
        )
    texts = parts[:5]
    zone = _zone(spec, parts[5] if len(parts) == 6 else default_zone)
    values = []
    for text, cron_field in zip(texts, FIELDS, strict=True):
        try:
            values.append(cron_field.parse(text))
        except ValueError as error:
            raise InvalidSpec(
                f"{_shown(spec)}: in the {cron_field.name} {text!r}, {error}. Fields take *, "
                "values, lists, ranges, steps, and names of months and days."
            ) from None
    minutes, hours, days, months, weekdays = values
    cron = Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        times=tuple(sorted(hour * 60 + minute for hour in hours for minute in minutes)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(day % 7 for day in weekdays),
        zone=zone,
        is_rhythm=texts[0].startswith("*") or texts[1].startswith("*"),
        either_day=not (texts[2].startswith("*") or texts[4].startswith("*")),
    )
    if not cron.either_day and not _has_a_day(cron):
        raise InvalidSpec(f"{_shown(spec)} can never fire: no such month has such a day.")
    return cron


def _has_a_day(cron: Cron) -> bool:
    leap_year = 2024
    return any(min(cron.days) <= monthrange(leap_year, month)[1] for month in cron.months)


def _zone(spec: str, name: str) -> ZoneInfo:
    if name not in _zone_names():
        raise InvalidSpec(
            f"{_shown(spec)}: {_shown(name)} is no zone. A zone is an IANA name such as "
            f"Europe/Berlin{_sixth_field(name)}."
        )
    return ZoneInfo(name)


def _sixth_field(text: str) -> str:
    """Return what to add about a zone that looks like one field more."""
    try:
        FIELDS[-1].parse(text)
    except ValueError:
        return ""
    return ", and stands after five fields; there are no seconds"


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones() - _NO_ZONES)


def _change_between(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the first second that has the offset of `after`."""
    offset = after.astimezone(zone).utcoffset()
    low, high = int(before.timestamp()), int(after.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        has_changed = datetime.fromtimestamp(middle, zone).utcoffset() == offset
        low, high = (low, middle) if has_changed else (middle, high)
    return datetime.fromtimestamp(high, UTC)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001 - wall time, which has no zone


def _shown(spec: str) -> str:
    return repr(spec if len(spec) <= 80 else spec[:80] + "…")
