"""Which boundaries are fired, which are passed over and counted, and where it goes on."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_outbox.scheduling.boundaries import CatchUp, Due, due
from django_outbox.scheduling.specs import Cron, Spec, parse

START = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
POLICIES: list[CatchUp] = ["all", "latest", "skip"]


def read(spec: str) -> Spec:
    return parse(spec, default_zone="UTC")


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def after(spec: str, late: timedelta, catch_up: CatchUp, *, start: datetime = START) -> Due:
    """Return what a tick does that comes so long after the boundary at `start`."""
    return due(read(spec), next_run_at=start, now=start + late, catch_up=catch_up)


@pytest.mark.parametrize("catch_up", POLICIES)
@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
def test_nothing_is_fired_before_the_boundary(spec: str, catch_up: CatchUp) -> None:
    assert after(spec, -timedelta(microseconds=1), catch_up) == Due((), 0, START)


@pytest.mark.parametrize("catch_up", POLICIES)
@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
@pytest.mark.parametrize("late", [0, 0.05, 9.9, 10])
def test_a_boundary_up_to_one_ttl_late_is_fired_whatever_the_policy(
    spec: str, late: float, catch_up: CatchUp
) -> None:
    assert after(spec, seconds(late), catch_up) == Due((START,), 0, START + minutes(1))


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
@pytest.mark.parametrize(
    ("catch_up", "right"),
    [
        ("all", Due((START,), 0, START + minutes(1))),
        ("latest", Due((START,), 0, START + minutes(1))),
        ("skip", Due((), 1, START + minutes(1))),
    ],
)
def test_a_single_one_that_is_later_is_missed_and_skip_passes_it_over(
    spec: str, catch_up: CatchUp, right: Due
) -> None:
    assert after(spec, seconds(10.001), catch_up) == right


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
def test_an_outage_of_200_boundaries_fires_the_oldest_64_and_goes_on_past_now(spec: str) -> None:
    done = after(spec, minutes(199.5), "all")

    assert done.fire == tuple(START + minutes(n) for n in range(64))
    assert done.skipped == 136
    assert done.next_run_at == START + minutes(200)


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
def test_after_the_64_nothing_of_the_outage_is_fired_again(spec: str) -> None:
    done = after(spec, minutes(199.5), "all")
    now = START + minutes(199.5)
    fired = set(done.fire)

    for _ in range(100):
        now += seconds(7)
        done = due(read(spec), next_run_at=done.next_run_at, now=now, catch_up="all")
        assert done.skipped == 0
        assert fired.isdisjoint(done.fire)
        fired |= set(done.fire)

    assert sorted(fired)[64:] == [START + minutes(n) for n in range(200, 212)]


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
@pytest.mark.parametrize(
    ("passed", "fired", "skipped"), [(63, 63, 0), (64, 64, 0), (65, 64, 1), (66, 64, 2)]
)
def test_the_cap_is_64_exactly(spec: str, passed: int, fired: int, skipped: int) -> None:
    done = after(spec, minutes(passed - 0.5), "all")

    assert (len(done.fire), done.skipped) == (fired, skipped)
    assert done.next_run_at == START + minutes(passed)


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
def test_latest_fires_the_newest_of_an_outage(spec: str) -> None:
    assert after(spec, minutes(199.5), "latest") == Due(
        (START + minutes(199),), 199, START + minutes(200)
    )


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
def test_skip_fires_none_of_an_outage(spec: str) -> None:
    assert after(spec, minutes(199.5), "skip") == Due((), 200, START + minutes(200))


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
def test_skip_fires_what_is_on_time_though_others_were_missed(spec: str) -> None:
    assert after(spec, minutes(199) + seconds(5), "skip") == Due(
        (START + minutes(199),), 199, START + minutes(200)
    )


@pytest.mark.parametrize("catch_up", POLICIES)
@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
def test_a_boundary_that_is_now_belongs_to_this_tick(spec: str, catch_up: CatchUp) -> None:
    done = after(spec, minutes(3), catch_up)

    assert done.fire[-1] == START + minutes(3)
    assert done.next_run_at == START + minutes(4)
    assert len(done.fire) + done.skipped == 4


DOWN_FOR_4_DAYS = datetime(2026, 6, 1, 5, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("catch_up", "days", "skipped"), [("all", [1, 2, 3, 4], 0), ("latest", [4], 3), ("skip", [], 4)]
)
def test_a_daily_job_after_four_days(catch_up: CatchUp, days: list[int], skipped: int) -> None:
    # E15
    spec = read("@cron 0 6 * * *")
    now = DOWN_FOR_4_DAYS + timedelta(days=4)

    done = due(spec, next_run_at=spec.after(DOWN_FOR_4_DAYS), now=now, catch_up=catch_up)

    assert done.fire == tuple(datetime(2026, 6, day, 6, 0, tzinfo=UTC) for day in days)
    assert done.skipped == skipped
    assert done.next_run_at == datetime(2026, 6, 5, 6, 0, tzinfo=UTC)


@pytest.mark.parametrize(("catch_up", "fired"), [("all", 64), ("latest", 1), ("skip", 0)])
def test_a_job_of_every_minute_after_four_days(catch_up: CatchUp, fired: int) -> None:
    # E15
    spec = read("@cron * * * * *")
    now = DOWN_FOR_4_DAYS + timedelta(days=4, seconds=30)

    done = due(spec, next_run_at=DOWN_FOR_4_DAYS + minutes(1), now=now, catch_up=catch_up)

    assert len(done.fire) == fired
    assert done.skipped == 4 * 24 * 60 - fired
    assert done.next_run_at == DOWN_FOR_4_DAYS + timedelta(days=4, minutes=1)


@pytest.mark.parametrize("catch_up", POLICIES)
def test_a_fire_of_every_second_is_counted_through_a_year_at_once(catch_up: CatchUp) -> None:
    began = time.monotonic()

    done = after("@every 1s", timedelta(days=365), catch_up)

    assert len(done.fire) + done.skipped == 365 * 86400 + 1
    assert done.next_run_at == START + timedelta(days=365, seconds=1)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("catch_up", POLICIES)
def test_the_minutes_of_a_month_are_all_counted(catch_up: CatchUp) -> None:
    now = START + timedelta(days=30, seconds=30)
    spec = read("@cron * * * * *")

    done = due(spec, next_run_at=START, now=now, catch_up=catch_up)

    assert len(done.fire) + done.skipped == 30 * 24 * 60 + 1
    assert done.next_run_at == START + timedelta(days=30, minutes=1)


@pytest.mark.parametrize("spec", ["@cron 0-59 0-23 * * *", "@cron 59 0-23 * * *"])
def test_a_time_of_day_is_found_without_trying_all_of_its_day(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[datetime] = []
    instant = Cron._instant

    def note(cron: Cron, wall: datetime) -> datetime:
        tried.append(wall)
        return instant(cron, wall)

    monkeypatch.setattr(Cron, "_instant", note)

    assert read(spec).after(START + minutes(58.5)) == START + minutes(59)

    assert len(tried) < 20


@pytest.mark.parametrize("fields", ["* * 29 2 *", "* * 29 2 */6", "0 0 29 2 */6"])
def test_a_leap_day_that_was_missed_is_counted_and_the_next_one_found(fields: str) -> None:
    spec = parse(f"@cron {fields}", default_zone="America/New_York")
    first = spec.first(datetime(2048, 1, 1, tzinfo=UTC))
    assert (first.year, first.month) == (2048, 2)

    found = due(spec, next_run_at=first, now=first + timedelta(days=300), catch_up="skip")

    assert found.skipped == (1440 if fields.startswith("*") else 1)
    assert found.next_run_at.year == (2052 if "/" not in fields else 2060)


def test_the_boundary_that_stands_for_a_skipped_day_is_counted() -> None:
    # Apia has no 30 December 2011.
    spec = parse("@cron 8,19 22,23,4 * * * Pacific/Apia", default_zone="UTC")
    assert isinstance(spec, Cron)
    start = datetime(2011, 12, 30, 2, 43, 30, tzinfo=UTC)

    assert spec.count(start, start + timedelta(days=3)) == 19


def test_boundaries_are_counted_right_from_within_an_hour_that_came_back_over_midnight() -> None:
    # Casey set its clocks back from 02:00 to 23:00 of the day before.
    spec = parse("@cron 5,48,43,51 * * * * Antarctica/Casey", default_zone="UTC")
    assert isinstance(spec, Cron)
    start = datetime(2010, 3, 4, 15, 23, tzinfo=UTC)
    end = datetime(2010, 3, 5, 23, 26, tzinfo=UTC)
    walked, moment = 0, start
    while (moment := spec.after(moment)) <= end:
        walked += 1

    assert spec.count(start, end) == walked == 128


def test_what_was_missed_longer_ago_than_is_counted_is_no_negative_count() -> None:
    spec = parse("@cron 0-59 0-23 29 2 *", default_zone="UTC")
    now = datetime(2026, 11, 30, tzinfo=UTC)

    found = due(spec, next_run_at=now - timedelta(days=8 * 365), now=now, catch_up="latest")

    assert (len(found.fire), found.skipped) == (1, 0)


def test_every_keeps_its_own_seconds_when_it_skips_forward() -> None:
    odd = START + timedelta(seconds=7, microseconds=123_456)

    done = after("@every 90s", timedelta(days=3), "latest", start=odd)

    assert (done.next_run_at - odd) % seconds(90) == seconds(0)
    assert seconds(0) < done.next_run_at - (odd + timedelta(days=3)) <= seconds(90)


def test_a_fortnight_down_over_a_change_of_the_clocks_keeps_the_time_of_day() -> None:
    spec = read("@cron 30 2 * * * America/New_York")
    start = datetime(2026, 3, 1, 7, 30, tzinfo=UTC)

    done = due(spec, next_run_at=start, now=start + timedelta(days=13), catch_up="all")

    assert [f"{boundary:%d %H:%M}" for boundary in done.fire] == [
        "01 07:30",
        "02 07:30",
        "03 07:30",
        "04 07:30",
        "05 07:30",
        "06 07:30",
        "07 07:30",
        "08 07:00",
        "09 06:30",
        "10 06:30",
        "11 06:30",
        "12 06:30",
        "13 06:30",
        "14 06:30",
    ]
    assert done.next_run_at == datetime(2026, 3, 15, 6, 30, tzinfo=UTC)


@settings(max_examples=200, deadline=None)
@given(
    spec=st.sampled_from(
        [
            "@every 1s",
            "@every 7s",
            "@every 5m",
            "@every 3h",
            "@every 1d",
            "@cron * * * * *",
            "@cron */7 * * * *",
            "@cron 30 2 * * * America/New_York",
            "@cron 0 */6 * * * Australia/Lord_Howe",
            "@cron 0 0 1 * 1",
        ]
    ),
    catch_up=st.sampled_from(POLICIES),
    late=st.one_of(
        st.timedeltas(timedelta(0), timedelta(seconds=30)),
        st.timedeltas(timedelta(0), timedelta(days=2)),
    ),
)
def test_every_boundary_is_fired_or_counted_exactly_once(
    spec: str, catch_up: CatchUp, late: timedelta
) -> None:
    parsed = read(spec)
    start = parsed.after(START)
    now = start + late
    passed, following = 0, start
    fires_and_more: set[datetime] = set()
    while following <= now and passed < 5000:
        passed += 1
        fires_and_more.add(following)
        following = parsed.after(following)
    if following <= now:
        return  # a walk that takes too long

    done = due(parsed, next_run_at=start, now=now, catch_up=catch_up)

    assert list(done.fire) == sorted(set(done.fire))
    assert set(done.fire) <= fires_and_more
    assert len(done.fire) <= 64
    assert len(done.fire) + done.skipped == passed
    assert done.next_run_at == following > now
