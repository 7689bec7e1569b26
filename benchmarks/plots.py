"""Plots: throughput and claim time against backlog, and what a long run leaves behind."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import Measured
from benchmarks.scenarios.backlog import EXECUTION, ROUND_TRIP

# Opaque, so that the same file is readable on a light page and on a dark one.
BACKGROUND = "white"
LINES = (("#0072b2", "o"), ("#b34700", "s"))
"""Colours that also the colour-blind tell apart, each with a marker of its own."""


class Plot(NamedTuple):
    """A file, and what it shows: figures by the names that its legend gives them."""

    file: str
    title: str
    unit: str
    figures: dict[str, str]


PLOTS = (
    Plot(
        "backlog-throughput.svg",
        "Throughput against backlog",
        "messages a second",
        {"one worker process": "messages/s"},
    ),
    Plot(
        "backlog-claim.svg",
        "A claim of 100 against backlog",
        "milliseconds",
        {"client's round trip": ROUND_TRIP, "server's execution": EXECUTION},
    ),
)


def draw(measured: Measured, folder: Path) -> None:
    """Draw what the scenarios `deep/…` have found: medians, with the span of all samples."""
    deep = {
        float(name.removeprefix("deep/")): figures
        for name, figures in sorted(measured.items())
        if name.startswith("deep/")
    }
    folder.mkdir(parents=True, exist_ok=True)
    if deep:
        for plot in PLOTS:
            _draw(folder / plot.file, plot, deep)


def _draw(path: Path, plot: Plot, deep: dict[float, dict[str, list[float]]]) -> None:
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained", facecolor=BACKGROUND)
    for (label, name), (colour, marker) in zip(plot.figures.items(), LINES, strict=False):
        samples: list[Sequence[float]] = [figures[name] for figures in deep.values()]
        span = list(map(min, samples)), list(map(max, samples))
        axes.fill_between(list(deep), *span, alpha=0.2, color=colour, linewidth=0)
        medians = list(map(statistics.median, samples))
        axes.plot(list(deep), medians, marker=marker, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("backlog, messages")
    axes.set_ylabel(plot.unit)
    axes.set_title(plot.title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(LINES))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_over_time(
    path: Path, samples: Mapping[str, Sequence[float]], panels: Mapping[str, Sequence[str]]
) -> None:
    """Draw a panel for each unit, with its figures against `minutes`."""
    plt = _pyplot()
    figure, rows = plt.subplots(
        len(panels),
        figsize=(6.4, 1.7 * len(panels)),
        sharex=True,
        layout="constrained",
        facecolor=BACKGROUND,
    )
    for axes, (unit, names) in zip(rows, panels.items(), strict=True):
        for name, (colour, _) in zip(names, LINES, strict=False):
            axes.plot(samples["minutes"], samples[name], color=colour, label=name)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    rows[-1].set_xlabel("minutes")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    # Text as text, and the same file for the same data.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "benchmarks"})
    from matplotlib import pyplot as plt

    return plt
