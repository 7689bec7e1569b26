"""The same seed gives the same faults."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import get_args

from tests.faults.faults import FAULTS, Lane
from tests.faults.nemesis import sequence


def drawn(lane: Lane, seed: int, count: int = 60) -> list[tuple[str, float]]:
    return [(fault.name, chance.random()) for fault, chance in islice(sequence(lane, seed), count)]


def test_the_same_seed_gives_the_same_faults_with_the_same_chances() -> None:
    for lane in get_args(Lane):
        assert drawn(lane, 7) == drawn(lane, 7)
        assert drawn(lane, 7) != drawn(lane, 8)


def test_a_round_has_every_fault_as_often_as_its_weight_says() -> None:
    for lane in get_args(Lane):
        weights = {fault.name: fault.weight for fault in FAULTS if fault.lane == lane}
        round_ = drawn(lane, 7, sum(weights.values()))

        assert Counter(name for name, _ in round_) == weights
