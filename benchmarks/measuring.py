"""Measure scenarios round by round, in turns, so that a machine that gets slower slows all."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from benchmarks.counting import Counters, count
from benchmarks.scenario import Plan, Scenario

Measured = dict[str, dict[str, list[float]]]
"""The samples of each figure of each scenario."""


def measure_all(scenarios: Sequence[Scenario], plan: Plan) -> Measured:
    """Return the samples of all figures."""
    measured: Measured = {scenario.name: {} for scenario in scenarios}
    for number in range(1, plan.rounds + 1):
        for scenario in scenarios:
            if number == 1 or not scenario.has_rounds:
                progress(f"{scenario.name}, round {number} of {plan.rounds}")
                _add(measured[scenario.name], scenario.measure(plan))
    return measured


def count_all(scenarios: Sequence[Scenario], plan: Plan) -> dict[str, Counters]:
    """Return the counters of those scenarios that have any."""
    counted = {}
    for scenario in scenarios:
        if scenario.count is not None:
            progress(f"{scenario.name}, counting")
            free = plan.size(scenario.count.free_messages)
            counted[scenario.name] = count(scenario.count, free_messages=free)
    return counted


def _add(collected: dict[str, list[float]], samples: Mapping[str, Sequence[float]]) -> None:
    for figure, values in samples.items():
        collected.setdefault(figure, []).extend(values)


def progress(text: str) -> None:
    """Tell who waits what is being done."""
    print(f"… {text}", file=sys.stderr, flush=True)
