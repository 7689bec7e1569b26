"""Fire recurring schedules, as the leader or standing by."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, connections

from ...errors import summary
from ...scheduling.running import stand_by, tick_once
from ...scheduling.stop_token import StopToken
from ..base import OutboxCommand, check_schedules, log_to_stderr


class Command(OutboxCommand):
    help = (
        "Fire recurring schedules. Of all schedulers that run, one leads; the others stand by and "
        "take over within ten seconds when it is gone. SIGTERM and SIGINT give the lead up and "
        "exit 0; a second signal exits at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--once",
            action="store_true",
            help="Write the declared schedules, fire what is due now, and exit; needs no lead.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        log_to_stderr(options["verbosity"])
        stop = StopToken()
        if not options["once"]:
            _stop_on_signals(stop)
        alias = self.ready_database(options["database"])
        declared = check_schedules()
        if options["once"]:
            published = self._once(alias)
            if options["verbosity"] > 0:
                self.stdout.write(f"Published {published:,} message(s).")
            return
        if options["verbosity"] > 0:
            self.stderr.write(
                f"Scheduler on {alias!r}; {declared:,} schedule(s) declared. Stop it with CTRL-C."
            )
        connections[alias].close()  # the scheduler has one of its own
        stand_by(stop, using=alias)

    def _once(self, alias: str) -> int:
        try:
            published, is_left = tick_once(StopToken(), using=alias)
        except DatabaseError as error:
            raise CommandError(f"The database refused a statement: {summary(error)}") from error
        if is_left:
            self.stderr.write(
                "Somebody has locked schedules that are due; the next run fires them."
            )
        return published


def _stop_on_signals(stop: StopToken) -> None:
    """Stop in good order on the first SIGTERM or SIGINT, at once on the second."""

    def take(signum: int, frame: FrameType | None) -> None:
        if stop.stopped:
            os._exit(128 + signum)
        stop.stop()

    signal.signal(signal.SIGTERM, take)
    signal.signal(signal.SIGINT, take)
