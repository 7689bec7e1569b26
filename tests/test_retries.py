"""The retry strategies: how long to wait, and when to give up."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import outbox
from django_outbox.handlers import Handler

ERROR = ValueError("no stock")
CENTURY = 100 * 366 * 24 * 3600
"""Seconds that no sensible delay exceeds, and every timestamp can carry."""


def delays(strategy: outbox.RetryStrategy, attempts: range, elapsed: float = 0) -> list[Any]:
    return [
        strategy.next_delay(attempt=attempt, elapsed=elapsed, exception=ERROR)
        for attempt in attempts
    ]


def test_no_retry_gives_up_at_once() -> None:
    assert delays(outbox.NoRetry(), range(1, 4)) == [None, None, None]


def test_constant_retry_waits_the_same_time_again_and_again() -> None:
    assert delays(outbox.ConstantRetry(5), range(1, 5)) == [5, 5, 5, 5]


def test_linear_retry_adds_a_step_each_time() -> None:
    assert delays(outbox.LinearRetry(10, 5), range(1, 5)) == [10, 15, 20, 25]


def test_exponential_retry_multiplies_up_to_the_longest_delay() -> None:
    strategy = outbox.ExponentialRetry(initial_delay_seconds=2, multiplier=3, max_delay_seconds=100)
    assert delays(strategy, range(1, 7)) == [2, 6, 18, 54, 100, 100]


def test_exponential_retry_goes_from_one_second_to_five_minutes_by_default() -> None:
    assert delays(outbox.ExponentialRetry(), range(1, 11)) == [
        *(1, 2, 4, 8, 16, 32, 64, 128, 256),
        300,
    ]


@pytest.mark.parametrize(
    "strategy",
    [
        outbox.ConstantRetry(5, max_attempts=3),
        outbox.LinearRetry(5, 5, max_attempts=3),
        outbox.ExponentialRetry(max_attempts=3),
    ],
)
def test_max_attempts_counts_the_first_one(strategy: outbox.RetryStrategy) -> None:
    given_up = [delay is None for delay in delays(strategy, range(1, 5))]

    assert given_up == [False, False, True, True]


@pytest.mark.parametrize(("elapsed", "delay"), [(0, 10), (90, 10), (90.5, None), (1000, None)])
def test_it_gives_up_when_elapsed_and_the_next_delay_together_exceed_the_total(
    elapsed: float, delay: float | None
) -> None:
    strategy = outbox.ConstantRetry(10, max_total_delay_seconds=100)

    assert strategy.next_delay(attempt=1, elapsed=elapsed, exception=ERROR) == delay


def test_the_default_is_exponential_with_ten_attempts_and_some_jitter() -> None:
    strategy = Handler(function=print, queues=("orders",)).retry
    first, *_, ninth, tenth = [
        [strategy.next_delay(attempt=attempt, elapsed=0, exception=ERROR) for _ in range(200)]
        for attempt in range(1, 11)
    ]

    assert {delay is None for delay in tenth} == {True}
    assert all(0.9 <= (delay or 0) <= 1.1 for delay in first)
    assert len(set(first)) > 100
    assert all(230.4 <= (delay or 0) <= 281.6 for delay in ninth)


def test_jitter_spreads_by_half_its_factor_either_way() -> None:
    strategy = outbox.ConstantRetry(100, jitter_factor=0.5)
    spread = delays(strategy, range(1, 1001))

    assert 75 <= min(spread) < 80
    assert 120 < max(spread) <= 125


def test_the_cap_comes_after_the_jitter() -> None:
    strategy = outbox.ExponentialRetry(
        initial_delay_seconds=300, max_delay_seconds=300, jitter_factor=1
    )
    spread = [strategy.next_delay(attempt=1, elapsed=0, exception=ERROR) or 0 for _ in range(1000)]

    assert max(spread) == 300
    assert min(spread) < 200


@pytest.mark.parametrize("attempt", [16, 46, 47, 1100, 10_000, 1_000_000, 2**31])
@pytest.mark.parametrize("multiplier", [1, 2, 2.0, 10, 1e300])
def test_exponential_retry_never_overflows(attempt: int, multiplier: float) -> None:
    # C01
    strategy = outbox.ExponentialRetry(multiplier=multiplier, max_delay_seconds=3600)

    expected = 1 if multiplier == 1 else 3600
    assert strategy.next_delay(attempt=attempt, elapsed=0, exception=ERROR) == expected


@pytest.mark.parametrize(
    "strategy",
    [
        outbox.ExponentialRetry(max_delay_seconds=None),
        outbox.ExponentialRetry(max_delay_seconds=math.inf),
        outbox.ExponentialRetry(initial_delay_seconds=0, max_delay_seconds=None),
        outbox.LinearRetry(1e308, 1e308),
        outbox.ConstantRetry(sys.float_info.max),
    ],
)
def test_without_a_cap_a_delay_is_still_one_that_can_be_stored(
    strategy: outbox.RetryStrategy,
) -> None:
    for delay in delays(strategy, range(10_000, 10_010)):
        assert 0 <= delay <= CENTURY


seconds = st.floats(min_value=0, max_value=1e9)


@given(
    initial=seconds,
    multiplier=st.floats(min_value=1, max_value=1e6),
    cap=seconds,
    jitter=st.floats(min_value=0, max_value=2),
    attempt=st.integers(min_value=1, max_value=100_000),
)
def test_an_exponential_delay_stays_within_its_bounds(
    initial: float, multiplier: float, cap: float, jitter: float, attempt: int
) -> None:
    strategy = outbox.ExponentialRetry(
        initial_delay_seconds=initial,
        multiplier=multiplier,
        max_delay_seconds=cap,
        jitter_factor=jitter,
    )
    delay = strategy.next_delay(attempt=attempt, elapsed=1e12, exception=ERROR)

    assert delay is not None
    assert 0 <= delay <= cap


@given(
    initial=seconds,
    step=seconds,
    jitter=st.floats(min_value=0, max_value=2),
    attempt=st.integers(min_value=1, max_value=100_000),
)
def test_a_linear_delay_stays_within_its_jitter(
    initial: float, step: float, jitter: float, attempt: int
) -> None:
    strategy = outbox.LinearRetry(initial, step, jitter_factor=jitter)
    delay = strategy.next_delay(attempt=attempt, elapsed=0, exception=ERROR)
    exact = initial + step * (attempt - 1)

    assert delay is not None
    assert min(exact * (1 - jitter / 2), CENTURY) * 0.99 <= delay <= exact * (1 + jitter / 2) * 1.01


@given(
    delay=seconds,
    total=seconds,
    elapsed=seconds,
    attempt=st.integers(min_value=1, max_value=100_000),
)
def test_no_delay_goes_beyond_the_total(
    delay: float, total: float, elapsed: float, attempt: int
) -> None:
    strategy = outbox.ConstantRetry(delay, max_total_delay_seconds=total, jitter_factor=0.2)
    answer = strategy.next_delay(attempt=attempt, elapsed=elapsed, exception=ERROR)

    assert answer is None or elapsed + answer <= total


@pytest.mark.parametrize(
    "make",
    [
        lambda: outbox.ConstantRetry(-1),
        lambda: outbox.ConstantRetry(math.nan),
        lambda: outbox.LinearRetry(-1, 1),
        lambda: outbox.LinearRetry(1, -1),
        lambda: outbox.ExponentialRetry(initial_delay_seconds=-1),
        lambda: outbox.ExponentialRetry(multiplier=0.5),
        lambda: outbox.ExponentialRetry(multiplier=math.nan),
        lambda: outbox.ExponentialRetry(max_delay_seconds=-1),
        lambda: outbox.ExponentialRetry(max_attempts=0),
        lambda: outbox.ExponentialRetry(max_total_delay_seconds=-1),
        lambda: outbox.ExponentialRetry(jitter_factor=-0.1),
        lambda: outbox.ExponentialRetry(jitter_factor=2.1),
        lambda: outbox.NoRetry(jitter_factor=math.nan),
    ],
)
def test_a_strategy_that_makes_no_sense_is_refused_when_it_is_made(make: Any) -> None:
    with pytest.raises(ValueError, match="it is"):
        make()


def test_strategies_compare_by_value_and_show_their_values() -> None:
    assert outbox.ConstantRetry(5) == outbox.ConstantRetry(5)
    assert "5" in repr(outbox.ConstantRetry(5))
