"""The last hour as bars, a minute each. Pure; a chart says its figures in words too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..store.overview import Minute

MINUTES = 60

_BAR = 3
_STEP = 4
WIDTH = MINUTES * _STEP
HEIGHT = 40
_LEAST = 1.5  # what has failed once in a busy hour is still to be seen


@dataclass(frozen=True, slots=True)
class Chart:
    """Two paths in a box of `WIDTH` by `HEIGHT`, the newest minute to the right."""

    title: str
    words: str
    done: str
    failed: str
    most: int
    box: str = f"0 0 {WIDTH} {HEIGHT}"


def chart(title: str, minutes: Iterable[Minute]) -> Chart:
    """Draw how deliveries ended: what completed below, what failed on top of it."""
    done, failed, buried = [0] * MINUTES, [0] * MINUTES, 0
    for minute in minutes:
        done[minute.ago] += minute.completed
        failed[minute.ago] += minute.retried + minute.buried
        buried += minute.buried
    most = max(a + b for a, b in zip(done, failed, strict=True))

    def height(count: int) -> float:
        return max(_LEAST, count * HEIGHT / most) if count else 0.0

    return Chart(
        title=title,
        words=_words(sum(done), sum(failed) - buried, buried, most),
        done=_bars(done, height, on=[0.0] * MINUTES),
        failed=_bars(failed, height, on=[min(height(n), HEIGHT - _LEAST) for n in done]),
        most=most,
    )


def _words(done: int, retried: int, buried: int, most: int) -> str:
    if not most:
        return "Nothing was delivered in the last hour."
    return (
        f"In the last hour {done:,} completed, {retried:,} failed to be retried, and {buried:,} "
        f"went to the dead letters; {most:,} in the busiest minute."
    )


def _bars(counts: list[int], height: Callable[[int], float], *, on: list[float]) -> str:
    """Return an SVG path: a bar for every minute that has a count, standing `on` so much."""
    path = []
    for ago, count in enumerate(counts):
        if count:
            left = (MINUTES - 1 - ago) * _STEP
            tall = min(height(count), HEIGHT - on[ago])
            path.append(f"M{left} {HEIGHT - on[ago]:.1f}h{_BAR}v-{tall:.1f}h-{_BAR}z")
    return "".join(path)
