"""All scenarios, in the order in which they are listed and run."""

from __future__ import annotations

from benchmarks.scenario import Scenario
from benchmarks.scenarios import backlog, consumer, idle, latency, producer, ticks, timers

SCENARIOS: list[Scenario] = [
    *producer.SCENARIOS,
    *consumer.SCENARIOS,
    *latency.SCENARIOS,
    *timers.SCENARIOS,
    *ticks.SCENARIOS,
    *idle.SCENARIOS,
    *backlog.SCENARIOS,
]
