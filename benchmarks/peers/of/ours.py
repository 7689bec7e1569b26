"""django_outbox itself: a real `outbox_worker`, with the options that it has by itself."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.peer import BODY, EACH, MANY, ONE, Consumer, Peer

QUEUE = "peers"


class DjangoOutbox(Peer):
    name = "django_outbox"
    packages = ("django-outbox-pg", "Django", "psycopg")
    tables = ("django_outbox_message",)
    left = "SELECT EXISTS (SELECT FROM django_outbox_message)"
    consumers = (Consumer("default options"),)
    ways = (ONE, EACH, MANY)
    listener = Consumer("default options")

    def prepare(self) -> None:
        set_up()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def fill(self, messages: int) -> None:
        self.publish(MANY, messages)

    def consume(self, **arguments: Any) -> None:
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.peers.settings"
        worker = ["manage.py", "outbox_worker", "--no-reload"]
        os.execv(sys.executable, [sys.executable, *worker])  # noqa: S606

    def publish(self, way: str, messages: int) -> float:
        set_up()
        from django.db import connection

        connection.ensure_connection()
        began = time.perf_counter()
        _WAYS[way](messages)
        return time.perf_counter() - began

    @contextmanager
    def publisher(self) -> Iterator[Callable[[], None]]:
        set_up()
        yield lambda: _each(1)


def set_up() -> None:
    """Make Django ready, with django_outbox in it."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.peers.settings"
    import django

    django.setup()


def _one(messages: int) -> None:
    from django.db import transaction

    from django_outbox import outbox

    with transaction.atomic():
        for _ in range(messages):
            outbox.publish(BODY, queue=QUEUE)


def _each(messages: int) -> None:
    for _ in range(messages):
        _one(1)


def _many(messages: int) -> None:
    from django.db import transaction

    from django_outbox import outbox

    with transaction.atomic():
        outbox.publish_many([BODY] * messages, queue=QUEUE)


_WAYS = {ONE: _one, EACH: _each, MANY: _many}
