"""What a refused spec is answered with: what would work, or nothing when that is unsure."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import outbox
from django_outbox.scheduling.specs import parse


def refusal(spec: str) -> str:
    with pytest.raises(outbox.InvalidSpec) as caught:
        parse(spec, default_zone="UTC")
    return str(caught.value)


def suggested(spec: str) -> list[str]:
    """Return the specs that the refusal of this one suggests."""
    _, _, question = refusal(spec).partition("Did you mean ")
    return re.findall("'([^']+)'", question)


@pytest.mark.parametrize(
    ("spec", "right"),
    [
        ("5m", "@every 5m"),
        ("5 minutes", "@every 5m"),
        ("every 2 weeks", "@every 14d"),
        ("@every 1w", "@every 7d"),
        ("@every 1w12h", "@every 180h"),
        ("@every 1h30m", "@every 90m"),
        ("@every 1h 30m", "@every 90m"),
        ("@every 1m30s", "@every 90s"),
        ("@every 1d12h", "@every 36h"),
        ("@every 48hrs", "@every 48h"),
    ],
)
def test_another_way_to_write_an_interval_is_answered_with_the_same_interval(
    spec: str, right: str
) -> None:
    assert suggested(spec) == [right]


def test_a_missing_unit_may_be_two() -> None:
    assert suggested("@every 5") == ["@every 5s", "@every 5m"]


@pytest.mark.parametrize(
    ("spec", "right"),
    [
        ("@cron @daily", "@cron 0 0 * * *"),
        ("@cron @hourly", "@cron 0 * * * *"),
        ("@cron @weekly", "@cron 0 0 * * 0"),
        ("@cron @monthly", "@cron 0 0 1 * *"),
        ("@cron @yearly", "@cron 0 0 1 1 *"),
        ("@daily Europe/Berlin", "@cron 0 0 * * * Europe/Berlin"),
        ("daily", "@cron 0 0 * * *"),
        ("cron 0 3 * * *", "@cron 0 3 * * *"),
        ("@CRON 0 3 * * *", "@cron 0 3 * * *"),
        ("@cron\t0 3 * * *", "@cron 0 3 * * *"),
    ],
)
def test_another_way_to_write_a_cron_is_answered_with_the_cron(spec: str, right: str) -> None:
    assert suggested(spec) == [right]


@pytest.mark.parametrize(
    ("fields", "right"),
    [
        ("0 3 * * MON-SUN", "0 3 * * 1-7"),
        ("0 3 * * FRI-SUN", "0 3 * * 5-7"),
        ("0 3 * * SAT-TUE", "0 3 * * 6-7,1-2"),
        ("0 3 * * FRI-MON", "0 3 * * 5-7,1"),
        ("0 22-6 * * *", "0 22-23,0-6 * * *"),
        ("0 22-0 * * *", "0 22-23,0 * * *"),
        ("50-10 * * * *", "50-59,0-10 * * * *"),
        ("0 8,22-6 * * FRI-SUN", "0 8,22-23,0-6 * * 5-7"),
        ("0 3 25-5 * *", "0 3 25-31,1-5 * *"),
        ("0 3 1 NOV-FEB *", "0 3 1 11-12,1-2 *"),
    ],
)
def test_a_range_that_runs_backwards_is_answered_with_ranges_that_do_not(
    fields: str, right: str
) -> None:
    assert suggested(f"@cron {fields}") == [f"@cron {right}"]


@pytest.mark.parametrize(
    ("zone", "right"),
    [
        ("europe/berlin", ["Europe/Berlin"]),
        ("EUROPE/BERLIN", ["Europe/Berlin"]),
        ("utc", ["UTC"]),
        ("Berlin", ["Europe/Berlin"]),
        ("new_york", ["America/New_York"]),
        ("America/New York", ["America/New_York"]),
        ("Europ/Berlin", ["Europe/Berlin"]),
        ("Europe/Berlni", ["Europe/Berlin"]),
        ("Berlni", ["Europe/Berlin"]),
        ("Asia/Katmandoo", ["Asia/Katmandu"]),
        ("Louisville", ["America/Kentucky/Louisville", "America/Louisville"]),
    ],
)
def test_a_zone_that_is_nearly_right_is_answered_with_the_right_one(
    zone: str, right: list[str]
) -> None:
    assert suggested(f"@cron 0 3 * * * {zone}") == [f"@cron 0 3 * * * {name}" for name in right]


def test_all_that_is_wrong_is_mended_at_once() -> None:
    assert suggested("0 22-6 * * SAT-SUN berlin") == ["@cron 0 22-23,0-6 * * 6-7 Europe/Berlin"]


def test_a_wrong_zone_is_told_without_a_word_on_fields() -> None:
    assert refusal("@cron 0 3 * * * Europe/Atlantis") == (
        "'@cron 0 3 * * * Europe/Atlantis': 'Europe/Atlantis' is no zone. A zone is an IANA name "
        "such as Europe/Berlin."
    )


@pytest.mark.parametrize("sixth", ["*", "*/5", "MON", "1-5"])
def test_a_sixth_field_in_the_place_of_the_zone_is_told_that_there_are_no_seconds(
    sixth: str,
) -> None:
    assert "stands after five fields; there are no seconds" in refusal(f"@cron 0 0 3 * * {sixth}")


@pytest.mark.parametrize(
    "spec",
    [
        "tomorrow",
        "@every 5mo",
        "@every 500ms",
        "@every 5y",
        "@every 0s",
        "@every 0h0m",
        "@every 1h30",
        "@every 5m1h",
        "@every 5m5m",
        "@every 999999999w",
        "@cron 0 0 31 2 *",
        "@cron 0 22-6/2 * * *",  # in which step, after midnight?
        "@cron 0 24-6 * * *",
        "@cron 0 0 3 * * MON",
        "0 0 3 * * MON Europe/Berlin",  # seconds come first
        "@cron 0 0 3 * * */2 Europe/Berlin",
        "@cron 0 3 * * * GMT+2",  # Etc/GMT+2 is two hours behind
        "@cron 0 3 * * * UTC+2",
        "@cron 0 3 * * * CEST",
        "@cron 0 3 * * * WEST",  # not Australia/West
        "@cron 0 3 * * * Europe/Bern",
        "@cron 0 3 * * * Europe/Lublin",
        "@cron 0 3 * * * Salvador",
        "@cron 0 3 * * * Europe/",
    ],
)
def test_where_it_is_unsure_what_was_meant_nothing_is_suggested(spec: str) -> None:
    assert suggested(spec) == []


WORDS = """
@every every @cron cron @daily hourly 0 3 5 05 1h30m 1w 90 m min weeks * */5 22-6 1-5 7-2 31-1
MON-SUN SAT-TUE NOV-FEB L ? 1#2 , - / berlin Berlni UTC gmt+2 America/New York
"""
ODDS = st.lists(st.sampled_from(WORDS.split()), max_size=9).map(" ".join)


@given(ODDS | st.text(max_size=20) | st.from_regex(r"@every [0-9]{1,12}[a-z]{1,4}"))
def test_whatever_is_suggested_can_be_read(spec: str) -> None:
    try:
        parse(spec, default_zone="UTC")
    except outbox.InvalidSpec as error:
        _, _, question = str(error).partition(" Did you mean ")
        for meant in re.findall("'([^']+)'", question):
            parse(meant, default_zone="UTC")
