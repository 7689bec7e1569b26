"""Plots of throughput and claim time against backlog."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import Measured

PLOTS = {
    "backlog-throughput.svg": ("messages/s", "messages a second", "Throughput against backlog"),
    "backlog-claim.svg": ("claim of 100, ms", "milliseconds", "A claim of 100 against backlog"),
}


def draw(measured: Measured, folder: Path) -> None:
    """Draw what the scenarios `deep/…` have found: medians, with the span of all samples."""
    import matplotlib as mpl

    mpl.use("Agg")
    # Text as text, and the same file for the same data.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "benchmarks"})
    deep = {
        float(name.removeprefix("deep/")): figures
        for name, figures in measured.items()
        if name.startswith("deep/")
    }
    folder.mkdir(parents=True, exist_ok=True)
    for file, (figure, unit, title) in PLOTS.items():
        found = {backlog: figures[figure] for backlog, figures in sorted(deep.items())}
        if found:
            _draw(folder / file, list(found), list(found.values()), unit, title)


def _draw(
    path: Path, backlogs: list[float], samples: list[Sequence[float]], unit: str, title: str
) -> None:
    from matplotlib import pyplot as plt

    medians = [statistics.median(values) for values in samples]
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.fill_between(backlogs, list(map(min, samples)), list(map(max, samples)), alpha=0.2)
    axes.plot(backlogs, medians, marker="o")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("backlog, messages")
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
