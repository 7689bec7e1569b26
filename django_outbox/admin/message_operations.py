"""What is done to messages by hand: what is asked before, and how it is told of and logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..presence import LOST_AFTER
from ..store import Cursor
from ..store.messages import operating

MOST_NAMED = 100
"""Messages that the log names by their ids."""

_SKIPPED: dict[operating.Outcome, str] = {
    "gone": "no longer there",
    "leased": "leased by a worker",
    "run_out": "with a lease that has run out, to be released first",
    "due": "due already",
    "busy": "being changed by somebody else",
    "unleased": "without a lease",
    "changed": "leased anew since",
    "held": "held by a worker that lives",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What a page asks before something is done."""

    title: str
    text: str
    answer: str
    is_destructive: bool = False


CANCEL = Question(
    "Cancel messages",
    "A cancelled message is deleted and never delivered. One that a worker has leased by then is "
    "left alone.",
    "Yes, cancel",
    is_destructive=True,
)

RELEASE = Question(
    "Release messages from their leases",
    "A message is released if its lease has run out, or if its worker has not been seen for "
    f"{LOST_AFTER:g} s, and only from the lease that is shown here. Another worker may then take "
    "it at once; what the lost one has done of it is done again.",
    "Yes, release",
)


class Operation:
    """Something done to messages by hand, and how it went with each."""

    def __init__(self, open_cursor: Cursor) -> None:
        self.cursor = open_cursor
        self.outcomes: Mapping[int, operating.Outcome] = {}

    def ids(self, outcome: operating.Outcome) -> list[int]:
        """Return the messages with which it went so."""
        return sorted(id_ for id_, how in self.outcomes.items() if how == outcome)

    def told(self, done: str) -> str:
        """Return how many were done, and how many skipped and why."""
        return self._sentence(done, lambda ids: "")

    def logged(self, done: str) -> str:
        """Return the same with the ids."""
        return self._sentence(done, _listed)

    def _sentence(self, done: str, listed: Callable[[list[int]], str]) -> str:
        ids = self.ids("done")
        noun = "message" if len(ids) == 1 else "messages"
        skipped = [
            f"{len(left):,} {why}{listed(left)}"
            for outcome, why in _SKIPPED.items()
            if (left := self.ids(outcome))
        ]
        sentence = f"{len(ids):,} {noun} {done}{listed(ids)}."
        return f"{sentence} Skipped: {', '.join(skipped)}." if skipped else sentence


def _listed(ids: list[int]) -> str:
    shown = ", ".join(f"#{id_}" for id_ in ids[:MOST_NAMED])
    more = f" and {len(ids) - MOST_NAMED:,} more" if len(ids) > MOST_NAMED else ""
    return f" ({shown}{more})" if ids else ""
