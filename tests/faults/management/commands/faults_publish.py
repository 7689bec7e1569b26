"""Publish for the fault suite, through outages, until enough has been acknowledged."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import Error, connection

from tests.faults.ledger import Journal
from tests.faults.publisher import Publisher


class Command(BaseCommand):
    help = "Publish so many messages in so many seconds; killed and started again, it goes on."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("journal", type=Path)
        parser.add_argument("--messages", type=int, required=True)
        parser.add_argument("--seconds", type=float, required=True)
        parser.add_argument("--seed", type=int, required=True)

    def handle(self, *args: Any, **options: Any) -> None:
        name, messages = options["name"], options["messages"]
        chance = Random(f"{options['seed']} {name} {os.getpid()}")
        publisher = Publisher(name, Journal(options["journal"]), chance)
        began, had = time.monotonic(), publisher.acknowledged
        while publisher.acknowledged < messages:
            elapsed = time.monotonic() - began
            if publisher.acknowledged > had + messages * elapsed / options["seconds"]:
                time.sleep(0.01)  # to keep to the pace
                continue
            try:
                publisher.publish()
            except Error as error:
                self.stderr.write(f"{type(error).__name__}: {error}")
                connection.close()
                time.sleep(0.2)  # as any client does before it tries again
