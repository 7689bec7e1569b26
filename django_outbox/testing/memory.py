"""Messages of one database, kept in memory, with the semantics of the tables."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID, uuid4

from ..handlers import registry
from ..messages import LAST_MOMENT, Again, Bury, Claimed, Draft, Lease, Release, moment
from ..models import DeadLetter
from ..store.messages import Lane, Stored
from ..store.storage import Storage
from ..worker.inline import deliver_claimed
from .messages import StoredMessage, view


@dataclass(slots=True)
class _Row:
    id: int
    draft: Draft
    next_attempt_at: float
    expires_at: float | None
    created_at: float = field(default_factory=time.time)
    message_id: UUID = field(default_factory=uuid4)
    attempts_count: int = 0
    deliveries_count: int = 0
    first_attempt_at: float | None = None
    last_attempt_at: float | None = None
    last_error: str | None = None
    lease_token: str | None = None
    lease_expires_at: float = 0.0
    leased_by: str | None = None

    @property
    def is_claimable(self) -> bool:
        return self.lease_token is None or self.lease_expires_at < time.time()

    def take(self, draft: Draft, *, deadline: float, expires_at: float | None) -> None:
        """Take the content and deadline of another draft, and start afresh."""
        self.draft = draft
        self.next_attempt_at = deadline
        self.expires_at = expires_at
        self.attempts_count = 0
        self.first_attempt_at = self.last_attempt_at = self.last_error = None


class MemoryStorage(Storage):
    """One database's messages, in memory."""

    def __init__(
        self,
        alias: str,
        dead_letters: list[DeadLetter],
        note: Callable[[StoredMessage], None],
        *,
        sync: bool,
    ) -> None:
        self.alias = alias
        self._dead_letters = dead_letters
        self._note = note
        self._sync = sync
        self._rows: dict[int, _Row] = {}
        self._ids = itertools.count(1)
        self._hooks: list[Callable[[], None]] = []
        self._blocks = 0
        self._lock = threading.RLock()

    # Transactions

    @property
    def depth(self) -> int:
        return 1 + self._blocks  # one, since whether the test has opened a block is not known

    def has_opened(self, depth: int) -> bool:
        return True

    @contextmanager
    def atomic(self) -> Iterator[None]:
        before = {row.id: replace(row) for row in self._rows.values()}
        hooks = list(self._hooks)
        letters = len(self._dead_letters)
        self._blocks += 1
        try:
            yield
        except BaseException:
            self._rows, self._hooks = before, hooks
            del self._dead_letters[letters:]
            raise
        finally:
            self._blocks -= 1
        if not self._blocks:
            self._run_hooks()

    @contextmanager
    def sheltered(self) -> Iterator[None]:
        yield

    def on_commit(self, hook: Callable[[], None]) -> None:
        self._hooks.append(hook)
        if not self._blocks:
            self._run_hooks()

    def awaits_commit(self, hook: Callable[[], None]) -> bool:
        return hook in self._hooks

    def forget_hooks(self, owner: object) -> None:
        self._hooks = [hook for hook in self._hooks if getattr(hook, "__self__", None) != owner]

    def _run_hooks(self) -> None:
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook()

    # Publishing

    def insert(self, draft: Draft) -> int | None:
        with self._lock:
            row = self._insert(draft)
        if row is None:
            return None
        if row.draft is draft:  # else it was left as it is
            self._note(view(_stored(row)))
            self._deliver_at_once(row)
        return row.id

    def insert_many(self, drafts: Sequence[Draft]) -> list[int]:
        return [id_ for draft in drafts if (id_ := self.insert(draft)) is not None]

    def cancel_timer(self, *, queue: str, timer_id: str) -> bool:
        with self._lock:
            row = self._timer(queue, timer_id)
            if row is None or row.lease_token is not None:
                return False
            del self._rows[row.id]
            return True

    def _insert(self, draft: Draft) -> _Row | None:
        deadline, expires_at = _deadline(draft)
        row = None if draft.timer_id is None else self._timer(draft.queue, draft.timer_id)
        if row is None:
            row = _Row(next(self._ids), draft, deadline, expires_at)
            self._rows[row.id] = row
            return row
        if draft.timer_conflict == "ignore" or row.lease_token is not None:
            return None
        if draft.timer_conflict == "replace" or deadline > row.next_attempt_at:
            row.take(draft, deadline=deadline, expires_at=expires_at)
        return row

    def _timer(self, queue: str, timer_id: str) -> _Row | None:
        for row in self._rows.values():
            if (row.draft.queue, row.draft.timer_id) == (queue, timer_id):
                return row
        return None

    def _deliver_at_once(self, row: _Row) -> None:
        handler = registry.get(row.draft.queue)
        if self._sync and handler is not None:
            claimed = self._lease(row, Lane(row.draft.queue, handler.lease_ttl), "sync", rank=1)
            deliver_claimed(self, claimed, handler, worker_id="sync")

    # Claiming

    def live(self) -> list[Stored]:
        return [_stored(row) for row in self._in_order()]

    def first_due(self, queues: Sequence[str], *, ahead: float) -> str | None:
        due = self._due(queues, ahead)
        return due[0].draft.queue if due else None

    def claim(
        self, lanes: Sequence[Lane], *, limit: int, worker_id: str, ahead: float
    ) -> list[Claimed]:
        with self._lock:
            picked = [
                (row, lane, rank)
                for rank, lane in enumerate(lanes, start=1)
                for row in self._due([lane.queue], ahead)
            ]
            return [
                self._lease(row, lane, worker_id, rank=rank, ahead=ahead)
                for row, lane, rank in picked[:limit]
            ]

    def _in_order(self) -> list[_Row]:
        return sorted(self._rows.copy().values(), key=lambda row: (row.next_attempt_at, row.id))

    def _due(self, queues: Sequence[str], ahead: float) -> list[_Row]:
        now = time.time() + ahead
        return [
            row
            for row in self._in_order()
            if row.draft.queue in queues and row.next_attempt_at <= now and row.is_claimable
        ]

    def _lease(
        self, row: _Row, lane: Lane, worker_id: str, *, rank: int, ahead: float = 0.0
    ) -> Claimed:
        now = time.time()
        row.lease_token = str(uuid4())
        row.lease_expires_at = now + lane.lease_ttl
        row.leased_by = worker_id
        row.deliveries_count += 1
        first = row.first_attempt_at
        return Claimed(
            id=row.id,
            message_id=row.message_id,
            queue=row.draft.queue,
            body=row.draft.body,
            headers=json.dumps(row.draft.headers),
            correlation_id=row.draft.correlation_id,
            timer_id=row.draft.timer_id,
            max_attempts=row.draft.max_attempts,
            attempts_count=row.attempts_count,
            deliveries_count=row.deliveries_count,
            created_at=row.created_at,
            failing_for=None if first is None else now - first,
            expired=row.expires_at is not None and row.expires_at <= now + ahead,
            due_at=row.next_attempt_at,
            rank=rank,
            lease=Lease(row.id, row.lease_token),
        )

    # Settling

    def fence(self, lease: Lease) -> bool:
        return self._held(lease) is not None

    def complete(self, lease: Lease) -> bool:
        if self._held(lease) is None:
            return False
        del self._rows[lease.id]
        return True

    def retry(self, lease: Lease, outcome: Again) -> bool:
        row = self._held(lease)
        if row is None:
            return False
        self._count_attempt(row)
        row.next_attempt_at = time.time() + outcome.delay
        row.last_error = outcome.error
        self._free(row)
        return True

    def bury(self, lease: Lease, outcome: Bury) -> bool:
        row = self._held(lease)
        if row is None:
            return False
        if outcome.attempted:
            self._count_attempt(row)
        del self._rows[lease.id]
        self._dead_letters.append(_letter(row, outcome))
        return True

    def release(self, lease: Lease, outcome: Release) -> bool:
        row = self._held(lease)
        if row is None:
            return False
        row.deliveries_count -= outcome.refund
        if outcome.delay is not None:
            row.next_attempt_at = time.time() + outcome.delay
        self._free(row)
        return True

    def renew(self, lease: Lease, *, ttl: float) -> bool:
        row = self._held(lease)
        if row is None:
            return False
        row.lease_expires_at = time.time() + ttl
        return True

    def _held(self, lease: Lease) -> _Row | None:
        row = self._rows.get(lease.id)
        return row if row is not None and row.lease_token == lease.token else None

    def _count_attempt(self, row: _Row) -> None:
        row.attempts_count += 1
        row.last_attempt_at = time.time()
        row.first_attempt_at = row.first_attempt_at or row.last_attempt_at

    def _free(self, row: _Row) -> None:
        row.lease_token = row.leased_by = None
        row.lease_expires_at = 0.0


def _deadline(draft: Draft) -> tuple[float, float | None]:
    at = draft.activate_at
    deadline = time.time() + draft.activate_in.total_seconds() if at is None else at.timestamp()
    deadline = min(deadline, LAST_MOMENT.timestamp())
    expires_in = draft.expires_in
    return deadline, None if expires_in is None else deadline + expires_in.total_seconds()


def _stored(row: _Row) -> Stored:
    return Stored(
        id=row.id,
        message_id=row.message_id,
        queue=row.draft.queue,
        body=row.draft.body,
        headers=json.dumps(row.draft.headers),
        correlation_id=row.draft.correlation_id,
        timer_id=row.draft.timer_id,
        attempts_count=row.attempts_count,
        deliveries_count=row.deliveries_count,
        created_at=row.created_at,
        next_attempt_at=row.next_attempt_at,
        expires_at=row.expires_at,
        max_attempts=row.draft.max_attempts,
        last_error=row.last_error,
    )


def _letter(row: _Row, burial: Bury) -> DeadLetter:
    return DeadLetter(
        original_id=row.id,
        message_id=row.message_id,
        queue=row.draft.queue,
        payload=row.draft.body,
        headers=dict(row.draft.headers),
        correlation_id=row.draft.correlation_id,
        ref=row.draft.ref,
        timer_id=row.draft.timer_id,
        created_at=moment(row.created_at),
        first_attempt_at=_moment(row.first_attempt_at),
        last_attempt_at=_moment(row.last_attempt_at),
        attempts_count=row.attempts_count,
        deliveries_count=row.deliveries_count,
        failed_at=moment(time.time()),
        failure_reason=burial.reason,
        exception_class=burial.exception_class,
        last_exception=burial.error if burial.attempted else row.last_error,
        fingerprint=burial.fingerprint,
    )


def _moment(epoch: float | None) -> datetime | None:
    return None if epoch is None else moment(epoch)
