"""One message in a worker's hands, from its claim to its settlement."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from django.db.transaction import TransactionManagementError

from ..errors import InvalidPayload, LeaseLost
from ..handlers import Handler
from ..messages import Claimed, Lease, Message, content_type, receive
from ..store.storage import Storage


class Delivery:
    """A claimed message with its handler, and how far it has come.

    The loop creates it; a handler thread sets `started_at` and `ended_at`. Times are
    `time.monotonic()`; `claimed_at` is taken before the claim is sent, so a lease never looks
    longer than it is.
    """

    __slots__ = (
        "ack_committed",
        "apart",
        "claimed",
        "claimed_at",
        "depth",
        "ended_at",
        "handler",
        "is_committed",
        "lost",
        "lost_in",
        "missed_at",
        "renew_at",
        "request_renewal",
        "settles_itself",
        "started_at",
        "storage",
        "timed_out",
        "unsure",
    )

    def __init__(
        self,
        claimed: Claimed,
        handler: Handler,
        *,
        storage: Storage,
        claimed_at: float,
        request_renewal: Callable[[Delivery], Future[bool]] | None = None,
    ) -> None:
        self.claimed = claimed
        self.handler = handler
        self.storage = storage
        self.depth = 0
        self.claimed_at = claimed_at
        self.renew_at = claimed_at + handler.lease_ttl / 3
        self.request_renewal = request_renewal
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.ack_committed = False
        self.is_committed = False
        self.apart = False  # not to share a transaction with others
        self.timed_out = False
        self.settles_itself = handler.atomic
        self.lost = False
        self.lost_in: str | None = None
        self.missed_at: float | None = None  # since when it could not be settled
        self.unsure = False

    @property
    def lease(self) -> Lease:
        return self.claimed.lease

    @property
    def is_acked(self) -> bool:
        """Whether an ack stands: committed, or in a transaction that is still open."""
        return self.ack_committed or self.storage.awaits_commit(self._note_commit)

    @property
    def lease_ends_at(self) -> float:
        """When the lease runs out if it is not renewed any more."""
        return self.renew_at + self.handler.lease_ttl * 2 / 3

    @property
    def duration(self) -> float:
        """Seconds the handler has run, 0 if it has not."""
        if self.started_at is None:
            return 0.0
        return (self.ended_at or time.monotonic()) - self.started_at

    @property
    def failing_for(self) -> float:
        """Seconds since the first failed attempt, 0 if there was none."""
        if self.claimed.failing_for is None:
            return 0.0
        return max(0.0, self.claimed.failing_for) + time.monotonic() - self.claimed_at

    def decode(self) -> Message[Any]:
        """Decode the message for its handler; raise `InvalidPayload` if it cannot be.

        It is not kept: the two would refer to each other, and each message would then be left to
        the garbage collector, which took an eighth of a busy worker's time.
        """
        headers = self.claimed.read_headers()
        payload = self.handler.decode(self.claimed.body, content_type(headers))
        return receive(self.claimed, payload=payload, headers=headers, hold=self)

    def describe(self) -> Message[Any]:
        """Return the message for a signal, with raw bytes as payload if it cannot be decoded."""
        try:
            return self.decode()
        except Exception:  # of a type's own decoding too; the delivery has had it already
            body = self.claimed.body
        try:
            headers = self.claimed.read_headers()
        except InvalidPayload:
            headers = {}
        return receive(self.claimed, payload=body, headers=headers, hold=self)

    def loss(self, phase: str) -> LeaseLost:
        """Return the error that says that this delivery's lease is lost."""
        self.lost_in = phase
        return LeaseLost(f"Message {self.claimed.id} is no longer leased by this delivery.")

    def ack(self) -> None:
        """Remove the message in the transaction that its handler has opened."""
        if not self.storage.has_opened(self.depth):
            raise TransactionManagementError(
                "message.ack() settles the message together with your writes, so it belongs inside "
                f"transaction.atomic() on the database {self.storage.alias!r}. To be done without "
                "one, return from the handler."
            )
        self.settles_itself = True
        if not self.storage.complete(self.lease) and not self.is_acked:
            raise self.loss("ack")
        self.storage.on_commit(self._note_commit)

    def _note_commit(self) -> None:
        self.ack_committed = True

    def note_atomic_commit(self) -> None:
        """Note that the transaction of an atomic handler has been committed."""
        self.is_committed = True

    def part(self) -> None:
        """Begin anew, by itself: the transaction shared with others has come to nothing."""
        self.apart = True
        self.started_at = self.ended_at = None
        self.ack_committed = self.is_committed = False
        self.lost_in = None
        self.timed_out = False

    def heartbeat(self) -> bool:
        """Have the lease renewed now; False if it is lost.

        Waits for a database that is away, as the lease's own renewals do.
        """
        if self.request_renewal is None:
            return self.storage.renew(self.lease, ttl=self.handler.lease_ttl)
        return self.request_renewal(self).result()
