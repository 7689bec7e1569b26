"""A site that reaches its database through the pooler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.core.management import call_command
from django.db import connections, transaction

from django_outbox import outbox
from django_outbox.scheduling.running import stand_by
from django_outbox.worker.loop import Worker
from tests import support
from tests.pooler.bouncer import Bouncer, State
from tests.testapp.models import Order

ALIAS = "pooled"


class Site:
    """What a site does with its outbox, on the alias `pooled`."""

    def __init__(self, bouncer: Bouncer) -> None:
        self.bouncer = bouncer

    @property
    def database(self) -> str:
        return str(connections[ALIAS].settings_dict["NAME"])

    def publish(self, payload: Any = None, queue: str = "orders", **options: Any) -> int | None:
        with transaction.atomic(using=ALIAS):
            return outbox.publish(payload, queue=queue, using=ALIAS, **options)

    def publish_many(self, payloads: list[Any], queue: str = "orders", **options: Any) -> list[int]:
        with transaction.atomic(using=ALIAS):
            return outbox.publish_many(payloads, queue=queue, using=ALIAS, **options)

    def drain(self, **options: Any) -> None:
        support.drain(using=ALIAS, **options)

    def running(self, **options: Any) -> AbstractContextManager[Worker]:
        return support.running(using=ALIAS, **options)

    @contextmanager
    def scheduler(self) -> Iterator[None]:
        """Run a scheduler in a thread for the block."""
        stop = outbox.StopToken()
        thread = threading.Thread(target=stand_by, args=[stop], kwargs={"using": ALIAS})
        thread.start()
        try:
            yield
        finally:
            stop.stop()
            thread.join(support.PATIENCE)
        assert not thread.is_alive()

    def call(self, command: str, *arguments: str) -> None:
        call_command(command, *arguments, "--database", ALIAS, verbosity=0)

    def backend(self) -> int:
        """Return which session this thread's next transaction gets."""
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pid: int = cursor.fetchone()[0]
            return pid

    def states(self, sessions: int) -> list[State]:
        """Return what each of the sessions keeps, as other clients find it."""
        return self.bouncer.states(self.database, sessions)

    def orders(self) -> list[str]:
        return sorted(Order.objects.values_list("name", flat=True))


def reconnect(site: Site) -> None:
    """Close each of the server's sessions as soon as its transaction has ended."""
    site.bouncer.order("RECONNECT")


def pause(site: Site) -> None:
    """Wait for the end of each transaction, close the sessions, and go on."""
    site.bouncer.order("PAUSE", "RESUME")


def kill(site: Site) -> None:
    """Close all clients and all sessions at once, and go on."""
    site.bouncer.order(f'KILL "{site.database}"', f'RESUME "{site.database}"')


def restart(site: Site) -> None:
    site.bouncer.restart()
