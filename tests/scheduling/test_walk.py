"""Boundaries of crons against a walk from minute to minute through the days of change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import example, given, settings
from hypothesis import strategies as st

from django_outbox.scheduling.specs import parse

MINUTE = timedelta(minutes=1)

CHANGES = [
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/Havana", "2026-03-08"),  # at midnight, to 01:00
    ("America/Havana", "2026-11-01"),  # at 01:00, back to midnight
    ("America/Sao_Paulo", "2018-02-18"),  # at midnight, back to 23:00 of the day before
    ("America/Sao_Paulo", "2018-11-04"),
    ("America/St_Johns", "2009-03-08"),  # at one minute past midnight
    ("America/St_Johns", "2009-11-01"),
    ("Antarctica/Troll", "2026-03-29"),  # by two hours
    ("Antarctica/Troll", "2026-10-25"),
    ("Pacific/Apia", "2011-12-30"),  # a day that did not exist
    ("Pacific/Chatham", "2026-04-05"),  # at a quarter to four
    ("Pacific/Chatham", "2026-09-27"),
    ("Asia/Kathmandu", "2026-06-15"),
    ("UTC", "2026-12-31"),
]
MINUTES = ["*", "*/15", "*/7", "0", "30", "1", "59", "0,30", "10-40/15", "5,45-50"]
HOURS = ["*", "*/2", "*/5", "0", "1", "2", "3", "23", "0-3", "1,2", "2-23/7"]
DAYS = ["*", "1", "8", "29-31", "*/2", "1-7,30"]
WEEKDAYS = ["*", "0", "7", "SUN", "MON-FRI", "6", "*/3"]


def named(field: str, low: int, high: int) -> set[int]:
    """Return the values that a field names; the tests' own reading of a cron."""
    names = {"SUN": "0", "MON": "1", "FRI": "5"}
    values: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        first, last = names.get(first, first), names.get(last, last)
        values |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return values


class Fields:
    """Five fields, and whether a wall-clock time matches them."""

    def __init__(self, spec: str) -> None:
        minute, hour, day, _, weekday = spec.split()
        self.is_rhythm = minute.startswith("*") or hour.startswith("*")
        self._minutes, self._hours = named(minute, 0, 59), named(hour, 0, 23)
        self._days, self._weekdays = named(day, 1, 31), named(weekday.replace("7", "0"), 0, 6)
        self._needs_both = day.startswith("*") or weekday.startswith("*")

    def match(self, wall: datetime) -> bool:
        if wall.minute not in self._minutes or wall.hour not in self._hours:
            return False
        on_day, on_weekday = wall.day in self._days, wall.isoweekday() % 7 in self._weekdays
        return (on_day and on_weekday) if self._needs_both else (on_day or on_weekday)


def walk(fields: Fields, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """Go from minute to minute and note when the wall clock says that it is time."""
    now = start - timedelta(hours=4)
    seen = now.astimezone(zone).replace(tzinfo=None)
    found = []
    while (now := now + MINUTE) < end:
        wall = now.astimezone(zone).replace(tzinfo=None)
        if fields.is_rhythm:
            due = fields.match(wall)
        else:  # the times that the clock reaches or jumps over, each for the first time
            due = False
            while seen < wall:
                seen += MINUTE
                due = due or fields.match(seen)
        if due and now > start:
            found.append(now)
    return found


@settings(max_examples=100, deadline=None)
@given(
    change=st.sampled_from(CHANGES),
    fields=st.tuples(
        st.sampled_from(MINUTES),
        st.sampled_from(HOURS),
        st.sampled_from(DAYS),
        st.just("*"),
        st.sampled_from(WEEKDAYS),
    ),
    hours_before=st.integers(1, 30),
    seconds=st.integers(0, 59),
)
@example(("America/St_Johns", "2009-03-08"), ("*", "1", "*", "*", "*"), 9, 0)
@example(("America/St_Johns", "2009-11-01"), ("*", "*", "29-31", "*", "*"), 10, 0)
@example(("Pacific/Chatham", "2026-09-27"), ("*", "3", "*", "*", "*"), 30, 0)
def test_boundaries_are_those_that_a_walk_from_minute_to_minute_meets(
    change: tuple[str, str], fields: tuple[str, ...], hours_before: int, seconds: int
) -> None:
    zone, day = change
    spec = " ".join(fields)
    middle = datetime.fromisoformat(f"{day}T12:00+00:00").astimezone(UTC)
    start = middle - timedelta(hours=hours_before) + timedelta(seconds=seconds)
    end = middle + timedelta(hours=30)

    parsed = parse(f"@cron {spec} {zone}", default_zone="UTC")
    found = []
    boundary = start
    while (following := parsed.after(boundary)) < end:
        assert following > boundary
        boundary = following
        found.append(boundary)

    whole_minute = start.replace(second=0)
    assert found == walk(Fields(spec), ZoneInfo(zone), whole_minute, end)
