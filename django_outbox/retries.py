"""Retry strategies: pure functions from what has failed so far to how long to wait.

A strategy is anything with `next_delay(*, attempt, elapsed, exception) -> float | None`. Nothing
here reads a clock; jitter is the only chance involved.
"""

from __future__ import annotations

import math
import random
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, cast, runtime_checkable

FOREVER = 100 * 365 * 24 * 3600.0
"""The longest delay in seconds: a century, which every timestamp here can carry."""


@runtime_checkable
class RetryStrategy(Protocol):
    """What `@outbox.handler(retry=…)` accepts."""

    def next_delay(self, *, attempt: int, elapsed: float, exception: BaseException) -> float | None:
        """Return the seconds to wait before the next attempt, or None to give up.

        `attempt` counts the failed attempts so far, this one included; `elapsed` is the seconds
        since the first of them.
        """


@dataclass(frozen=True, kw_only=True)
class _Bounded:
    """What the strategies below share: their limits and the jitter.

    Jitter multiplies a delay by `1 + U(-f/2, +f/2)`, so 0.2 spreads it by a tenth either way.
    """

    max_attempts: int | None = None
    max_total_delay_seconds: float | None = None
    jitter_factor: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "max_attempts":
                _check_attempts(value)
            elif value is not None:
                _check_number(name, value)
        if not self.jitter_factor <= 2:
            raise ValueError(
                f"jitter_factor must lie between 0 and 2; it is {self.jitter_factor!r}."
            )

    def next_delay(self, *, attempt: int, elapsed: float, exception: BaseException) -> float | None:
        """Return the seconds to wait before the next attempt, or None to give up."""
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        delay = self._cap(self._delay(attempt) * self._jitter())
        total = self.max_total_delay_seconds
        if total is not None and elapsed + delay > total:
            return None
        return min(delay, FOREVER)

    def _delay(self, attempt: int) -> float:
        raise NotImplementedError

    def _cap(self, delay: float) -> float:
        return delay

    def _jitter(self) -> float:
        half = self.jitter_factor / 2
        return 1 + random.uniform(-half, half) if half else 1.0  # noqa: S311 - no secret


def _check_attempts(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_attempts must be an int; {value!r} is not.")
    if value < 1:
        raise ValueError(f"max_attempts must be at least 1; it is {value!r}.")


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = "; a timedelta has total_seconds()" if isinstance(value, timedelta) else ""
        raise TypeError(f"{name} must be a number; {value!r} is not{hint}.")
    if not value >= 0:
        raise ValueError(f"{name} must not be negative; it is {value!r}.")


@dataclass(frozen=True)
class NoRetry(_Bounded):
    """Give up at the first failure."""

    def next_delay(self, *, attempt: int, elapsed: float, exception: BaseException) -> float | None:
        """Return None: there is no next attempt."""
        return None


@dataclass(frozen=True)
class ConstantRetry(_Bounded):
    """Wait the same time before every attempt."""

    delay_seconds: float

    def _delay(self, attempt: int) -> float:
        return self.delay_seconds


@dataclass(frozen=True)
class LinearRetry(_Bounded):
    """Wait `initial_delay_seconds`, and `step_seconds` more each time."""

    initial_delay_seconds: float
    step_seconds: float

    def _delay(self, attempt: int) -> float:
        return self.initial_delay_seconds + self.step_seconds * (attempt - 1)


@dataclass(frozen=True)
class ExponentialRetry(_Bounded):
    """Wait `initial_delay_seconds`, each time `multiplier` times longer, up to a cap."""

    initial_delay_seconds: float = 1.0
    multiplier: float = 2.0
    max_delay_seconds: float | None = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.multiplier >= 1:
            raise ValueError(f"multiplier must be at least 1; it is {self.multiplier!r}.")

    def _delay(self, attempt: int) -> float:
        try:
            return self.initial_delay_seconds * float(self.multiplier) ** (attempt - 1)
        except OverflowError:  # 2.0 ** 1024 and beyond
            return math.inf if self.initial_delay_seconds else 0.0

    def _cap(self, delay: float) -> float:
        return delay if self.max_delay_seconds is None else min(delay, self.max_delay_seconds)


DEFAULT = ExponentialRetry(max_attempts=10, jitter_factor=0.2)
"""What a handler without `retry=` gets: nine retries over about eight and a half minutes."""


def delay_after(
    strategy: RetryStrategy,
    *,
    attempt: int,
    elapsed: float,
    exception: BaseException,
    max_attempts: int | None,
) -> float | None:
    """Return the strategy's next delay, with the message's own `max_attempts` above its.

    Raises `ValueError` when a strategy answers with something that is no delay.
    """
    if max_attempts is not None:
        if attempt >= max_attempts:
            return None
        if isinstance(strategy, _Bounded):
            strategy = copy(strategy)
            object.__setattr__(strategy, "max_attempts", max_attempts)  # it is a copy, and frozen
    delay = strategy.next_delay(attempt=attempt, elapsed=elapsed, exception=exception)
    if delay is None:
        return None
    return checked_delay(delay, source=f"{type(strategy).__name__}.next_delay()")


def attempts_exhausted(strategy: RetryStrategy, *, attempt: int, max_attempts: int | None) -> bool:
    """Tell whether `attempt` was the last one allowed, whatever delay the handler asks for."""
    limit = max_attempts if max_attempts is not None else getattr(strategy, "max_attempts", None)
    return limit is not None and attempt >= limit


def checked_delay(delay: object, *, source: str) -> float:
    """Return `delay` between now and `FOREVER`; raise `ValueError` if it is not a number."""
    is_number = isinstance(delay, int | float) and not isinstance(delay, bool)
    if not is_number or (isinstance(delay, float) and math.isnan(delay)):
        raise ValueError(f"{source} must give seconds as a number; it gave {delay!r}.")
    return float(min(max(cast("float", delay), 0), FOREVER))
