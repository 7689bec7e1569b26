"""The report says what was done and what was found."""

from __future__ import annotations

from tests.faults.checks import Finding
from tests.faults.ledger import Ledger
from tests.faults.nemesis import Deed
from tests.faults.report import Run, markdown

KILL = Deed(65.25, 0.5, "kill a worker", "SIGKILL to worker-1", is_done=True)
NOTHING = Deed(70.0, 15.0, "kill the leader", "not done: nobody led", is_done=False)


def report(*violations: str) -> str:
    findings = [Finding("Nothing is lost", list(violations))]
    return markdown(Run("the command", "PostgreSQL", 90.0, [KILL, NOTHING], findings, Ledger()))


def test_a_good_run_says_so_and_counts_only_the_faults_that_happened() -> None:
    text = report()

    assert "1 faults of 1 kinds in 1.5 minutes. Every promise held." in text
    assert "| Nothing is lost | none |" in text
    assert "| 1:05.2 | 0.5 s | kill a worker | SIGKILL to worker-1 |" in text
    assert "| kill the leader | not done: nobody led |" in text


def test_a_bad_run_shows_the_first_violations_and_how_many_more_there_are() -> None:
    text = report(*(f"message {n} is gone" for n in range(25)))

    assert "**25 violations were found.**" in text
    assert "| Nothing is lost | 25 |" in text
    assert "- message 19 is gone\n- and 5 more" in text
