"""Measure the outbox: how fast, how late, how large, and what it costs the database.

Everything runs in a database that is made for it and dropped afterwards, on a PostgreSQL of its own
with default, durable settings, or on the server you name. Rounds of different scenarios take turns.
Absolute figures move from machine to machine and from hour to hour: compare those of one run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks import gate, lockstep, results
from benchmarks.common import ProgramFailed, prepare
from benchmarks.counting import Counters
from benchmarks.databases import databases
from benchmarks.measuring import Measured, count_all, measure_all
from benchmarks.scenario import Plan, Scenario, UnknownScenario, select
from benchmarks.scenarios import SCENARIOS

EPILOG = """\
examples:
  python -m benchmarks --list                           what there is
  python -m benchmarks                                  all but the slow scenarios
  python -m benchmarks consumer/default latency/idle    these two, three rounds in turns
  python -m benchmarks 'consumer/*' --json -            all consumers, for a machine
  python -m benchmarks 'deep/*' --plot docs/images      throughput and claims against backlog
  python -m benchmarks 'timers/*' --markdown            a table for the documentation
  python -m benchmarks --check                          the gate: counters against the baseline
  python -m benchmarks --update-baseline                what the gate compares with from now on

exit codes:
  0  all went well
  1  a counter is not what the baseline says, or what was measured failed
  2  an unknown scenario or option, no baseline for this PostgreSQL, or a server that cannot be used
"""

CHECKED_MESSAGES = 5_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say, and return the exit code."""
    options = parser().parse_args(arguments)
    try:
        chosen = select(SCENARIOS, options.scenarios)
        if options.list:
            show_list(chosen if options.scenarios else SCENARIOS)
            return 0
        refuse_what_cannot_be(options, [scenario.name for scenario in chosen])
        with databases(postgres=options.postgres, server=options.server):
            prepare()
            return run(options, chosen)
    except (UnknownScenario, gate.NoBaseline, Impossible) as error:
        print(error, file=sys.stderr)
        return 2
    except ProgramFailed as error:
        print(error, file=sys.stderr)
        return 1


class Impossible(Exception):
    """What was asked for cannot be done here."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "scenarios",
        nargs="*",
        metavar="SCENARIO",
        help="a name or a glob, in quotes; without any, all that are not slow",
    )
    made.add_argument("--list", action="store_true", help="show the scenarios and exit")
    made.add_argument(
        "--rounds", type=positive, metavar="N", help="rounds of each scenario (3; with --check 1)"
    )
    made.add_argument(
        "--messages",
        type=positive,
        metavar="N",
        help="messages of a round, or samples of latencies, in place of the scenario's own number",
    )
    made.add_argument(
        "--no-counters",
        action="store_true",
        help="count no statements, rows and WAL, which takes some passes more",
    )
    made.add_argument(
        "--json", metavar="FILE", help="write all results as JSON too; - for stdout, no table then"
    )
    made.add_argument(
        "--markdown",
        action="store_true",
        help="print what was measured, and no counters, as a table for the documentation",
    )
    made.add_argument(
        "--plot", metavar="DIR", type=Path, help="draw what 'deep/*' has found; needs matplotlib"
    )
    made.add_argument(
        "--check",
        action="store_true",
        help="compare the counters with benchmarks/baseline.json; speed is only shown",
    )
    made.add_argument(
        "--update-baseline", action="store_true", help="write the counters to that file"
    )
    server = made.add_mutually_exclusive_group()
    server.add_argument(
        "--server",
        metavar="URL",
        help="postgres://… of a server whose user may create databases, and is a superuser where "
        "counters are wanted; WAL is counted for the whole server, so it should be idle",
    )
    server.add_argument(
        "--postgres",
        type=int,
        choices=(16, 18),
        default=18,
        help="version of the embedded PostgreSQL (%(default)s)",
    )
    return made


def positive(text: str) -> int:
    """Return a positive whole number."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def show_list(scenarios: Sequence[Scenario]) -> None:
    """Print each scenario with what it measures."""
    width = max(len(scenario.name) for scenario in scenarios)
    for scenario in scenarios:
        slow = " (slow: only by name)" if scenario.is_slow else ""
        print(f"{scenario.name:<{width}}  {scenario.summary}{slow}")


def refuse_what_cannot_be(options: argparse.Namespace, names: Collection[str]) -> None:
    """Raise before anything is measured if the results could not be used."""
    if (options.check or options.update_baseline) and not lockstep.is_possible():
        raise Impossible("Counters need /proc, so --check and --update-baseline run on Linux only.")
    if options.plot is not None and find_spec("matplotlib") is None:
        raise Impossible("--plot needs matplotlib: pip install --group bench.")
    if options.plot is not None and not any(name.startswith("deep/") for name in names):
        raise Impossible("--plot draws what 'deep/*' finds, and none of it is to be measured.")


def run(options: argparse.Namespace, chosen: Sequence[Scenario]) -> int:
    """Measure, count, and show the results."""
    is_gate = options.check or options.update_baseline
    version = results.versions()["postgresql"].partition(".")[0]
    baseline = gate.read_baseline(version) if options.check else None
    if is_gate:
        chosen = [scenario for scenario in chosen if scenario.count is not None]
    plan = Plan(
        messages=options.messages or (CHECKED_MESSAGES if is_gate else None),
        rounds=options.rounds or (1 if is_gate else 3),
    )
    counted = {} if options.no_counters else count_all(chosen, plan)
    measured = measure_all(chosen, plan)
    show(options, plan, measured, counted, baseline)
    if options.update_baseline:
        gate.update_baseline(version, counted)
        print(f"Written to {os.path.relpath(gate.BASELINE)}.", file=sys.stderr)
    return 0 if baseline is None else judge(counted, baseline)


def show(
    options: argparse.Namespace,
    plan: Plan,
    measured: Measured,
    counted: Mapping[str, Counters],
    baseline: Mapping[str, Counters] | None,
) -> None:
    """Print the tables, and write what was asked for."""
    if options.plot is not None:
        from benchmarks import plots

        plots.draw(measured, options.plot)
    if options.json:
        text = results.as_json(measured, counted, plan)
        if options.json == "-":
            print(text)
            return
        Path(options.json).write_text(text + "\n")
    if options.markdown:
        print(results.as_markdown(measured))
        return
    print(results.described())
    print(f"\n{results.as_table(measured)}")
    if counted:
        print(f"\n{results.counters_as_table(counted, baseline)}")


def judge(counted: Mapping[str, Counters], baseline: Mapping[str, Counters]) -> int:
    """Say whether the counters are those of the baseline, and return the exit code."""
    found = list(gate.differences(counted, baseline))
    for difference in found:
        print(difference, file=sys.stderr)
    if not found:
        print("The counters are those of the baseline.", file=sys.stderr)
        return 0
    print(
        "If this is meant, run `python -m benchmarks --update-baseline` and commit the file.",
        file=sys.stderr,
    )
    return 1
