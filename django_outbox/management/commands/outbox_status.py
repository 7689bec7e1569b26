"""Show what is in the outbox."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser
from django.db import connections

from ... import names
from ...handlers import registry
from ...messages import moment
from ...scheduling.leadership import NAME as LEADER
from ...store import dead_letters, leases, messages, schedules
from ..base import OutboxCommand

COLUMNS = ("queue", "ready", "leased", "scheduled", "retrying", "dead", "oldest ready")
SCHEDULE_COLUMNS = ("schedule", "spec", "queue", "next", "last", "skipped")


class Command(OutboxCommand):
    help = (
        "Show, queue by queue, how many messages are ready, leased, scheduled for later, waiting "
        "for a retry, and dead, and for how long the oldest ready one has been due; then the "
        "schedules, when they fire next and fired last, what is wrong with them, and who leads."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="Print JSON, for machines.")

    def handle(self, *args: Any, **options: Any) -> None:
        alias = self.ready_database(options["database"])
        queues, planned = _queues(alias), _schedules(alias)
        leader = _leader(alias)
        if options["json"]:
            report = {"database": alias, "queues": queues, "schedules": planned, "leader": leader}
            self.stdout.write(json.dumps(report, indent=2))
            return
        self._show_queues(queues)
        if planned:
            self._show_schedules(planned, leader)

    def _show_queues(self, queues: list[dict[str, Any]]) -> None:
        if not queues:
            self.stdout.write("The outbox is empty, and no handler is registered.")
        else:
            self._show(_queue_table(queues))
        for queue in queues:
            if queue["has_handler"] is False and queue["ready"]:
                warning = f"No handler is registered here for {queue['queue']!r}."
                self.stdout.write(self.style.WARNING(self._printable(warning)))

    def _show_schedules(self, planned: list[dict[str, Any]], leader: str | None) -> None:
        self.stdout.write("")
        self._show(_schedule_table(planned))
        for schedule in planned:
            if schedule["last_error"]:
                error = schedule["last_error"].partition("\n")[0]
                warning = f"{_shown(schedule['schedule'])}: {_shown(error)}"
                self.stdout.write(self.style.WARNING(self._printable(warning)))
        if leader is not None:
            self.stdout.write(self._printable(f"{_shown(leader)} leads."))
        elif any(schedule["enabled"] for schedule in planned):
            warning = "No scheduler leads. Start one: manage.py outbox_scheduler"
            self.stdout.write(self.style.WARNING(warning))

    def _show(self, rows: list[tuple[str, ...]]) -> None:
        """Write a table, its first column to the left and the others to the right."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *others in rows:
            aligned = [c.rjust(w) for c, w in zip(others, widths[1:], strict=True)]
            self.stdout.write(self._printable("  ".join([first.ljust(widths[0]), *aligned])))

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
                # A named outbox has none: its messages are pulled.
                "has_handler": None if names.is_reserved(name) else name in registry,
                "ready": row.ready,
                "leased": row.leased,
                "scheduled": row.scheduled,
                "retrying": row.retrying,
                "dead": dead.get(name, 0),
                "oldest_ready_seconds": row.oldest_ready,
            }
        )
    return queues


def _schedules(alias: str) -> list[dict[str, Any]]:
    with connections[alias].cursor() as cursor:
        standings = schedules.standings(cursor)
    return [
        {
            "schedule": one.name,
            "spec": one.spec,
            "timezone": one.timezone,
            "queue": one.queue,
            "enabled": one.enabled,
            "next_run_at": _iso(one.next_run_at),
            "last_run_at": _iso(one.last_run_at),
            "last_error": one.last_error,
            "skipped_count": one.skipped_count,
        }
        for one in standings
    ]


def _leader(alias: str) -> str | None:
    with connections[alias].cursor() as cursor:
        return leases.holder(cursor, name=LEADER)


def _iso(epoch: float | None) -> str | None:
    return None if epoch is None else moment(epoch).isoformat()


def _queue_table(queues: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [COLUMNS]
    for queue in queues:
        counts = [f"{queue[name]:,}" for name in COLUMNS[1:-1]]
        rows.append((_shown(queue["queue"]), *counts, _age(queue["oldest_ready_seconds"])))
    return rows


def _schedule_table(planned: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [SCHEDULE_COLUMNS]
    for one in planned:
        next_run = _clock(one["next_run_at"]) if one["enabled"] else "disabled"
        texts = (one["schedule"], one["spec"], one["queue"])
        skipped = f"{one['skipped_count']:,}"
        rows.append((*map(_shown, texts), next_run, _clock(one["last_run_at"]), skipped))
    return rows


def _clock(iso: str | None) -> str:
    return "-" if iso is None else f"{iso[:19].replace('T', ' ')}Z"


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
