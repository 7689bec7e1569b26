"""What came out: medians, ratios to django_outbox, percentiles and versions, in three forms."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

from benchmarks.peers.everyone import OURS
from benchmarks.peers.peer import MANY, WAYS, Peer

PERCENTILES = (50, 95, 99)
Rows = list[list[str]]


@dataclass
class Figures:
    """All that was measured; keys stay in the order of the first round."""

    server: str
    rounds: int
    versions: dict[str, str] = field(default_factory=dict)
    consumed: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    published: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    delays: dict[str, list[float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def installed(self, peers: Iterable[type[Peer]]) -> Iterator[type[Peer]]:
        """Yield those that are installed, with their versions noted, and note the others."""
        for peer in peers:
            try:
                found = {package: version(package) for package in peer.packages}
            except PackageNotFoundError as missing:
                self.failed.append(f"{peer.name} is left out: {missing.name} is not installed")
            else:
                self.versions |= found
                yield peer

    def add(self, to: dict[Any, list[float]], key: Any, rate: float) -> None:
        """Add a rate, and tell who watches."""
        to.setdefault(key, []).append(rate)
        print(*key, f"{rate:,.0f}/s", file=sys.stderr, flush=True)


def published(way: str, messages: int) -> int:
    """Return how many messages are published in this way, for similar times."""
    return messages if way == MANY else messages // 10


def tables(figures: Figures) -> Iterator[Rows]:
    """Yield each table, headings first."""
    yield [["consumer", "options", "messages", "messages/s", "ratio"], *_consumed(figures)]
    yield [["publishing, messages/s (ratio)", *WAYS], *_published(figures)]
    heading = ["idle latency, ms", *(f"p{percent}" for percent in PERCENTILES)]
    yield [heading, *_delays(figures)]


def _consumed(figures: Figures) -> Iterator[list[str]]:
    ours = [median(rates) for (peer, *_), rates in figures.consumed.items() if peer == OURS]
    for (peer, options, count), rates in figures.consumed.items():
        yield [peer, options, f"{count:,}", f"{median(rates):,.0f}", _ratio(median(rates), ours)]


def _published(figures: Figures) -> Iterator[list[str]]:
    for peer in dict.fromkeys(peer for peer, _ in figures.published):
        yield [peer, *(_published_so(figures, peer, way) for way in WAYS)]


def _published_so(figures: Figures, peer: str, way: str) -> str:
    rates = figures.published.get((peer, way))
    ours = [median(found) for found in [figures.published.get((OURS, way))] if found]
    return f"{median(rates):,.0f} ({_ratio(median(rates), ours)})" if rates else "-"


def _delays(figures: Figures) -> Iterator[list[str]]:
    for peer, delays in figures.delays.items():
        ordered = sorted(delays)
        at = [ordered[min(len(ordered) * p // 100, len(ordered) - 1)] for p in PERCENTILES]
        yield [peer, *(f"{delay * 1000:.1f}" for delay in at)]


def _ratio(rate: float, ours: list[float]) -> str:
    return f"{rate / ours[0]:.2f}" if ours else "-"


def notes(figures: Figures) -> list[str]:
    """Return the lines below the tables."""
    python = ".".join(map(str, sys.version_info[:3]))
    versions = ", ".join(f"{name} {number}" for name, number in figures.versions.items())
    measured = f"PostgreSQL {figures.server}, Python {python}; medians of {figures.rounds} rounds."
    return [measured, f"{versions}.", *dict.fromkeys(figures.failed)]


def plain(figures: Figures) -> str:
    """Return the tables for a terminal."""
    return "\n\n".join([*(_aligned(rows) for rows in tables(figures)), *notes(figures)])


def markdown(figures: Figures) -> str:
    """Return the tables as Markdown."""
    return "\n\n".join([*(_markdown(rows) for rows in tables(figures)), *notes(figures)])


def as_json(figures: Figures) -> dict[str, Any]:
    """Return every single figure."""
    return {
        "server": figures.server,
        "versions": figures.versions,
        "consumed": {"; ".join(map(str, key)): rates for key, rates in figures.consumed.items()},
        "published": {"; ".join(key): rates for key, rates in figures.published.items()},
        "delays": figures.delays,
        "failed": figures.failed,
    }


def _aligned(rows: Rows) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _markdown(rows: Rows) -> str:
    heading, *others = rows
    lines = [heading, ["---"] * len(heading), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
