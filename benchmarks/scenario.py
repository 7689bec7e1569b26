"""What a scenario is, and which there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

Samples = Mapping[str, Sequence[float]]
"""The values of each figure, one or more a round. The figure's name ends with its unit."""


@dataclass(frozen=True)
class Plan:
    """How much to measure: `messages` in place of a scenario's own number, and the rounds."""

    messages: int | None = None
    rounds: int = 3

    def size(self, usual: int) -> int:
        """Return how many messages to use where a scenario usually uses so many."""
        return self.messages or usual


Work = Callable[[int], Counter[str]]
"""Does some work for so many messages, and returns how many statements of each kind it ran."""


@dataclass(frozen=True)
class Counted:
    """Work whose statements, rows and WAL are counted, for `messages` and for twice as many.

    `prepare` is not counted. `work` returns the statements it has run, by kind. `free` is the same
    work where timing decides how much one statement does; it is only held below a bound.
    """

    work: Work
    prepare: Callable[[int], object] = lambda _: None
    messages: int = 1_000
    free: Work | None = None
    free_messages: int = 20_000


@dataclass(frozen=True)
class Scenario:
    """One thing that is measured.

    `measure` is called once a round, rounds of different scenarios in turn; if it `has_rounds` of
    its own, since its tables take long to fill, once. Where it `is_slow` it runs only by name.
    """

    name: str
    summary: str
    measure: Callable[[Plan], Samples]
    count: Counted | None = None
    has_rounds: bool = False
    is_slow: bool = False


class UnknownScenario(Exception):
    """No scenario has a name that was given."""


def select(known: Sequence[Scenario], patterns: Sequence[str]) -> list[Scenario]:
    """Return the scenarios that match a name or glob, all but the slow ones without any."""
    if not patterns:
        return [scenario for scenario in known if not scenario.is_slow]
    for pattern in patterns:
        if not any(fnmatchcase(scenario.name, pattern) for scenario in known):
            names = ", ".join(scenario.name for scenario in known)
            raise UnknownScenario(f"No scenario is called {pattern!r}. There are: {names}.")
    return [s for s in known if any(fnmatchcase(s.name, pattern) for pattern in patterns)]
