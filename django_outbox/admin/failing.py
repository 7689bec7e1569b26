"""What is failing: the dead letters by queue, reason and fingerprint.

There may be more groups than a page holds. It shows those that come first by name, says that there
are more, and leads to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.contrib.admin.options import IncorrectLookupParameters
from django.db import connections
from django.http import HttpRequest
from django.utils.http import urlencode

from .. import names
from ..models import DeadLetter
from ..publishing import default_alias
from ..store import dead_letters as store
from .counts import MOST_COUNTED, Capped
from .details import first_line

MOST_GROUPS = 100
HEAD = 500
"""Characters of an error that are read to show its first line."""


@dataclass(frozen=True, slots=True)
class Row:
    """One group as the page shows it; `query` filters the list to its letters."""

    queue: str
    reason: str
    exception_class: str
    error: str
    letters: Capped
    first_seen: datetime
    last_seen: datetime
    query: str


@dataclass(frozen=True, slots=True)
class Groups:
    """One page of groups, the one that failed last at the top; `following` leads to more."""

    rows: Sequence[Row]
    following: str | None


def groups(request: HttpRequest) -> Groups:
    """Return the groups that come after the one that the request names."""
    with connections[default_alias()].cursor() as cursor:
        found = store.groups(
            cursor,
            after=_after(request),
            most=MOST_GROUPS + 1,
            most_counted=MOST_COUNTED + 1,
            head=HEAD,
        )
    shown = found[:MOST_GROUPS]
    return Groups(
        rows=sorted(map(_row, shown), key=lambda row: row.last_seen, reverse=True),
        following=_query(shown[-1].cause) if len(found) > MOST_GROUPS else None,
    )


def _after(request: HttpRequest) -> store.Cause:
    cause = store.Cause(*(request.GET.get(name, "") for name in ("queue", "reason", "fingerprint")))
    if any(map(names.flaw_in_text, cause)):
        raise IncorrectLookupParameters
    return cause


def _query(cause: store.Cause) -> str:
    queue, reason, fingerprint = cause
    return urlencode({"queue": queue, "reason": reason, "fingerprint": fingerprint})


def _row(group: store.Group) -> Row:
    reason = group.cause.failure_reason
    return Row(
        queue=group.cause.queue,
        reason=str(dict(DeadLetter.Reason.choices).get(reason, reason)),
        exception_class=group.exception_class or "",
        error=first_line(group.head),
        letters=Capped(group.letters),
        first_seen=group.first_seen,
        last_seen=group.last_seen,
        query=_query(group.cause),
    )
