"""Run the fault suite: `python -m tests.faults [--minutes N] [--messages N] [--seed N] …`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import django
import psycopg

from example_project.embedded.binaries import installed
from tests.faults.checks import Finding, judge
from tests.faults.nemesis import Nemesis
from tests.faults.report import Run, markdown
from tests.faults.site import VERSION, Site

DRAINING = 330.0
"""Seconds after the last fault within which everything must be delivered.

A message whose handler has lost its session again and again rests for up to 300 s.
"""


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    installed(VERSION)  # or say what is missing, before anything is made
    folder = Path(tempfile.mkdtemp(prefix="outbox-faults-logs-"))
    run = _run(options, folder)
    text = markdown(run)
    sys.stdout.write(f"\n{text}")
    if options.report is not None:
        options.report.write_text(text)
    if run.violations:
        sys.stdout.write(f"\nThe logs of all processes are in {folder}\n")
        return 1
    shutil.rmtree(folder)
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tox run -e faults --", description=__doc__)
    parser.add_argument("--minutes", type=_positive, default=10.0, help="of faults (default: 10)")
    parser.add_argument("--messages", type=_positive, help="to publish (default: 10,000 a minute)")
    parser.add_argument("--seed", type=int, help="of the faults (default: a new one)")
    parser.add_argument("--report", type=Path, help="a file for the report, in Markdown")
    options = parser.parse_args(arguments)
    if options.messages is None:
        options.messages = options.minutes * 10_000
    options.messages = max(1, round(options.messages))
    if options.seed is None:
        options.seed = Random().randrange(10**6)
    return options


def _positive(text: str) -> float:
    if not 0 < (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above zero")
    return number


def _run(options: argparse.Namespace, folder: Path) -> Run:
    seconds = options.minutes * 60
    _say(f"seed {options.seed}, logs in {folder}")
    with Site(folder, messages=options.messages, seconds=seconds, seed=options.seed) as site:
        nemesis = Nemesis(site, options.seed)
        began = time.monotonic()
        nemesis.start()
        try:
            site.calm.wait(seconds)
        finally:
            nemesis.stop()
        lasted = time.monotonic() - began
        _say(f"{lasted:7.1f} s  no more faults; draining")
        ends = _settle(site)
        ledger = site.read_ledger()
        findings = [*judge(ledger), Finding("No process ends by itself", ends)]
        return Run(
            command=_command(options),
            versions=_versions(site),
            seconds=lasted,
            deeds=nemesis.deeds,
            findings=findings,
            ledger=ledger,
            missing=site.missing,
            restarts={name: one.starts for name, one in site.fleet.programs.items()},
        )


def _settle(site: Site) -> list[str]:
    """Let publishers finish and the outbox drain, stop all, and return which ends were bad."""
    publishers = site.fleet.named("publisher")
    bad = []
    if not site.wait_until(lambda: all(one.is_finished for one in publishers), within=DRAINING):
        bad.append("the publishers did not get done")
    # A while of calm, so that what was missed is caught up with before the schedules stop.
    site.wait_until(lambda: not _late_schedules(site), within=DRAINING)
    site.fleet.stop_keeping()
    for program in site.schedulers:
        bad += _stopped_badly(program.name, program.stop())
    site.wait_until(lambda: _left(site) == 0, within=DRAINING)
    for program in [one for one in site.fleet.named("worker") if one not in site.schedulers]:
        bad += _stopped_badly(program.name, program.stop())
    return site.fleet.ended_by_themselves() + bad


def _left(site: Site) -> int:
    return int(site.query("SELECT count(*) FROM django_outbox_message")[0][0])


def _late_schedules(site: Site) -> int:
    late = "SELECT count(*) FROM django_outbox_schedule WHERE next_run_at < clock_timestamp()"
    return int(site.query(f"{late} - interval '2 seconds'")[0][0])


def _stopped_badly(name: str, code: int | None) -> list[str]:
    return [] if code == 0 else [f"{name} ended with {code} when it was stopped at the end"]


def _command(options: argparse.Namespace) -> str:
    chosen = {"minutes": f"{options.minutes:g}", "messages": options.messages}
    words = [f"--{name}={value}" for name, value in (chosen | {"seed": options.seed}).items()]
    return shlex.join(["tox", "run", "-e", "faults", "--", *words])


def _versions(site: Site) -> str:
    with site.session() as session:
        server = session.info.parameter_status("server_version")
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"PostgreSQL {server}, Python {python}, Django {django.__version__}, "
        f"psycopg {psycopg.__version__}"
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
