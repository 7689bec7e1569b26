"""The report of a run, for people, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.checks import Finding, balance
from tests.faults.ledger import Ledger
from tests.faults.nemesis import Deed

SHOWN = 20
"""Violations of one promise that are shown."""


@dataclass
class Run:
    """All that is known of a run."""

    command: str
    versions: str
    seconds: float
    deeds: list[Deed]
    findings: list[Finding]
    ledger: Ledger
    missing: list[str] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)

    @property
    def violations(self) -> int:
        return sum(len(finding.violations) for finding in self.findings)


def markdown(run: Run) -> str:
    return "\n".join([*_head(run), *_figures(run), *_promises(run), *_faults(run)]) + "\n"


def _head(run: Run) -> Iterator[str]:
    kinds = len({deed.name for deed in run.deeds if deed.is_done})
    done = sum(deed.is_done for deed in run.deeds)
    yield "# A run of the fault suite"
    yield ""
    yield f"`{run.command}`, on {run.versions}."
    yield ""
    verdict = (
        "Every promise held."
        if not run.violations
        else f"**{run.violations} violations were found.**"
    )
    yield f"{done} faults of {kinds} kinds in {run.seconds / 60:.1f} minutes. {verdict}"
    for missing in run.missing:
        yield ""
        yield f"Not tried: {missing}."
    yield ""


def _figures(run: Run) -> Iterator[str]:
    ledger = run.ledger
    done = [delivery for delivery in ledger.deliveries if delivery.done]
    messages = len({delivery.message_id for delivery in done})
    stored = {publication.key for publication in ledger.publications}
    yield "## Figures"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for name, count in balance(ledger).items():
        yield f"| messages {name} | {count:,} |"
    yield f"| deliveries beyond the first | {len(done) - messages:,} |"
    yield f"| contents rolled back | {len(ledger.rolled_back):,} |"
    yield f"| commits whose answer was lost | {len(stored - ledger.acknowledged):,} |"
    yield f"| boundaries fired | {sum(one.schedule is not None for one in ledger.stored):,} |"
    for reason, count in sorted(Counter(letter.reason for letter in ledger.letters).items()):
        yield f"| dead letters, {reason} | {count:,} |"
    for name, starts in run.restarts.items():
        yield f"| starts of {name} | {starts:,} |"
    yield ""


def _promises(run: Run) -> Iterator[str]:
    yield "## Promises"
    yield ""
    yield "| promise | violations |"
    yield "|---|---|"
    for finding in run.findings:
        yield f"| {finding.promise} | {len(finding.violations) or 'none'} |"
    yield ""
    for finding in run.findings:
        if finding.violations:
            yield f"### {finding.promise}"
            yield ""
            yield from (f"- {violation}" for violation in finding.violations[:SHOWN])
            if len(finding.violations) > SHOWN:
                yield f"- and {len(finding.violations) - SHOWN:,} more"
            yield ""


def _faults(run: Run) -> Iterator[str]:
    yield "## Faults"
    yield ""
    yield "| kind | times |"
    yield "|---|---|"
    for name, count in sorted(Counter(deed.name for deed in run.deeds if deed.is_done).items()):
        yield f"| {name} | {count} |"
    yield ""
    yield "A fault lasts from when it is drawn until all that it broke is whole again."
    yield ""
    yield "| at | lasted | fault | what was done |"
    yield "|---|---|---|---|"
    for deed in run.deeds:
        at = f"{int(deed.at) // 60}:{deed.at % 60:04.1f}"
        yield f"| {at} | {deed.seconds:.1f} s | {deed.name} | {deed.what} |"
