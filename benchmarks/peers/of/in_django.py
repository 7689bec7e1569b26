"""The peers that are Django apps with a worker command: set up by `PEERS_APPS`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.peers.peer import BODY, EACH, ONE, Consumer, Peer


class InDjango(Peer):
    apps: str
    command: tuple[str, ...]
    ways = (ONE, EACH)

    def set_up(self) -> None:
        """Make Django ready, with the peer's apps in it."""
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.peers.settings"
        os.environ["PEERS_APPS"] = self.apps
        import django

        django.setup()

    def sender(self) -> Callable[[], Any]:
        """Return what publishes one message."""
        raise NotImplementedError

    def prepare(self) -> None:
        self.set_up()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def fill(self, messages: int) -> None:
        self.publish(ONE, messages)

    def consume(self, **arguments: Any) -> None:
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.peers.settings"
        os.environ["PEERS_APPS"] = self.apps
        os.execv(sys.executable, [sys.executable, "manage.py", *self.command])  # noqa: S606

    def publish(self, way: str, messages: int) -> float:
        self.set_up()
        from django.db import connection, transaction

        send = self.sender()
        connection.ensure_connection()
        transactions, sends = (1, messages) if way == ONE else (messages, 1)
        began = time.perf_counter()
        for _ in range(transactions):
            with transaction.atomic():
                for _ in range(sends):
                    send()
        return time.perf_counter() - began


class DjangoTasksDb(InDjango):
    """Its tasks stay in the table when they are done; its connections stay open here."""

    name = "django-tasks-db"
    packages = ("django-tasks-db",)
    apps = "django_tasks_db"
    command = ("db_worker", "--no-startup-delay", "--no-reload")
    tables = ("django_tasks_database_dbtaskresult",)
    left = (
        "SELECT EXISTS (SELECT FROM django_tasks_database_dbtaskresult"
        " WHERE status IN ('READY', 'RUNNING'))"
    )
    consumers = (
        Consumer("2 processes, connections kept", processes=2, slow=True),
        Consumer("1 process, connections kept", slow=True),
    )

    def sender(self) -> Callable[[], Any]:
        from benchmarks.peers.of.tasks import task

        return lambda: task.enqueue(**BODY)


class ReliableOutbox(InDjango):
    """Its messages stay in the table when they are delivered."""

    name = "django-reliable-outbox"
    packages = ("django-reliable-outbox",)
    apps = "reliable_outbox benchmarks.peers.reliable"
    command = ("outbox_worker", "--batch-size=100")
    tables = ("reliable_outbox_outboxmessage",)
    left = "SELECT EXISTS (SELECT FROM reliable_outbox_outboxmessage WHERE status = 'pending')"
    consumers = (Consumer("batch 100", slow=True),)

    def sender(self) -> Callable[[], Any]:
        from reliable_outbox import publish

        return lambda: publish("peers", BODY)
