"""Show the outbox at work."""

from __future__ import annotations

import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, connection

from example_project.shop.demo.database import fresh_database
from example_project.shop.demo.interrupting import interruptible
from example_project.shop.demo.processes import ProcessEnded, Processes
from example_project.shop.demo.screen import Screen
from example_project.shop.demo.serving import serve
from example_project.shop.demo.story import Story, TooSlow, play

INTERRUPTED = 130


class Command(BaseCommand):
    help = (
        "Sell 500 things on a PostgreSQL server of its own, kill the worker midway, and check that "
        "the books are right all the same. Exits 1 if they are not."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--serve",
            action="store_true",
            help="Leave the shop's site and its worker running, to be looked at.",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError(
                "The outbox needs PostgreSQL: point DATABASE_URL to one, or unset it."
            )
        screen = Screen(self)
        try:
            with interruptible():
                good = serve(screen) if options["serve"] else _play(screen)
        except KeyboardInterrupt:
            screen.say("Interrupted; all that was started is stopped.")
            sys.exit(INTERRUPTED)
        except (ProcessEnded, TooSlow) as error:
            raise CommandError(str(error)) from error
        except OperationalError as error:
            raise CommandError(f"The database does not answer: {error}") from error
        if not good:
            sys.exit(1)


def _play(screen: Screen) -> bool:
    began = time.perf_counter()
    screen.progress("PostgreSQL is starting")
    with fresh_database(), Processes() as processes:
        good = play(Story(screen=screen, processes=processes, began=began))
        if not good:
            processes.keep_log()
            screen.say(f"What the workers wrote: {processes.log}")
        return good
