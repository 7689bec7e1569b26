"""An outbox as a test works it: the same verbs on the tables and on the fake.

What is public goes through the public functions; the verbs of a worker go through the storage that
stands behind them.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

from django_outbox import outbox
from django_outbox.messages import Again, Bury, Claimed, Reason, Release
from django_outbox.models import DeadLetter
from django_outbox.store.messages import Lane
from django_outbox.store.storage import Storage, storage_for
from django_outbox.testing import FakeOutbox, StoredMessage, drain, published

from .helpers import row


class Box:
    """What publishers, workers and tests do to an outbox. Settling tells whether it did."""

    # A publisher

    def publish(self, payload: Any = None, *, queue: str = "orders", **options: Any) -> int | None:
        return outbox.publish(payload, queue=queue, **options)

    def timer(
        self,
        payload: Any = None,
        conflict: Any = "ignore",
        *,
        queue: str = "orders",
        **options: Any,
    ) -> int | None:
        """Publish under the timer_id "t"."""
        options = {"timer_id": "t", **options}
        return outbox.publish(payload, queue=queue, timer_conflict=conflict, **options)

    def cancel(self, timer_id: str = "t", *, queue: str = "orders") -> bool:
        return outbox.cancel_timer(queue=queue, timer_id=timer_id)

    # A worker

    def claim(
        self, *queues: str, limit: int = 1, lease_ttl: float = 60.0, ahead: float = 0.0
    ) -> list[Claimed]:
        lanes = [Lane(queue, lease_ttl) for queue in queues or ("orders",)]
        return self._storage.claim(lanes, limit=limit, worker_id="a worker", ahead=ahead)

    def complete(self, claimed: Claimed) -> bool:
        return self._storage.complete(claimed.lease)

    def fail(self, claimed: Claimed, *, delay: float = 0.0, error: str = "it broke") -> bool:
        failure = Again(delay=delay, exception=RuntimeError(error), error=error)
        return self._storage.retry(claimed.lease, failure)

    def bury(self, claimed: Claimed, reason: Reason, *, attempted: bool = True) -> bool:
        burial = Bury(
            reason=reason,
            attempted=attempted,
            exception=None,
            error="it broke" if attempted else None,
            exception_class="RuntimeError" if attempted else None,
            fingerprint="f",
        )
        return self._storage.bury(claimed.lease, burial)

    def release(self, claimed: Claimed, *, refund: bool = True, delay: float | None = None) -> bool:
        return self._storage.release(claimed.lease, Release(refund=refund, delay=delay))

    def renew(self, claimed: Claimed, *, ttl: float) -> bool:
        return self._storage.renew(claimed.lease, ttl=ttl)

    # A test

    def drain(self, *queues: str, advance: timedelta | None = None) -> int:
        raise NotImplementedError

    def messages(self) -> list[StoredMessage]:
        """Return the live messages in claim order."""
        raise NotImplementedError

    def letters(self) -> list[DeadLetter]:
        """Return the dead letters in the order of their burial."""
        raise NotImplementedError

    def message(self, id_: int | None) -> StoredMessage:
        (message,) = (message for message in self.messages() if message.id == id_)
        return message

    def columns(self, id_: int | None) -> dict[str, Any]:
        """Return all that can be seen of a live message, to be compared."""
        message = self.message(id_)
        names = [field.name for field in fields(message) if field.name != "_hold"]
        return {name: getattr(message, name) for name in names}

    @property
    def _storage(self) -> Storage:
        return storage_for("default")


class Tables(Box):
    """The outbox in PostgreSQL, in the test's transaction."""

    def drain(self, *queues: str, advance: timedelta | None = None) -> int:
        return drain(*queues, advance=advance)

    def messages(self) -> list[StoredMessage]:
        return published()

    def letters(self) -> list[DeadLetter]:
        return list(DeadLetter.objects.order_by("id"))

    def columns(self, id_: int | None) -> dict[str, Any]:
        stored = vars(row(id_))
        return {name: stored[name] for name in stored if name != "_state"}


class Fake(Box):
    """The outbox in memory; the database is out of reach."""

    def __init__(self, fake: FakeOutbox) -> None:
        self._fake = fake

    def drain(self, *queues: str, advance: timedelta | None = None) -> int:
        return self._fake.drain(*queues, advance=advance)

    def messages(self) -> list[StoredMessage]:
        return self._fake.messages

    def letters(self) -> list[DeadLetter]:
        return self._fake.dead_letters
