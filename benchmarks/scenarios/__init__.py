"""All scenarios, in the order in which they are listed and run."""

from __future__ import annotations

from benchmarks.scenario import Scenario
from benchmarks.scenarios import backlog, consumer, latency, producer

SCENARIOS: list[Scenario] = [
    *producer.SCENARIOS,
    *consumer.SCENARIOS,
    *latency.SCENARIOS,
    *backlog.SCENARIOS,
]
