"""Delete old dead letters, and counters that nobody looks at any more."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from ...models import DeadLetter
from ...presence import FORGET_COUNTERS_AFTER, FORGET_PROCESS_AFTER
from ...querysets import DeadLetterQuerySet
from ...store import dead_letters, workers
from ..base import OutboxCommand

MOST_UNITS = 999_999
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Command(OutboxCommand):
    help = (
        "Delete dead letters that are older than you say, and the counters of the admin's overview "
        "that are older than a day. Runs in batches that commit by themselves, so it can be "
        "interrupted and run again. Without --dead-older-than no dead letter is touched."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--dead-older-than",
            metavar="DURATION",
            help="Delete dead letters that failed longer ago: 90d, 12h, 30m, 2w, 45s.",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Say how many it would be, and change nothing."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        age = options["dead_older_than"]
        age = None if age is None else _duration(age)
        alias = self.ready_database(options["database"])
        counters = 0 if options["dry_run"] else self._forget_counters(alias)
        if age is None:
            self._say(
                options,
                f"Deleted {counters:,} old counter(s). Without --dead-older-than no dead letter is "
                "touched.",
            )
            return
        letters = self._old_letters(alias, age)
        if options["dry_run"]:
            self._say(options, f"Would delete {letters.count():,} dead letter(s).")
            return
        discarded = 0
        for batch in letters.discard_in_batches():
            discarded += batch
            if self.stderr.isatty() and options["verbosity"] > 0:
                self.stderr.write(f"\r{discarded:,} deleted", ending="")
        self._say(options, f"Deleted {discarded:,} dead letter(s).")

    def _old_letters(self, alias: str, age: timedelta) -> DeadLetterQuerySet:
        """Return the letters that are too old on the database's clock."""
        with connections[alias].cursor() as cursor:
            before = dead_letters.moment_before(cursor, age)
        letters: DeadLetterQuerySet = DeadLetter.objects.using(alias).filter(failed_at__lt=before)
        return letters

    def _forget_counters(self, alias: str) -> int:
        forgotten = 0
        lost, counters = FORGET_PROCESS_AFTER, FORGET_COUNTERS_AFTER
        with connections[alias].cursor() as cursor:
            while batch := workers.prune(cursor, lost=lost, counters=counters):
                forgotten += batch
        return forgotten

    def _say(self, options: dict[str, Any], text: str) -> None:
        if options["verbosity"] > 0:
            self.stdout.write(text)


def _duration(text: str) -> timedelta:
    match = re.fullmatch("(0|[1-9][0-9]*)([smhdw])", text)
    if match is None:
        raise CommandError(
            f"--dead-older-than {text!r} is no duration; write a whole number and one of s, m, h, "
            "d, w: 90d."
        )
    if not 1 <= int(match[1]) <= MOST_UNITS:
        raise CommandError(
            f"--dead-older-than {text!r} is out of range; the number must be from 1 to "
            f"{MOST_UNITS:,}."
        )
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
