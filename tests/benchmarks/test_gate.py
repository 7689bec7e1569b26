"""The benchmarks' gate: what it lets pass, what it says, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import gate, statements
from benchmarks.command import main

KNOWN = {
    "statements, UPDATE message": 10.0,
    "WAL records": 3_000.0,
    "WAL bytes": 300_000.0,
    "free-running statements": 20.0,
}


def differences(**changed: float) -> list[str]:
    found = {**KNOWN, **{name.replace("_", " "): value for name, value in changed.items()}}
    return [str(each) for each in gate.differences({"consumer": found}, {"consumer": KNOWN})]


def test_the_same_counters_pass() -> None:
    assert differences() == []


def test_a_statement_more_fails_with_scenario_counter_expected_and_found() -> None:
    found = {**KNOWN, "statements, SELECT message": 10.0}
    assert [str(d) for d in gate.differences({"consumer": found}, {"consumer": KNOWN})] == [
        "consumer: statements, SELECT message: expected 0 for 1,000 messages, found 10"
    ]


def test_a_statement_less_fails_too() -> None:
    found = {**KNOWN, "statements, UPDATE message": 9.0}
    assert len(list(gate.differences({"consumer": found}, {"consumer": KNOWN}))) == 1


@pytest.mark.parametrize(("records", "failures"), [(3_300.0, 0), (3_301.0, 1), (2_699.0, 1)])
def test_wal_records_may_differ_by_a_tenth(records: float, failures: int) -> None:
    assert len(differences(WAL_records=records)) == failures


def test_wal_bytes_are_only_shown() -> None:
    assert differences(WAL_bytes=1.0) == []


def test_what_timing_decides_has_an_upper_bound_only() -> None:
    found = {**KNOWN, "free-running statements": 61.0}
    assert [str(d) for d in gate.differences({"consumer": found}, {"consumer": KNOWN})] == [
        (
            "consumer: free-running statements: expected at most 60 (timing decides) for 1,000 "
            "messages, found 61"
        )
    ]


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("BEGIN", "BEGIN"),
        ("SELECT 1", "SELECT"),
        ("SELECT id FROM django_outbox_message FOR UPDATE", "SELECT message"),
        ("WITH a AS (SELECT 1) UPDATE django_outbox_message AS m SET x = 1", "UPDATE message"),
        ("DELETE FROM django_outbox_message USING lease", "DELETE message"),
    ],
)
def test_a_statement_is_named_by_verb_and_table(statement: str, kind: str) -> None:
    assert statements.kind(statement) == kind


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plot", "nowhere"], "--plot draws what 'deep/*' finds, and none of it is to be"),
        (["--server", "mysql://x"], "The server cannot be used: its address has to begin with"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")

    with pytest.raises(SystemExit) as ended:
        sys.exit(main(["latency/idle", *arguments]))

    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(said)
    assert printed.count("\n") == 1
    assert not Path("nowhere").exists()


def test_an_unknown_scenario_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consumer/nope"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("No scenario is called 'consumer/nope'. There are: producer/single, ")
    assert said.count("\n") == 1
