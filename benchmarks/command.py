"""The command line of the suite."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks import results
from benchmarks.common import ProgramFailed, prepare
from benchmarks.databases import databases
from benchmarks.measuring import measure_all
from benchmarks.scenario import Plan, Scenario, UnknownScenario, select
from benchmarks.scenarios import SCENARIOS

EPILOG = """\
examples:
  python -m benchmarks --list                        what there is
  python -m benchmarks consumer/default latency/idle these two, three rounds in turns
  python -m benchmarks 'consumer/*' --json -         all consumers, for a machine
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say, and return the exit code."""
    options = parser().parse_args(arguments)
    try:
        chosen = select(SCENARIOS, options.scenarios)
    except UnknownScenario as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        show_list(chosen if options.scenarios else SCENARIOS)
        return 0
    with databases(postgres=options.postgres, server=options.server):
        prepare()
        try:
            return run(options, chosen)
        except ProgramFailed as error:
            print(error, file=sys.stderr)
            return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    made.add_argument("--list", action="store_true", help="show the scenarios and exit")
    made.add_argument("--rounds", type=int, default=3, metavar="N")
    made.add_argument("--messages", type=int, metavar="N")
    made.add_argument("--json", metavar="FILE")
    made.add_argument("--server", metavar="URL")
    made.add_argument("--postgres", type=int, choices=(16, 18), default=18)
    return made


def show_list(scenarios: Sequence[Scenario]) -> None:
    """Print each scenario with what it measures."""
    width = max(len(scenario.name) for scenario in scenarios)
    for scenario in scenarios:
        print(f"{scenario.name:<{width}}  {scenario.summary}")


def run(options: argparse.Namespace, chosen: Sequence[Scenario]) -> int:
    """Measure, and show the results."""
    plan = Plan(messages=options.messages, rounds=options.rounds)
    measured = measure_all(chosen, plan)
    if options.json:
        text = results.as_json(measured, options=vars(options))
        if options.json == "-":
            print(text)
            return 0
        Path(options.json).write_text(text + "\n")
    print(results.as_table(measured))
    return 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
