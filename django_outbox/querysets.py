"""What can be done to many dead letters at once.

Both operations work through their letters in batches, each one statement. Outside a transaction
every batch commits by itself, so an interrupted run has done part of its work and can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.db import connections, models

from .conf import settings
from .messages import ReplayResult
from .store import dead_letters as store

if TYPE_CHECKING:
    from .models import DeadLetter  # noqa: F401 - named in a string below

BATCH = 1000
SLOWEST = 0.001
"""Letters a second; slower than one in a quarter of an hour is no replay."""


class DeadLetterQuerySet(models.QuerySet["DeadLetter"]):
    """Dead letters, oldest first unless ordered otherwise."""

    def replay(self, per_second: float | None = None) -> ReplayResult:
        """Make live messages of these letters again, due now or `per_second` of them a second.

        A letter leaves the table; its message keeps payload, headers, `message_id` and `timer_id`
        and starts anew: counters at zero, no expiry, no limit of its own. One whose `timer_id`
        belongs to a live message stays where it is and counts as skipped.
        """
        return sum(self.replay_in_batches(per_second), ReplayResult())

    def replay_in_batches(self, per_second: float | None = None) -> Iterator[ReplayResult]:
        """Replay as `replay` does and yield the result of each batch when it is done."""
        if per_second is not None and not isinstance(per_second, int | float):
            raise TypeError(f"per_second must be a number; {per_second!r} is not.")
        if per_second is not None and not per_second >= SLOWEST:
            raise ValueError(f"per_second must be at least {SLOWEST}; it is {per_second!r}.")
        return self._replayed(step=0.0 if per_second is None else 1 / per_second)

    def _replayed(self, *, step: float) -> Iterator[ReplayResult]:
        first = 0
        for ids in self._batches():
            with connections[self.db].cursor() as cursor:
                result = ReplayResult(
                    *store.replay(cursor, ids, step=step, first=first, notify=settings.notify)
                )
            first += result.replayed + result.skipped
            yield result

    def discard(self) -> int:
        """Delete these letters for good and return how many there were."""
        return sum(self.discard_in_batches())

    def discard_in_batches(self) -> Iterator[int]:
        """Discard as `discard` does and yield how many each batch was when it is done."""
        for ids in self._batches():
            with connections[self.db].cursor() as cursor:
                discarded = store.discard(cursor, ids)
            yield discarded

    # No template may change anything by naming them.
    replay.alters_data = True  # type: ignore[attr-defined]
    replay_in_batches.alters_data = True  # type: ignore[attr-defined]
    discard.alters_data = True  # type: ignore[attr-defined]
    discard_in_batches.alters_data = True  # type: ignore[attr-defined]

    def _batches(self) -> Iterator[list[int]]:
        """Yield the ids in batches, in the order of the ids, each batch read when it is due.

        What is buried meanwhile has a higher id than all there was at the start and is left alone:
        letters that fail again as fast as they are replayed would keep this running for ever.
        """
        if self.query.is_sliced:
            raise TypeError("Cannot replay or discard a slice; filter by id instead.")
        self._for_write = True
        rows = self.using(self.db)
        remaining = (
            rows.filter(pk__lte=self._highest_id()).order_by("pk").values_list("pk", flat=True)
        )
        last: Any = None
        while ids := list((remaining if last is None else remaining.filter(pk__gt=last))[:BATCH]):
            yield ids
            last = ids[-1]

    def _highest_id(self) -> int:
        """Return the highest id in the table, of any letter: one look at the primary key."""
        letters = self.model._base_manager.using(self.db)  # noqa: SLF001 - Django's documented name
        highest: int | None = letters.aggregate(highest=models.Max("pk"))["highest"]
        return highest or 0
