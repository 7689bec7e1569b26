"""A message written by hand is delivered, waits or is buried, and keeps no other waiting."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage
from tests.by_hand import values
from tests.support import committed, drain, publish, publish_many, session

pytestmark = [committed, pytest.mark.usefixtures("registry")]

QUEUES = ("succeeds", "fails", "rejects")


@pytest.fixture
def handled() -> list[int]:
    """The ids that the handlers of three queues have had: one succeeds, one fails, one rejects."""
    got: list[int] = []

    @outbox.handler(*QUEUES, retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.id)
        if message.queue == "fails":
            raise ValueError("no stock")
        if message.queue == "rejects":
            raise outbox.Reject("no such order")

    return got


class Fate(NamedTuple):
    """How many of a column's wrong rows are delivered, buried undelivered, or left alone."""

    delivered: int
    buried: int = 0
    waiting: int = 0
    reason: str = ""


FATES = {
    "id": Fate(4),
    "queue": Fate(0, waiting=4),  # of queues that nobody serves
    "payload": Fate(6, buried=6, reason="invalid_payload"),
    "headers": Fate(5, buried=10, reason="invalid_payload"),
    "correlation_id": Fate(4),
    "ref": Fate(4),
    "timer_id": Fate(4),
    "created_at": Fate(5),
    "next_attempt_at": Fate(2, waiting=3),  # not due before the end of time
    "expires_at": Fate(3, buried=2, reason="expired"),
    "max_attempts": Fate(4),
    "attempts_count": Fate(4),
    "deliveries_count": Fate(3, buried=1, reason="max_deliveries"),
    "first_attempt_at": Fate(5),
    "last_attempt_at": Fate(5),
    "last_error": Fate(2),
    "leased_by": Fate(4),
    "lease_expires_at": Fate(2, waiting=3),  # leased until the end of time
}


def write(column: str, value: str, queue: str) -> None:
    """Write a message that is wrong in one column."""
    id_ = publish({"n": 1}, queue)
    token = ", lease_token = gen_random_uuid()" if column == "lease_expires_at" else ""
    with session() as other:
        other.execute(
            f"UPDATE django_outbox_message SET {column} = {value} {token} WHERE id = {id_}"
        )


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("column", FATES)
def test_wrong_rows_keep_no_other_waiting(column: str, queue: str, handled: list[int]) -> None:
    for value in values.MESSAGE[column]:
        write(column, value, queue)
    good = publish_many(list(range(10)), "succeeds")
    fate = FATES[column]

    drain()

    reasons = Counter(DeadLetter.objects.values_list("failure_reason", flat=True))
    given_up = 3 if (column, queue) == ("max_attempts", "fails") else 0  # 0 and less than it
    retried = fate.delivered - given_up if queue == "fails" else 0
    rejected = fate.delivered if queue == "rejects" else 0
    assert set(good) <= set(handled)
    assert len(handled) == len(good) + fate.delivered
    assert OutboxMessage.objects.count() == fate.waiting + retried
    assert reasons == +Counter(
        {fate.reason: fate.buried, "rejected": rejected, "retry_terminal": given_up}
    )


def test_every_column_is_tried() -> None:
    columns = {field.column for field in OutboxMessage._meta.fields}

    assert columns - {*FATES} == {"message_id", "lease_token"}  # any UUID will do
