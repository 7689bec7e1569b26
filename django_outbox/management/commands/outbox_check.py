"""See whether the database's tables are still as the migrations made them."""

from __future__ import annotations

import json
from textwrap import indent
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...schema import find_differences
from ..base import OutboxCommand


class Command(OutboxCommand):
    help = (
        "Compare the tables in the database with what the migrations make: each missing or "
        "different column, index, CHECK, storage option and trigger is named with the statements "
        "that mend it, to be run one by one, and the exit code is 1. Nothing is changed, and what "
        "you have added is left alone."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="Print JSON, for machines.")

    def handle(self, *args: Any, **options: Any) -> None:
        alias = self.ready_database(options["database"])
        found = find_differences(alias)
        if options["json"]:
            report = {"database": alias, "differences": [one._asdict() for one in found]}
            self.stdout.write(json.dumps(report, indent=2))
        else:
            for difference in found:
                self.stdout.write(f"{difference.what}\n{indent(difference.mend, '    ')}")
        if found:
            raise CommandError(f"{len(found):,} difference(s) in the database {alias!r}.")
        if not options["json"] and options["verbosity"] > 0:
            self.stdout.write(f"The tables in the database {alias!r} are as they should be.")
