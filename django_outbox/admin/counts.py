"""Counting that stops: a page never counts a million rows to say how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.utils.functional import cached_property

if TYPE_CHECKING:
    _Paginator = Paginator[Any]
else:
    _Paginator = Paginator  # generic in the stubs only

MOST_COUNTED = 10_000


class Capped(int):
    """A count that may have stopped at the most; then it reads `10,000+`.

    An int, since Django's templates compare it and choose the plural by it. They must not localize
    it: where thousands are grouped, Django would group the text.
    """

    def __str__(self) -> str:
        return f"{MOST_COUNTED:,}+" if self > MOST_COUNTED else f"{int(self):,}"


def capped_count(queryset: QuerySet[Any]) -> Capped:
    """Count the rows of a queryset, to one more than is shown at the most.

    In their order, which goes along an index; without it the planner may begin at the table's
    start, and what is looked for may stand at its end.
    """
    return Capped(queryset.values("pk")[: MOST_COUNTED + 1].count())


class CappedPaginator(_Paginator):
    """A paginator whose pages end where its counting does."""

    @cached_property
    def count(self) -> int:
        queryset = self.object_list
        return capped_count(queryset) if isinstance(queryset, QuerySet) else Capped(len(queryset))
