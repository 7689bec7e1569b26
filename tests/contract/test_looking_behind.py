"""What lies behind the claim window is found soon, and nobody is kept busy with looking for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from django_outbox import outbox
from django_outbox.messages import Claimed
from django_outbox.store import Cursor, messages
from django_outbox.worker.delivery import Delivery
from tests.support import (
    Gate,
    committed,
    publish,
    running,
    session,
    steal,
    wait_for,
    wait_until,
    worker,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]

OVERDUE = """
INSERT INTO django_outbox_message (queue, payload, headers, correlation_id, next_attempt_at)
VALUES ('orders', '"late"', '{"content-type": "application/json"}', 'c', %s)
"""


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by how many messages each claim has brought."""
    sizes: list[int] = []
    claim = messages.claim

    def counted(cursor: Cursor, lanes: Sequence[messages.Lane], **options: Any) -> list[Claimed]:
        claimed = claim(cursor, lanes, **options)
        sizes.append(len(claimed))
        return claimed

    monkeypatch.setattr(messages, "claim", counted)
    return sizes


def test_a_claim_that_stalled_once_neither_hides_what_is_overdue_nor_makes_a_busy_loop(
    claims: list[int],
) -> None:
    gate = Gate()
    late = threading.Event()

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "late":
            late.set()
        else:
            gate.wait()

    publish("first")
    with running(concurrency=4):
        wait_for(gate.reached)
        with session() as other, other.transaction():
            other.execute("LOCK TABLE django_outbox_message IN ACCESS EXCLUSIVE MODE")
            other.execute("SELECT pg_sleep(0.6)")
        with session() as other:
            other.execute(OVERDUE, ["2020-01-01"])
        before = len(claims)
        wait_until(late.is_set, within=6)
        gate.opened.set()

    assert len(claims) - before < 60


@pytest.mark.parametrize("moment", ["-infinity", "1900-01-01", "2020-01-01"])
def test_an_idle_worker_finds_a_row_that_was_due_long_ago(moment: str) -> None:
    handled = threading.Event()

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.set()

    with running() as idle:
        wait_until(lambda: idle._claims.is_exhausted)
        with session() as other:
            other.execute(OVERDUE, [moment])
        wait_until(handled.is_set, within=5)


def test_of_a_message_in_hand_twice_the_lease_of_the_last_claim_is_renewed() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None: ...

    id_ = publish()
    twice = worker("orders")

    def claim() -> Delivery:
        (claimed,) = twice._database.call(
            messages.claim, [messages.Lane("orders", 60.0)], limit=1, worker_id="w"
        )
        handler = twice._handlers["orders"]
        return Delivery(claimed, handler, storage=twice._storage, claimed_at=0.0)

    first = claim()
    steal(id_)
    with session() as other:
        other.execute("UPDATE django_outbox_message SET lease_expires_at = '2020-01-01'")
    last = claim()

    assert twice._leases._renew_rows([first, last], began=0.0) == {last}
    assert (first.lost, last.lost) == (True, False)
    twice._database.close()
    twice._wakeup.close()
