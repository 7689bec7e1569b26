"""Results as a table for people and as JSON for machines."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict

import django
import psycopg

from benchmarks import gate
from benchmarks.common import query
from benchmarks.counting import PER, Counters
from benchmarks.measuring import Measured
from benchmarks.scenario import Plan


def as_table(measured: Measured) -> str:
    """Return a line for each figure: its median, and the least and the most of its samples."""
    return columns(rows_of(measured))


def as_markdown(measured: Measured) -> str:
    """Return the same as a table for the documentation, with what it was measured on."""
    head, *rows = rows_of(measured)
    lines = [f"| {' | '.join(head)} |", "|---|---|--:|--:|--:|"]
    lines += [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in rows]
    return "\n".join([*lines, "", described()])


def described() -> str:
    """Return in a line what was measured, and on what."""
    return ", ".join(f"{name} {version}" for name, version in versions().items())


def rows_of(measured: Measured) -> list[tuple[str, ...]]:
    """Return the table's head and its rows."""
    rows = [
        (name, figure, *map(number, (statistics.median(values), min(values), max(values))))
        for name, figures in measured.items()
        for figure, values in figures.items()
    ]
    return [("scenario", "figure", "median", "least", "most"), *rows]


def columns(rows: Iterable[tuple[str, ...]]) -> str:
    """Return the rows in aligned columns, the first two to the left and numbers to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if place < 2 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def number(value: float) -> str:
    """Return a number with three digits that count."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def counters_as_table(
    counted: Mapping[str, Counters], baseline: Mapping[str, Counters] | None
) -> str:
    """Return a line for each counter, beside the baseline if there is one to compare with."""
    compared = () if baseline is None else ("baseline", "compared")
    rows = [("scenario", f"counter, for {PER:,} messages", "found", *compared)]
    for name, counters in counted.items():
        known = {} if baseline is None else baseline.get(name, {})
        for counter in sorted(counters.keys() | known.keys()):
            row = name, counter, f"{counters.get(counter, 0.0):,g}"
            more = (f"{known.get(counter, 0.0):,g}", gate.rule(counter)) if compared else ()
            rows.append((*row, *more))
    return columns(rows)


def as_json(measured: Measured, counted: Mapping[str, Counters], plan: Plan) -> str:
    """Return everything that was found, with the versions it was found with."""
    figures = {
        name: {
            figure: {"median": statistics.median(values), "samples": values}
            for figure, values in samples.items()
        }
        for name, samples in measured.items()
    }
    report = {
        "versions": versions(),
        "options": asdict(plan),
        "scenarios": {
            name: {"figures": found, "counters": counted.get(name)}
            for name, found in figures.items()
        },
        "counters_per_messages": PER,
    }
    return json.dumps(report, indent=2)


def versions() -> dict[str, str]:
    """Return the versions of what is measured, and of what it runs on."""
    return {
        "python": platform.python_version(),
        "django": django.__version__,
        "psycopg": psycopg.__version__,
        "postgresql": query("SHOW server_version").split()[0],
        "machine": f"{platform.system()} {platform.machine()}",
    }
