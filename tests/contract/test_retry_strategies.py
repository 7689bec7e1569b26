"""Retry strategies: how long to wait after so many failures, and when to give up."""

from __future__ import annotations

from typing import Any

import pytest

from django_outbox import outbox

ERROR = ValueError("no stock")


def delay(strategy: Any, attempt: int, *, elapsed: float = 0) -> float | None:
    answer: float | None = strategy.next_delay(attempt=attempt, elapsed=elapsed, exception=ERROR)
    return answer


@pytest.mark.parametrize(
    ("strategy", "delays"),
    [
        (outbox.NoRetry(), [None, None]),
        (outbox.ConstantRetry(5), [5, 5, 5]),
        (outbox.ConstantRetry(delay_seconds=0.5), [0.5, 0.5]),
        (outbox.LinearRetry(2, 3), [2, 5, 8, 11]),
        (outbox.LinearRetry(initial_delay_seconds=1, step_seconds=0), [1, 1]),
        (outbox.ExponentialRetry(), [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]),
        (
            outbox.ExponentialRetry(initial_delay_seconds=3, multiplier=10, max_delay_seconds=1000),
            [3, 30, 300, 1000, 1000],
        ),
    ],
)
def test_the_delay_after_each_failure(strategy: Any, delays: list[float | None]) -> None:
    assert [delay(strategy, n) for n in range(1, len(delays) + 1)] == delays


@pytest.mark.parametrize(
    "make",
    [
        lambda **limits: outbox.ConstantRetry(5, **limits),
        lambda **limits: outbox.LinearRetry(5, 0, **limits),
        lambda **limits: outbox.ExponentialRetry(5, 1, **limits),
    ],
    ids=["constant", "linear", "exponential"],
)
def test_every_strategy_takes_the_same_limits(make: Any) -> None:
    bounded = make(max_attempts=3)
    assert [delay(bounded, n) for n in (1, 2, 3, 4)] == [5, 5, None, None]

    timed = make(max_total_delay_seconds=20)
    assert delay(timed, 1, elapsed=15) == 5
    assert delay(timed, 1, elapsed=15.1) is None

    jittered = make(jitter_factor=0.2)
    delays = {delay(jittered, 1) for _ in range(500)}
    assert len(delays) > 100
    assert all(one is not None and 4.5 <= one <= 5.5 for one in delays)
    assert min(one for one in delays if one) < 4.7
    assert max(one for one in delays if one) > 5.3


def test_jitter_comes_before_the_cap() -> None:
    strategy = outbox.ExponentialRetry(300, 1, 300, jitter_factor=0.5)

    delays = [delay(strategy, 1) or 0 for _ in range(500)]

    assert max(delays) == 300
    assert delays.count(300) > 100
    assert min(delays) < 250


@pytest.mark.parametrize("attempt", [46, 1024, 1100, 10_000])
def test_nothing_overflows_at_high_attempts(attempt: int) -> None:
    # C01
    assert delay(outbox.ExponentialRetry(1, 2, 3600), attempt) == 3600
    assert delay(outbox.ExponentialRetry(1, 1e300, 3600), attempt) == 3600
    assert delay(outbox.LinearRetry(1, 1), attempt) == attempt
    uncapped = delay(outbox.ExponentialRetry(max_delay_seconds=None), attempt)
    assert uncapped is not None
    assert 0 < uncapped < float("inf")


@pytest.mark.parametrize(
    "make",
    [
        lambda: outbox.ConstantRetry(-1),
        lambda: outbox.ConstantRetry(1, max_attempts=0),
        lambda: outbox.ConstantRetry(1, max_total_delay_seconds=-1),
        lambda: outbox.ConstantRetry(1, jitter_factor=-0.1),
        lambda: outbox.ConstantRetry(1, jitter_factor=2.1),
        lambda: outbox.ConstantRetry(float("nan")),
        lambda: outbox.LinearRetry(1, -1),
        lambda: outbox.ExponentialRetry(multiplier=0.5),
    ],
)
def test_limits_that_make_no_sense_are_refused_where_they_are_written(make: Any) -> None:
    with pytest.raises(ValueError, match=r"must|It is|it is"):
        make()
