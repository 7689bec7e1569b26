"""The five fields of a cron, and which values a text in them stands for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True, slots=True)
class Field:
    """One of them: its name, its range, and the names of its values."""

    name: str
    low: int
    high: int
    names: dict[str, int] = field(default_factory=dict)

    def parse(self, text: str) -> set[int]:
        """Return the values the field's text stands for; raise `ValueError` with the reason."""
        values: set[int] = set()
        for part in text.split(","):
            values |= self._part(part)
        return values

    def _part(self, part: str) -> set[int]:
        span, slash, step_text = part.partition("/")
        if span == "*":
            low, high = self.low, self.high
        elif "-" in span:
            low_text, _, high_text = span.partition("-")
            low, high = self.value(low_text), self.value(high_text)
        else:
            low = self.value(span)
            high = self.high if slash else low
        if low > high:
            raise ValueError(f"the range {span!r} runs backwards")
        step = self._step(step_text) if slash else 1
        return set(range(low, high + 1, step))

    def value(self, text: str) -> int:
        """Return the value that a number or a name stands for; raise `ValueError` for none."""
        if text.isascii() and (named := self.names.get(text.upper())) is not None:
            return named
        if not re.fullmatch("[0-9]{1,4}", text):
            raise ValueError(f"{text!r} is no value")
        if not self.low <= int(text) <= self.high:
            raise ValueError(f"{text} lies outside of {self.low}-{self.high}")
        return int(text)

    def _step(self, text: str) -> int:
        if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= self.high:
            raise ValueError(f"the step {text!r} is none of 1-{self.high}")
        return int(text)


FIELDS = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of month", 1, 31),
    Field("month", 1, 12, {name: n for n, name in enumerate(_MONTHS, start=1)}),
    Field("day of week", 0, 7, {name: n for n, name in enumerate(_DAYS)}),
)
