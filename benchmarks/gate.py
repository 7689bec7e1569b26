"""The gate: counters against those that were committed.

Statements and rows must be the same, in either direction: fewer are good news, and belong into the
baseline. WAL records may differ by a tenth, as page layouts do. Where timing decides, in a worker
that runs free, there is only an upper bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.counting import FREE, PER, Counters

BASELINE = Path(__file__).with_name("baseline.json")

TOLERANCE = 0.1
MOST_FREE = 3.0
"""How many times the baseline's statements a free-running worker may use.

A busy machine wakes its loop oftener for less: between none and all of what is claimed at once has
ended by then.
"""

SHOWN_ONLY = ("WAL bytes", "full-page images")


class NoBaseline(Exception):
    """Nothing has been committed to compare with."""


class Difference(NamedTuple):
    """A counter that is not what it should be."""

    scenario: str
    counter: str
    expected: str
    found: float

    def __str__(self) -> str:
        return (
            f"{self.scenario}: {self.counter}: expected {self.expected} for {PER:,} messages, "
            f"found {self.found:,g}"
        )


def differences(
    found: Mapping[str, Counters], baseline: Mapping[str, Counters]
) -> Iterator[Difference]:
    """Yield what differs from the baseline by more than it may."""
    for scenario, counters in found.items():
        known = baseline.get(scenario, {})
        for counter in sorted(known.keys() | counters.keys()):
            expected, is_good = _judge(counter, known.get(counter, 0.0), counters.get(counter, 0.0))
            if not is_good:
                yield Difference(scenario, counter, expected, counters.get(counter, 0.0))


def rule(counter: str) -> str:
    """Return in a word how a counter is compared."""
    if counter.endswith(SHOWN_ONLY):
        return "shown"
    if counter.startswith(FREE):
        return "bound"
    return "within 10 %" if counter == "WAL records" else "exact"


def _judge(counter: str, known: float, found: float) -> tuple[str, bool]:
    """Return what was expected, in words, and whether what was found is that."""
    match rule(counter):
        case "shown":
            return "anything", True
        case "bound":
            most = known * (MOST_FREE if counter.endswith("statements") else 1 + TOLERANCE)
            return f"at most {most:,g} (timing decides)", found <= most
        case "exact":
            return f"{known:,g}", found == known
    least, most = known * (1 - TOLERANCE), known * (1 + TOLERANCE)
    return f"{least:,g} to {most:,g}", least <= found <= most


def read_baseline(version: str) -> dict[str, Counters]:
    """Return the counters committed for a major version of PostgreSQL."""
    baseline = _read()
    if version not in baseline:
        there = ", ".join(baseline) or "none"
        raise NoBaseline(
            f"{BASELINE.name} has no counters for PostgreSQL {version} (there are: {there}). "
            "Write them with --update-baseline."
        )
    return dict(baseline[version])


def update_baseline(version: str, found: Mapping[str, Counters]) -> None:
    """Commit these counters to the file, and leave those of other scenarios and versions."""
    baseline = _read()
    counters = {**baseline.get(version, {}), **found}
    baseline[version] = dict(sorted(counters.items()))
    BASELINE.write_text(json.dumps(dict(sorted(baseline.items())), indent=2) + "\n")


def _read() -> dict[str, Any]:
    try:
        return dict(json.loads(BASELINE.read_text()))
    except FileNotFoundError:
        return {}
