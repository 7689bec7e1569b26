"""What is failing: the dead letters by queue, reason and fingerprint.

There may be more groups than a page holds. It shows those that come first by name, says that there
are more, and leads to them. The more groups it shows, the sooner it stops to count each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.admin.options import IncorrectLookupParameters
from django.db import connections
from django.http import HttpRequest
from django.utils.http import urlencode

from .. import names
from ..models import DeadLetter
from ..publishing import default_alias
from ..store import dead_letters as store
from .details import first_line, minute

MOST_GROUPS = 100
HEAD = 500
"""Characters of an error that are read to show its first line."""

MOST_COUNTED = (10_000, 5_000, 1_000, 500)
"""Letters of a group that are counted: as many as `BUDGET` allows for all groups together."""
BUDGET = 50_000
"""Letters counted for one page; where vacuum has not been lately, each is a row to read."""


@dataclass(frozen=True, slots=True)
class Row:
    """One group as the page shows it; `query` filters the list to its letters."""

    queue: str
    reason: str
    exception_class: str
    error: str
    letters: str
    first_seen: str
    last_seen: str
    query: str


@dataclass(frozen=True, slots=True)
class Groups:
    """One page of groups, the one that failed last at the top; `following` leads to more."""

    rows: Sequence[Row]
    following: str | None


def groups(request: HttpRequest) -> Groups:
    """Return the groups that come after the one that the request names."""
    after = _after(request)
    with connections[default_alias()].cursor() as cursor:
        causes = store.causes(cursor, after=after, most=MOST_GROUPS + 1)
        shown = causes[:MOST_GROUPS]
        most = _most_counted(len(shown))
        found = store.groups(cursor, shown, most_counted=most + 1, head=HEAD) if shown else []
    found.sort(key=lambda group: group.last_seen, reverse=True)
    return Groups(
        rows=[_row(group, most=most) for group in found],
        following=_query(shown[-1]) if len(causes) > MOST_GROUPS else None,
    )


def _most_counted(count: int) -> int:
    """Return up to how many letters each of so many groups is counted."""
    allowed = [most for most in MOST_COUNTED if most * count <= BUDGET]
    return allowed[0] if allowed else MOST_COUNTED[-1]


def _after(request: HttpRequest) -> store.Cause:
    cause = store.Cause(*(request.GET.get(name, "") for name in ("queue", "reason", "fingerprint")))
    if any(map(names.flaw_in_text, cause)):
        raise IncorrectLookupParameters
    return cause


def _query(cause: store.Cause) -> str:
    queue, reason, fingerprint = cause
    return urlencode({"queue": queue, "reason": reason, "fingerprint": fingerprint})


def _row(group: store.Group, *, most: int) -> Row:
    reason = group.cause.failure_reason
    exception_class = group.exception_class or ""
    error = first_line(group.head)
    return Row(
        queue=group.cause.queue,
        reason=str(dict(DeadLetter.Reason.choices).get(reason, reason)),
        exception_class=exception_class,
        error=error.removeprefix(exception_class).removeprefix(": "),
        letters=f"{group.letters:,}" if group.letters <= most else f"{most:,}+",
        first_seen=minute(group.first_seen),
        last_seen=minute(group.last_seen),
        query=_query(group.cause),
    )
