"""Specs: what is accepted, what is refused and how, and which moments they stand for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from django_outbox import outbox
from django_outbox.scheduling.specs import Every, Spec, parse


def read(spec: str) -> Spec:
    return parse(spec, default_zone="UTC")


def moment(text: str) -> datetime:
    """Return the moment that an ISO 8601 text names, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def boundaries(spec: str, after: datetime) -> Iterator[datetime]:
    """Yield the boundaries of the spec later than this moment, and see that each is later."""
    parsed, boundary = read(spec), after
    while True:
        following = parsed.after(boundary).astimezone(UTC)
        assert following > boundary
        boundary = following
        yield boundary


def between(spec: str, start: str, end: str) -> list[str]:
    """Return the boundaries later than `start` and earlier than `end`, as UTC."""
    found: list[str] = []
    for boundary in boundaries(spec, moment(start)):
        if boundary >= moment(end):
            return found
        found.append(f"{boundary:%Y-%m-%dT%H:%MZ}")
    raise AssertionError("There is always a next one")


def on_the_local_day(spec: str, day: str, zone: str) -> list[datetime]:
    """Return the boundaries on that day of the zone's calendar."""
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    end = (start + timedelta(days=1)).astimezone(UTC)
    found: list[datetime] = []
    for boundary in boundaries(f"{spec} {zone}", start.astimezone(UTC) - timedelta(seconds=1)):
        if boundary >= end:
            return found
        found.append(boundary)
    raise AssertionError("There is always a next one")


@pytest.mark.parametrize(
    ("spec", "step"),
    [
        ("@every 1s", timedelta(seconds=1)),
        ("@every 30s", timedelta(seconds=30)),
        ("@every 5m", timedelta(minutes=5)),
        ("@every 90m", timedelta(minutes=90)),
        ("@every 12h", timedelta(hours=12)),
        ("@every 7d", timedelta(days=7)),
        ("@every 100000s", timedelta(seconds=100_000)),
    ],
)
def test_every_takes_a_positive_number_and_one_of_four_units(spec: str, step: timedelta) -> None:
    assert read(spec) == Every(step)


NEARLY_EVERY = [
    ("@every 5 m", "'@every 5m'"),
    ("@every  5m", "'@every 5m'"),
    ("@every\t5m", "'@every 5m'"),
    ("@every5m", "'@every 5m'"),
    ("every 5m", "'@every 5m'"),
    ("@EVERY 5m", "'@every 5m'"),
    ("@every 5M", "'@every 5m'"),
    (" @every 5m", "'@every 5m'"),
    ("@every 5m ", "'@every 5m'"),
    ("@every 5m\n", "'@every 5m'"),
    ("@every 05m", "'@every 5m'"),
    ("@every 5min", "'@every 5m'"),
    ("@every 10 seconds", "'@every 10s'"),
    ("@every 5", "'@every 5m'"),
]


@pytest.mark.parametrize(("spec", "nearest"), NEARLY_EVERY)
def test_what_is_nearly_an_every_is_refused_with_what_to_write(spec: str, nearest: str) -> None:
    with pytest.raises(outbox.InvalidSpec) as caught:
        read(spec)

    assert nearest in str(caught.value)
    assert repr(spec) in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        " ",
        "@every",
        "@every ",
        "@every m",
        "@every 0s",
        "@every 00s",
        "@every -5s",
        "@every +5s",
        "@every 1.5h",
        "@every 1_000s",
        "@every 1e3s",
        "@every 1h30m",
        "@every 5w",
        "@every 5y",
        "@every \u0665m",  # a digit of another script
        "@every \uff15m",
        "@every 5m Europe/Berlin",
        "@every 5m\x00",
        "@at 12:00",
        "@cron",
        "@reboot",
        "tomorrow",
    ],
)
def test_anything_else_is_refused_with_both_forms_that_are_accepted(spec: str) -> None:
    with pytest.raises(outbox.InvalidSpec) as caught:
        read(spec)

    assert "@every <n><s|m|h|d>" in str(caught.value)
    assert "@cron <five fields> [zone]" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "cron"),
    [
        ("*/5 * * * *", "'@cron */5 * * * *'"),
        ("0 6 * * *", "'@cron 0 6 * * *'"),
        ("30 7 * * MON-FRI Europe/Berlin", "'@cron 30 7 * * MON-FRI Europe/Berlin'"),
        ("@hourly", "'@cron 0 * * * *'"),
        ("@daily", "'@cron 0 0 * * *'"),
        ("@midnight", "'@cron 0 0 * * *'"),
        ("@weekly", "'@cron 0 0 * * 0'"),
        ("@monthly", "'@cron 0 0 1 * *'"),
        ("@yearly", "'@cron 0 0 1 1 *'"),
        ("@annually", "'@cron 0 0 1 1 *'"),
    ],
)
def test_a_cron_without_its_sign_is_refused_with_the_cron_to_write(spec: str, cron: str) -> None:
    with pytest.raises(outbox.InvalidSpec) as caught:
        read(spec)

    assert cron in str(caught.value)
    read(cron.strip("'"))


@pytest.mark.parametrize("spec", [None, 5, 5.0, b"@every 5m", ["@every 5m"], timedelta(minutes=5)])
def test_what_is_no_text_is_refused(spec: object) -> None:
    with pytest.raises(outbox.InvalidSpec, match="is a str"):
        read(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["@every 500ms", "@every 5mo", "@every 5months"])
def test_a_unit_that_means_something_else_is_not_taken_for_minutes(spec: str) -> None:
    with pytest.raises(outbox.InvalidSpec) as caught:
        read(spec)

    assert "m'." not in str(caught.value)


@pytest.mark.parametrize("spec", [f"@every {'9' * 5000}s", f"every {'9' * 5000}"])
def test_a_number_of_any_length_is_refused_as_a_spec(spec: str) -> None:
    with pytest.raises(outbox.InvalidSpec):
        read(spec)


@pytest.mark.parametrize("spec", ["@every 3000000d", "@every 99999999999999999999d"])
def test_a_step_past_the_year_9999_is_refused(spec: str) -> None:
    with pytest.raises(outbox.InvalidSpec, match="9999"):
        read(spec)


@pytest.mark.parametrize(
    ("spec", "after", "right"),
    [
        ("@cron * * * * *", "2026-06-01T00:00:30Z", "2026-06-01T00:01Z"),
        ("@cron */15 * * * *", "2026-06-01T00:00Z", "2026-06-01T00:15Z"),
        ("@cron 5,10-12 * * * *", "2026-06-01T00:05Z", "2026-06-01T00:10Z"),
        ("@cron 10-30/10 * * * *", "2026-06-01T00:21Z", "2026-06-01T00:30Z"),
        ("@cron 00 06 * * *", "2026-06-01T06:00Z", "2026-06-02T06:00Z"),
        ("@cron 59 23 31 12 *", "2026-06-01T00:00Z", "2026-12-31T23:59Z"),
        ("@cron 0 0 1 JAN,jul *", "2026-06-01T00:00Z", "2026-07-01T00:00Z"),
        ("@cron 0 0 1 Feb-Apr *", "2026-06-01T00:00Z", "2027-02-01T00:00Z"),
        ("@cron 0 9 * * MON-FRI", "2026-06-05T09:00Z", "2026-06-08T09:00Z"),
        ("@cron 0 9 * * sun", "2026-06-01T00:00Z", "2026-06-07T09:00Z"),
        ("@cron 0 9 * * 0", "2026-06-01T00:00Z", "2026-06-07T09:00Z"),
        ("@cron 0 9 * * 7", "2026-06-01T00:00Z", "2026-06-07T09:00Z"),
        ("@cron 0 9 * * 5-7", "2026-06-06T09:00Z", "2026-06-07T09:00Z"),
        ("@cron 0 0 29 2 *", "2026-06-01T00:00Z", "2028-02-29T00:00Z"),
        ("@cron 0 0 29 2 *", "2097-01-01T00:00Z", "2104-02-29T00:00Z"),
        ("@cron 0 0 31 * *", "2026-06-01T00:00Z", "2026-07-31T00:00Z"),
        ("@cron 30 7 * * * Europe/Berlin", "2026-06-01T00:00Z", "2026-06-01T05:30Z"),
        ("@cron 30 7 * * * Asia/Kathmandu", "2026-06-01T00:00Z", "2026-06-01T01:45Z"),
        ("@cron 0 12 * * * America/Argentina/Salta", "2026-06-01T00Z", "2026-06-01T15:00Z"),
    ],
)
def test_a_cron_of_five_fields_and_a_zone_is_accepted(spec: str, after: str, right: str) -> None:
    assert next(boundaries(spec, moment(after))) == moment(right)


@pytest.mark.parametrize(
    ("spec", "after", "right"),
    [
        ("@cron 48 14 31 6 0", "2026-06-01T00:00Z", "2026-06-07T14:48Z"),
        ("@cron 0 0 1 * 1", "2026-10-02T00:00Z", "2026-10-05T00:00Z"),
        ("@cron 0 0 1 * 1", "2026-10-27T00:00Z", "2026-11-01T00:00Z"),
        ("@cron 0 0 31 2 1", "2026-01-01T00:00Z", "2026-02-02T00:00Z"),
    ],
)
def test_day_of_month_or_day_of_week_is_enough(spec: str, after: str, right: str) -> None:
    # E33
    assert next(boundaries(spec, moment(after))) == moment(right)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("@cron * * * *", "4 fields"),
        ("@cron 0 0 0 * * * UTC", "7 fields"),
        ("@cron */5 * * * * *", "seconds"),
        ("@cron 60 * * * *", "minute"),
        ("@cron -1 * * * *", "minute"),
        ("@cron 0 24 * * *", "hour"),
        ("@cron 0 0 0 * *", "day of month"),
        ("@cron 0 0 32 * *", "day of month"),
        ("@cron 0 0 * 0 *", "month"),
        ("@cron 0 0 * 13 *", "month"),
        ("@cron 0 0 * FOO *", "month"),
        ("@cron 0 0 * MON *", "month"),
        ("@cron 0 0 * * 8", "day of week"),
        ("@cron 0 0 * * JAN", "day of week"),
        ("@cron 0 0 * * MONDAY", "day of week"),
        ("@cron 0 JAN * * *", "hour"),
        ("@cron */0 * * * *", "step"),
        ("@cron */60 * * * *", "step"),
        ("@cron 0 */24 * * *", "step"),
        ("@cron 0 0 */32 * *", "step"),
        ("@cron 0 0 1 */13 *", "step"),
        ("@cron 0 0 * * */8", "step"),
        ("@cron */-5 * * * *", "step"),
        ("@cron */ * * * *", "step"),
        ("@cron */5/5 * * * *", "step"),
        ("@cron 30-10 * * * *", "backwards"),
        ("@cron 1- * * * *", "minute"),
        ("@cron 1,,2 * * * *", "minute"),
        ("@cron , * * * *", "minute"),
        ("@cron 1.5 * * * *", "minute"),
        ("@cron \u0665 * * * *", "minute"),
        ("@cron ? * * * *", "minute"),
        ("@cron ** * * * *", "minute"),
        ("@cron 0 0 L * *", "day of month"),
        ("@cron 0 0 15W * *", "day of month"),
        ("@cron 0 0 ? * *", "day of month"),
        ("@cron 0 0 * * 5L", "day of week"),
        ("@cron 0 0 * * 1#2", "day of week"),
        ("@cron H * * * *", "minute"),
    ],
)
def test_a_cron_beyond_its_fields_is_refused_and_says_which_field(spec: str, says: str) -> None:
    with pytest.raises(outbox.InvalidSpec) as caught:
        read(spec)

    assert says in str(caught.value)
    assert repr(spec) in str(caught.value)


@pytest.mark.parametrize("spec", ["@cron 0 9 * * MON ", "@cron 0 9 * * MON  ", "@cron 0 9 * * * "])
def test_a_cron_whose_zone_is_blank_is_refused(spec: str) -> None:
    with pytest.raises(outbox.InvalidSpec, match="ends with a space, as if its zone"):
        read(spec)


@pytest.mark.parametrize("space", ["\t", "\n", "\r", "\x1f", "\u00a0", "\u2028"])
@pytest.mark.parametrize(
    "spec", ["@cron 0 9{}* * MON", "@cron 0 9 * * MON{}", "@cron 0 9 * * MON{}UTC"]
)
def test_only_spaces_separate_the_fields(spec: str, space: str) -> None:
    with pytest.raises(outbox.InvalidSpec, match="Separate the fields with spaces"):
        read(spec.format(space))


def test_fields_may_stand_in_columns() -> None:
    assert read("@cron  0  9 * *   MON Asia/Tokyo") == read("@cron 0 9 * * MON Asia/Tokyo")


@pytest.mark.parametrize(
    ("spec", "field"), [("0 0 * * fr\u0131", "week"), ("0 0 * \u017fep *", "month")]
)
def test_a_name_in_letters_of_another_script_is_refused(spec: str, field: str) -> None:
    with pytest.raises(outbox.InvalidSpec, match=field):
        read(f"@cron {spec}")


@pytest.mark.parametrize(
    "zone",
    [
        "localtime",
        "Factory",
        "Europe/Atlantis",
        "Berlin",
        "+02:00",
        "/usr/share/zoneinfo/Europe/Berlin",
        "/etc/localtime",
        "../Europe/Berlin",
        "Europe/../Europe/Berlin",
        "./UTC",
        "Europe",
        "Europe/",
        "zone.tab",
        "Europe/Berlin\x00",
        "Z" * 300,
    ],
)
def test_a_zone_that_is_a_path_or_unknown_is_refused(zone: str) -> None:
    with pytest.raises(outbox.InvalidSpec, match="IANA name such as Europe/Berlin"):
        read(f"@cron 0 0 * * * {zone}")


@pytest.mark.parametrize(
    "fields",
    [
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 31 4 *",
        "0 0 31 2,4,6 *",
        "0 0 31 4,6,9,11 *",
        "0 0 30-31 FEB *",
        "* * 31 2 *",
        "0 0 31 2 */2",
    ],
)
def test_a_date_that_never_comes_is_refused_in_no_time(fields: str) -> None:
    # E31
    began = time.monotonic()

    with pytest.raises(outbox.InvalidSpec, match="never"):
        read(f"@cron {fields}")

    assert time.monotonic() - began < 1


def test_a_cron_without_a_zone_goes_by_the_default() -> None:
    noon = parse("@cron 0 12 * * *", default_zone="Asia/Almaty")

    assert noon.after(moment("2026-06-01T00:00Z")) == moment("2026-06-01T07:00Z")


def test_a_zone_of_its_own_is_not_mixed_up_with_the_default() -> None:
    # E07
    third = parse("@cron 0 11 3 * * UTC", default_zone="Asia/Almaty")

    assert third.after(moment("2026-06-03T10:59:59Z")) == moment("2026-06-03T11:00Z")
    assert third.after(moment("2026-06-03T11:00Z")) == moment("2026-07-03T11:00Z")
    assert third.after(moment("2026-06-03T11:01Z")) == moment("2026-07-03T11:00Z")


def test_a_daily_job_fires_once_a_day_when_the_clocks_go_back() -> None:
    # E01
    assert between("@cron 0 12 * * * America/New_York", "2026-10-31T00Z", "2026-11-03T00Z") == [
        "2026-10-31T16:00Z",
        "2026-11-01T17:00Z",
        "2026-11-02T17:00Z",
    ]


@pytest.mark.parametrize(
    ("spec", "right"),
    [
        ("0 2 * * *", ["2026-03-07T07:00Z", "2026-03-08T07:00Z", "2026-03-09T06:00Z"]),
        ("30 2 * * *", ["2026-03-07T07:30Z", "2026-03-08T07:00Z", "2026-03-09T06:30Z"]),
        ("59 2 * * *", ["2026-03-07T07:59Z", "2026-03-08T07:00Z", "2026-03-09T06:59Z"]),
    ],
)
def test_a_time_that_is_skipped_fires_at_the_first_moment_after_the_gap(
    spec: str, right: list[str]
) -> None:
    # E03
    spec = f"@cron {spec} America/New_York"

    assert between(spec, "2026-03-07T05:00Z", "2026-03-10T04:00Z") == right


def test_boundaries_at_one_instant_are_one() -> None:
    # 02:00, 02:30 and 03:00 all fall on 03:00 that day.
    assert between(
        "@cron 0,30 2,3 * * * America/New_York", "2026-03-08T05:00Z", "2026-03-09T06:01Z"
    ) == ["2026-03-08T07:00Z", "2026-03-08T07:30Z", "2026-03-09T06:00Z"]


def test_a_time_that_comes_twice_fires_the_first_time() -> None:
    assert between("@cron 30 1 * * * America/New_York", "2026-10-31T04Z", "2026-11-03T05Z") == [
        "2026-10-31T05:30Z",
        "2026-11-01T05:30Z",
        "2026-11-02T06:30Z",
    ]


@pytest.mark.parametrize(
    ("day", "fields", "count"),
    [
        ("2026-03-08", "*/15 * * * *", 92),
        ("2026-11-01", "*/15 * * * *", 100),
        ("2026-03-08", "0 * * * *", 23),
        ("2026-11-01", "0 * * * *", 25),
        ("2026-07-01", "0 * * * *", 24),
        ("2026-11-01", "* * * * *", 25 * 60),
        ("2026-11-01", "*/30 1 * * *", 4),
        ("2026-11-01", "0,30 1 * * *", 2),
        ("2026-03-08", "*/30 2 * * *", 0),
        ("2026-03-08", "0,30 2 * * *", 1),
    ],
)
def test_a_rhythm_runs_in_elapsed_time_and_a_time_of_day_does_not(
    day: str, fields: str, count: int
) -> None:
    # E05
    assert len(on_the_local_day(f"@cron {fields}", day, "America/New_York")) == count


@pytest.mark.parametrize("day", ["2026-03-08", "2026-11-01"])
@pytest.mark.parametrize(("fields", "minutes"), [("*/15 * * * *", 15), ("0 * * * *", 60)])
def test_a_rhythm_keeps_its_step_through_a_change(day: str, fields: str, minutes: int) -> None:
    # E05
    fires = on_the_local_day(f"@cron {fields}", day, "America/New_York")

    steps = {later - earlier for earlier, later in pairwise(fires)}
    assert steps == {timedelta(minutes=minutes)}


@pytest.mark.parametrize(
    ("fields", "right"),
    [
        # Clocks go from 02:00 to 02:30 on 4 October.
        ("15 2 * * *", ["2026-10-02T15:45Z", "2026-10-03T15:30Z", "2026-10-04T15:15Z"]),
        ("0 2 * * *", ["2026-10-02T15:30Z", "2026-10-03T15:30Z", "2026-10-04T15:00Z"]),
        ("30 2 * * *", ["2026-10-02T16:00Z", "2026-10-03T15:30Z", "2026-10-04T15:30Z"]),
    ],
)
def test_lord_howe_skips_half_an_hour(fields: str, right: list[str]) -> None:
    spec = f"@cron {fields} Australia/Lord_Howe"

    assert between(spec, "2026-10-02T14Z", "2026-10-05T14Z") == right


@pytest.mark.parametrize(
    ("fields", "right"),
    [
        # Clocks go from 02:00 back to 01:30 on 5 April.
        ("45 1 * * *", ["2026-04-03T14:45Z", "2026-04-04T14:45Z", "2026-04-05T15:15Z"]),
        ("30 1 * * *", ["2026-04-03T14:30Z", "2026-04-04T14:30Z", "2026-04-05T15:00Z"]),
        ("0 2 * * *", ["2026-04-03T15:00Z", "2026-04-04T15:30Z", "2026-04-05T15:30Z"]),
    ],
)
def test_lord_howe_repeats_half_an_hour(fields: str, right: list[str]) -> None:
    spec = f"@cron {fields} Australia/Lord_Howe"

    assert between(spec, "2026-04-03T13:30Z", "2026-04-06T13:30Z") == right


@pytest.mark.parametrize(("day", "count"), [("2026-10-04", 94), ("2026-04-05", 98)])
def test_a_rhythm_on_lord_howe_keeps_its_15_minutes(day: str, count: int) -> None:
    fires = on_the_local_day("@cron */15 * * * *", day, "Australia/Lord_Howe")

    assert len(fires) == count
    assert {later - earlier for earlier, later in pairwise(fires)} == {timedelta(minutes=15)}


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Phoenix"])
@pytest.mark.parametrize("day", ["2026-03-08", "2026-10-04", "2026-10-25", "2026-11-01"])
def test_a_zone_without_summer_time_has_24_hours_every_day(zone: str, day: str) -> None:
    assert len(on_the_local_day("@cron 0 * * * *", day, zone)) == 24
    assert len(on_the_local_day("@cron 30 2 * * *", day, zone)) == 1


def test_a_day_that_a_zone_leaves_out_fires_at_its_end() -> None:
    # Samoa had no 30 December 2011; its noon fell on the first moment of the 31st.
    assert between("@cron 0 12 * * * Pacific/Apia", "2011-12-29T12Z", "2011-12-31T12Z") == [
        "2011-12-29T22:00Z",
        "2011-12-30T10:00Z",
        "2011-12-30T22:00Z",
    ]
