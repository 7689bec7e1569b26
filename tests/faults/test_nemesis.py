"""The same seed gives the same faults."""

from __future__ import annotations

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


def test_every_kind_comes_before_any_comes_again() -> None:
    for lane in get_args(Lane):
        kinds = {fault.name for fault in FAULTS if fault.lane == lane}
        first = drawn(lane, 7, len(kinds))

        assert {name for name, _ in first} == kinds
