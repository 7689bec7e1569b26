"""Any sequence of publishing, timers, claims and settlements does what a small model says.

The model knows nothing of SQL and nothing of clocks: what is due is told by numbers that stand for
moments long ago, of this test, in an hour, and long from now.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_outbox.messages import Claimed
from django_outbox.testing import FakeOutbox

from .box import Box, Fake, Tables

QUEUES = ["orders", "refunds"]
LONG_AGO, NOW, IN_AN_HOUR, FAR = 0.0, 1000.0, 2000.0, 3000.0
HORIZONS = {0.0: IN_AN_HOUR, 7200.0: FAR, 200 * 365 * 86400.0: FAR + 1000}
"""How far each `ahead` in seconds looks: what lies below that number counts as due."""

deadlines = st.sampled_from([LONG_AGO, LONG_AGO + 1, LONG_AGO + 2, FAR, FAR + 1, FAR + 2])
# Mostly the same timer, so that what happens to it meets.
queues = st.sampled_from(["orders", "orders", "orders", "refunds"])
timer_ids = st.sampled_from(["a", "a", "a", "b"])
picks = st.sampled_from([0, 0, 0, 1, 2, 5, 9])
"""Which lease to settle: those that stand come first."""


def moment(deadline: float) -> datetime:
    """Return the moment that a number of the model's stands for, if it was given by us."""
    start = datetime(2000, 1, 1, tzinfo=UTC)
    if deadline >= FAR:
        start, deadline = datetime(2100, 1, 1, tzinfo=UTC), deadline - FAR
    return start + timedelta(minutes=deadline)


@dataclass
class Row:
    id: int
    queue: str
    timer_id: str | None
    payload: int
    deadline: float
    expires: bool
    attempts: int = 0
    deliveries: int = 0
    token: str | None = None
    has_run_out: bool = False
    message_id: UUID | None = None
    errors: list[str] = field(default_factory=list)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.box = self.open()
        self.rows: dict[int, Row] = {}
        self.letters: list[tuple[int, int, str | None]] = []
        self.leases: list[Claimed] = []
        self.payloads = itertools.count()
        self.ticks = itertools.count()

    def open(self) -> Box:
        raise NotImplementedError

    def in_order(self) -> list[Row]:
        return sorted(self.rows.values(), key=lambda row: (row.deadline, row.id))

    def timer(self, queue: str, timer_id: str | None) -> Row | None:
        for row in self.rows.values():
            if timer_id is not None and (row.queue, row.timer_id) == (queue, timer_id):
                return row
        return None

    def held(self, lease: Claimed) -> Row | None:
        row = self.rows.get(lease.id)
        return row if row is not None and row.token == lease.lease.token else None

    def pick(self, nth: int) -> Claimed:
        stale_last = sorted(self.leases, key=lambda lease: self.held(lease) is None)
        return stale_last[min(nth, len(stale_last) - 1)]

    def now(self) -> float:
        return NOW + next(self.ticks) / 1000

    # Publishers

    @rule(queue=queues, timer_id=timer_ids | st.none(), deadline=deadlines, expires=st.booleans())
    def publish(self, queue: str, timer_id: str | None, deadline: float, expires: bool) -> None:
        self.put(queue, timer_id, "ignore", deadline, expires)

    @rule(
        queue=queues,
        timer_id=timer_ids,
        conflict=st.sampled_from(["extend", "replace"]),
        deadline=deadlines,
        expires=st.booleans(),
    )
    def move(
        self, queue: str, timer_id: str, conflict: str, deadline: float, expires: bool
    ) -> None:
        self.put(queue, timer_id, conflict, deadline, expires)

    def put(
        self, queue: str, timer_id: str | None, conflict: str, deadline: float, expires: bool
    ) -> None:
        payload = next(self.payloads)
        answer = self.box.publish(
            payload,
            queue=queue,
            timer_id=timer_id,
            timer_conflict=conflict,
            activate_at=moment(deadline),
            expires_in=1 if expires else None,
        )
        row = self.timer(queue, timer_id)
        if row is None:
            assert answer is not None
            assert answer not in self.rows
            self.rows[answer] = Row(answer, queue, timer_id, payload, deadline, expires)
        elif conflict == "ignore" or row.token is not None:
            assert answer is None
        else:
            assert answer == row.id
            if conflict == "replace" or deadline > row.deadline:
                row.payload, row.deadline, row.expires = payload, deadline, expires
                row.attempts = 0
                row.errors.clear()

    @rule(queue=queues, timer_id=timer_ids)
    def cancel(self, queue: str, timer_id: str) -> None:
        row = self.timer(queue, timer_id)
        cancelled = row is not None and row.token is None

        assert self.box.cancel(timer_id, queue=queue) is cancelled
        if row is not None and cancelled:
            del self.rows[row.id]

    # Workers

    @rule(
        lanes=st.permutations(QUEUES).flatmap(lambda q: st.sampled_from([q, q[:1]])),
        limit=st.integers(1, 4),
        ahead=st.sampled_from(list(HORIZONS)),
        runs_out=st.booleans(),
    )
    def claim(self, lanes: list[str], limit: int, ahead: float, runs_out: bool) -> None:
        claimed = self.box.claim(*lanes, limit=limit, lease_ttl=-1 if runs_out else 60, ahead=ahead)

        due = [
            row
            for queue in lanes
            for row in self.in_order()
            if row.queue == queue
            and row.deadline < HORIZONS[ahead]
            and (row.token is None or row.has_run_out)
        ]
        assert [lease.id for lease in claimed] == [row.id for row in due[:limit]]
        for lease, row in zip(claimed, due, strict=False):
            assert lease.lease.token != row.token
            row.token, row.has_run_out = lease.lease.token, runs_out
            row.deliveries += 1
            assert lease.body == str(row.payload).encode()
            assert (lease.queue, lease.timer_id) == (row.queue, row.timer_id)
            assert (lease.attempts_count, lease.deliveries_count) == (row.attempts, row.deliveries)
            assert (lease.failing_for is None) == (row.attempts == 0)
            if not row.expires:
                assert lease.expired is False
        self.leases += claimed

    @precondition(lambda self: self.leases)
    @rule(nth=picks)
    def complete(self, nth: int) -> None:
        lease = self.pick(nth)
        row = self.held(lease)

        assert self.box.complete(lease) is (row is not None)
        if row is not None:
            del self.rows[row.id]

    @precondition(lambda self: self.leases)
    @rule(nth=picks, delay=st.sampled_from([0.0, 3600.0]))
    def fail(self, nth: int, delay: float) -> None:
        lease = self.pick(nth)
        row = self.held(lease)
        error = f"error {next(self.payloads)}"

        assert self.box.fail(lease, delay=delay, error=error) is (row is not None)
        if row is not None:
            row.deadline = self.now() + (IN_AN_HOUR - NOW if delay else 0)
            row.attempts += 1
            row.errors.append(error)
            row.token = None

    @precondition(lambda self: self.leases)
    @rule(nth=picks, attempted=st.booleans())
    def bury(self, nth: int, attempted: bool) -> None:
        lease = self.pick(nth)
        row = self.held(lease)
        reason: Any = "rejected" if attempted else "expired"

        assert self.box.bury(lease, reason, attempted=attempted) is (row is not None)
        if row is not None:
            del self.rows[row.id]
            errors = ["it broke"] if attempted else row.errors
            self.letters.append((row.id, row.attempts + attempted, errors[-1] if errors else None))

    @precondition(lambda self: self.leases)
    @rule(nth=picks, refund=st.booleans())
    def release(self, nth: int, refund: bool) -> None:
        lease = self.pick(nth)
        row = self.held(lease)

        assert self.box.release(lease, refund=refund) is (row is not None)
        if row is not None:
            row.deliveries -= refund
            row.token = None

    @precondition(lambda self: self.leases)
    @rule(nth=picks, runs_out=st.booleans())
    def renew(self, nth: int, runs_out: bool) -> None:
        lease = self.pick(nth)
        row = self.held(lease)

        assert self.box.renew(lease, ttl=-1 if runs_out else 60) is (row is not None)
        if row is not None:
            row.has_run_out = runs_out

    # What must hold at any time

    @invariant()
    def the_live_messages_are_those_of_the_model(self) -> None:
        messages = self.box.messages()
        rows = self.in_order()
        assert [message.id for message in messages] == [row.id for row in rows]
        for message, row in zip(messages, rows, strict=True):
            assert (message.queue, message.timer_id) == (row.queue, row.timer_id)
            assert message.payload == row.payload
            assert message.attempt == row.attempts + 1
            assert message.deliveries_count == row.deliveries
            assert message.last_error == (row.errors[-1] if row.errors else None)
            assert (message.expires_at is not None) == row.expires
            if not NOW <= row.deadline < FAR:
                assert message.next_attempt_at == moment(row.deadline)
            row.message_id = row.message_id or message.message_id
            assert message.message_id == row.message_id

    @invariant()
    def the_dead_letters_are_those_of_the_model(self) -> None:
        letters = [
            (letter.original_id, letter.attempts_count, letter.last_exception)
            for letter in self.box.letters()
        ]
        assert letters == self.letters

    @invariant()
    def no_timer_is_there_twice(self) -> None:
        timers = [
            (message.queue, message.timer_id)
            for message in self.box.messages()
            if message.timer_id is not None
        ]
        assert len(timers) == len(set(timers))


class ModelOfTables(Model):
    def open(self) -> Box:
        self.block = transaction.atomic()
        self.block.__enter__()
        return Tables()

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.block.__exit__(None, None, None)


class ModelOfTheFake(Model):
    def open(self) -> Box:
        self.fake = FakeOutbox()
        self.fake.__enter__()
        return Fake(self.fake)

    def teardown(self) -> None:
        self.fake.__exit__(None, None, None)


def run(model: type[Model], *, examples: int) -> None:
    run_state_machine_as_test(
        model, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )


@pytest.mark.django_db
def test_the_tables_do_what_the_model_says() -> None:
    run(ModelOfTables, examples=50)


def test_the_fake_does_what_the_model_says() -> None:
    run(ModelOfTheFake, examples=100)
