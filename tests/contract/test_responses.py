"""Responses: what a handler returns is published in the transaction that settles its message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from tests.support import (
    committed,
    drain,
    message_row,
    publish,
    session,
    steal,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def test_a_returned_response_is_published_when_the_message_is_settled() -> None:
    got: list[outbox.Message[Any]] = []
    outbox.handler("invoices")(got.append)

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        return outbox.OutboxResponse({"n": 1}, queue="invoices", headers={"tenant": "acme"})

    publish(correlation_id="request-1")
    drain()

    (response,) = got
    assert response.payload == {"n": 1}
    assert response.headers["tenant"] == "acme"
    assert response.correlation_id == "request-1"
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize("atomic", [False, True])
def test_a_list_of_responses_is_published_with_publishs_options(*, atomic: bool) -> None:
    @outbox.handler("orders", atomic=atomic)
    def handle(message: outbox.Message[Any]) -> list[outbox.OutboxResponse]:
        return [
            outbox.OutboxResponse(
                1,
                queue="invoices",
                correlation_id="mine",
                activate_in=timedelta(hours=1),
                timer_id="t",
                expires_in=60,
                max_attempts=3,
            ),
            outbox.OutboxResponse(b"two", queue="labels"),
        ]

    publish()
    drain("orders")

    first, second = OutboxMessage.objects.order_by("id")
    assert (first.queue, bytes(first.payload), first.correlation_id) == ("invoices", b"1", "mine")
    assert (first.timer_id, first.max_attempts) == ("t", 3)
    assert first.expires_at is not None
    assert first.expires_at - first.next_attempt_at == timedelta(seconds=60)
    assert first.next_attempt_at - first.created_at > timedelta(minutes=59)
    assert (second.queue, bytes(second.payload)) == ("labels", b"two")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_response_is_published_in_the_transaction_that_removes_the_message(
    *,
    is_async: bool,
) -> None:
    """Each row carries the transaction that wrote it: the response's has removed the message."""
    response = outbox.OutboxResponse(1, queue="invoices")

    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        return response

    async def handle_async(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        return response

    outbox.handler("orders")(handle_async if is_async else handle)
    with session() as other:
        other.execute("CREATE TABLE removals (id bigint, xid xid8)")
        other.execute(
            "CREATE FUNCTION note_removal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO removals VALUES (OLD.id, pg_current_xact_id()); RETURN OLD; END $$"
        )
        other.execute(
            "CREATE TRIGGER note AFTER DELETE ON django_outbox_message"
            " FOR EACH ROW EXECUTE FUNCTION note_removal()"
        )
        try:
            id_ = publish()
            drain("orders")
            removed = other.execute("SELECT id, xid::xid FROM removals").fetchall()
            inserted = other.execute("SELECT xmin FROM django_outbox_message").fetchall()
        finally:
            other.execute("DROP TRIGGER note ON django_outbox_message")
            other.execute("DROP FUNCTION note_removal")
            other.execute("DROP TABLE removals")

    ((removed_id, removal),) = removed
    assert removed_id == id_
    assert inserted == [(removal,)]


@pytest.mark.parametrize(
    "response",
    [
        outbox.OutboxResponse(float("nan"), queue="invoices"),
        outbox.OutboxResponse(1, queue="__private"),
        outbox.OutboxResponse(1, queue=""),
        outbox.OutboxResponse(1, queue="invoices", max_attempts=0),
    ],
    ids=["payload", "reserved queue", "no queue", "max_attempts"],
)
def test_a_response_that_cannot_be_published_is_a_failed_attempt(
    response: outbox.OutboxResponse,
) -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> list[outbox.OutboxResponse]:
        return [outbox.OutboxResponse(1, queue="labels"), response]

    id_ = publish()
    drain()

    row = message_row(id_)
    assert row.attempts_count == 1
    assert row.lease_token is None
    assert OutboxMessage.objects.count() == 1  # the good response has not stayed either


def test_a_response_is_not_published_when_the_lease_was_lost() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        steal(message.id)
        return outbox.OutboxResponse(1, queue="invoices")

    id_ = publish()
    drain()

    assert [row.id for row in OutboxMessage.objects.all()] == [id_]
