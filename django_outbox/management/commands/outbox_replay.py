"""Make live messages of dead letters again."""

from __future__ import annotations

from datetime import datetime, time
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from ... import names
from ...messages import ReplayResult
from ...models import DeadLetter
from ...querysets import DeadLetterQuerySet
from ..base import OutboxCommand, number


class Command(OutboxCommand):
    help = (
        "Give dead letters another life: each becomes a live message with its payload, headers, "
        "message_id and timer_id, and all counters at zero. Runs in batches that commit by "
        "themselves, so it can be interrupted and run again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "ids", nargs="*", metavar="ID", help="Ids of dead letters, or message_ids (UUIDs)."
        )
        parser.add_argument("--queue", metavar="NAME", help="Only letters of this queue.")
        parser.add_argument(
            "--reason",
            choices=DeadLetter.Reason.values,
            metavar="R",
            help=f"Only letters buried for this reason: {', '.join(DeadLetter.Reason.values)}.",
        )
        parser.add_argument(
            "--before",
            metavar="WHEN",
            help=(
                "Only letters that failed before this ISO 8601 moment or date, in the current "
                "time zone if it has no offset."
            ),
        )
        parser.add_argument(
            "--all", action="store_true", help="Every letter there is; without it, say which."
        )
        parser.add_argument(
            "--per-second",
            type=number(float, least=0.001, what="positive number"),
            metavar="N",
            help="Make N of them due a second, instead of all at once.",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Say how many it would be, and change nothing."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = _chosen(options)
        if chosen == Q() and not options["all"]:
            raise CommandError(
                "Say which letters: their ids, --queue, --reason, --before, or --all for every one."
            )
        if chosen != Q() and options["all"]:
            raise CommandError("--all means every letter; leave out the rest, or leave out --all.")
        alias = self.ready_database(options["database"])
        letters: DeadLetterQuerySet = DeadLetter.objects.using(alias).filter(chosen)
        if options["dry_run"]:
            self.stdout.write(f"Would replay {letters.count():,} dead letter(s).")
            return
        result = ReplayResult()
        for batch in letters.replay_in_batches(options["per_second"]):
            result += batch
            if self.stderr.isatty() and options["verbosity"] > 0:
                self.stderr.write(f"\r{result.replayed:,} replayed", ending="")
        if options["verbosity"] > 0:
            self.stdout.write(_summary(result))


def _chosen(options: dict[str, Any]) -> Q:
    chosen = Q()
    if options["ids"]:
        chosen &= _with_ids(options["ids"])
    if options["queue"] is not None:
        if flaw := names.flaw_in_text(options["queue"]):
            raise CommandError(f"--queue {flaw}.")
        chosen &= Q(queue=options["queue"])
    if options["reason"] is not None:
        chosen &= Q(failure_reason=options["reason"])
    if options["before"] is not None:
        chosen &= Q(failed_at__lt=_moment(options["before"]))
    return chosen


def _with_ids(given: list[str]) -> Q:
    ids, message_ids = [], []
    for text in given:
        if text.isdecimal() and len(text) < len(str(2**63)):
            ids.append(int(text))
            continue
        try:
            message_ids.append(UUID(text))
        except ValueError:
            raise CommandError(
                f"{text!r} is neither the id of a dead letter nor a message_id."
            ) from None
    return Q(pk__in=ids) | Q(message_id__in=message_ids)


def _moment(text: str) -> datetime:
    try:
        moment = parse_datetime(text)
        if moment is None and (day := parse_date(text)) is not None:
            moment = datetime.combine(day, time())
    except ValueError as error:
        raise CommandError(f"--before {text!r}: {error}.") from error
    if moment is None:
        raise CommandError(
            f"--before {text!r} is not a moment; write 2026-01-31 or 2026-01-31T12:00:00+01:00."
        )
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def _summary(result: ReplayResult) -> str:
    skipped = (
        f" Skipped {result.skipped:,}: a live timer has their timer_id." if result.skipped else ""
    )
    return f"Replayed {result.replayed:,} dead letter(s).{skipped}"
