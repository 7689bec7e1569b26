"""Show what is in the outbox."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser
from django.db import connections

from ...handlers import registry
from ...store import dead_letters, messages
from ..base import OutboxCommand

COLUMNS = ("queue", "ready", "leased", "scheduled", "retrying", "dead", "oldest ready")


class Command(OutboxCommand):
    help = (
        "Show, queue by queue, how many messages are ready, leased, scheduled for later, waiting "
        "for a retry, and dead, and for how long the oldest ready one has been due."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="Print JSON, for machines.")

    def handle(self, *args: Any, **options: Any) -> None:
        alias = self.ready_database(options["database"])
        queues = _queues(alias)
        if options["json"]:
            self.stdout.write(json.dumps({"database": alias, "queues": queues}, indent=2))
            return
        if not queues:
            self.stdout.write("The outbox is empty, and no handler is registered.")
            return
        for line in _table(queues):
            self.stdout.write(self._printable(line))
        for queue in queues:
            if not queue["has_handler"] and queue["ready"]:
                warning = f"No handler is registered here for {queue['queue']!r}."
                self.stdout.write(self.style.WARNING(self._printable(warning)))

    def _printable(self, text: str) -> str:
        """Escape what the terminal cannot show: a queue may have any name."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)


def _queues(alias: str) -> list[dict[str, Any]]:
    """Return one entry per queue that has messages, dead letters or a handler."""
    with connections[alias].cursor() as cursor:
        counts = {row.queue: row for row in messages.counts(cursor)}
        dead = dead_letters.counts(cursor)
    queues = []
    for name in sorted({*counts, *dead, *registry}):
        row = counts.get(name, messages.QueueCounts(name, 0, 0, 0, 0, None))
        queues.append(
            {
                "queue": name,
                "has_handler": registry.get(name) is not None,
                "ready": row.ready,
                "leased": row.leased,
                "scheduled": row.scheduled,
                "retrying": row.retrying,
                "dead": dead.get(name, 0),
                "oldest_ready_seconds": row.oldest_ready,
            }
        )
    return queues


def _table(queues: list[dict[str, Any]]) -> list[str]:
    rows: list[tuple[str, ...]] = [COLUMNS]
    for queue in queues:
        counts = [f"{queue[name]:,}" for name in COLUMNS[1:-1]]
        rows.append((_shown(queue["queue"]), *counts, _age(queue["oldest_ready_seconds"])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
