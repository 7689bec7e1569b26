"""Handlers that write what they do into the ledger."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import connection, transaction

from django_outbox import outbox
from tests.faults.queues import ATTEMPTS, LEASE_TTL, RELAYED, content, is_intact

Message = outbox.Message[Any]

handler = partial(
    outbox.handler, lease_ttl=LEASE_TTL, retry=outbox.ConstantRetry(0.3, max_attempts=100)
)


def note(message: Message, *, done: bool = True) -> None:
    _insert(message.payload["key"], message, done=done, intact=is_intact(message.payload))


def _insert(key: str, message: Message, *, done: bool, intact: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO faults_delivery (key, message_id, queue, done, intact)"
            " VALUES (%s, %s, %s, %s, %s)",
            [key, message.id, message.queue, done, intact],
        )


@handler("plain", "later", "timer", "expiring", "relayed")
def plain(message: Message) -> None:
    note(message)


@handler("slow")
def slow(message: Message) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [message.payload["seconds"]])
    note(message)


@handler("slow_atomic", atomic=True)
def slow_atomic(message: Message) -> None:
    slow(message)


@handler("atomic", atomic=True)
def atomic(message: Message) -> None:
    note(message)


@handler("batch", atomic=True, atomic_batch=20)
def batch(message: Message) -> None:
    note(message)


@handler("acked")
def acked(message: Message) -> None:
    with transaction.atomic():
        note(message)
        message.ack()


@handler("relay", atomic=True)
def relay(message: Message) -> outbox.OutboxResponse:
    note(message)
    return outbox.OutboxResponse(content(message.payload["key"] + RELAYED), queue="relayed")


def fails(message: Message) -> bool:
    failures: int = message.payload["failures"]
    return message.attempt <= failures


@handler("retrying")
def retrying(message: Message) -> None:
    note(message, done=not fails(message))
    if fails(message):
        raise RuntimeError("fails at first")


@handler("retrying_atomic", atomic=True)
def retrying_atomic(message: Message) -> None:
    note(message)
    if fails(message):
        raise RuntimeError("fails at first, and what it wrote is undone")


@handler("failing", retry=outbox.ConstantRetry(0.3, max_attempts=ATTEMPTS))
def failing(message: Message) -> None:
    note(message, done=False)
    raise RuntimeError("fails always")


@handler("rejecting")
def rejecting(message: Message) -> None:
    note(message, done=False)
    raise outbox.Reject("nobody wants it")


@handler("scheduled")
def scheduled(message: Message) -> None:
    key = f"{message.headers['schedule']} {message.headers['boundary']}"
    _insert(key, message, done=True, intact=True)
