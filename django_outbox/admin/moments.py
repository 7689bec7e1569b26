"""Moments as the pages read and show them, whatever a table holds.

A moment that Python cannot hold, in one row, must break no page; see `store.moments`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import DateTimeField, Func, QuerySet

from ..store.moments import FIRST, LAST, within_reach

_A_DAY = timedelta(days=1)


class Moment(Func):
    """A column of moments, read no further off than `FIRST` and `LAST`."""

    template = within_reach("%(expressions)s")
    output_field = DateTimeField()


def readable(rows: QuerySet[Any], *columns: str) -> QuerySet[Any]:
    """Read these columns in a way that cannot fail; `settle` puts them where they belong."""
    reached = {_reached(column): Moment(column) for column in columns}
    read: QuerySet[Any] = rows.defer(*columns).annotate(**reached)
    return read


def settle(rows: Iterable[Any], *columns: str) -> None:
    """Give rows that `readable` has read their moments under the names of the columns."""
    for row in rows:
        vars(row).update({column: vars(row)[_reached(column)] for column in columns})


def beyond(moment: datetime) -> str | None:
    """Return in words what a moment out of reach stands for, None for any other."""
    # Without USE_TZ it is in the zone of the site, and does not say so: hence a day to spare.
    shown = moment.replace(tzinfo=None)
    if shown >= LAST.replace(tzinfo=None) - _A_DAY:
        return "never"
    return "before all time" if shown <= FIRST.replace(tzinfo=None) + _A_DAY else None


def _reached(column: str) -> str:
    return f"{column}_within_reach"
