"""The lease of the one scheduler that ticks.

Its owner's token is unique to the runner, not to the process or host: two runners must never take
each other's lease for their own. Expiry goes by the database's clock.
"""

from __future__ import annotations

import os
import socket
from uuid import uuid4

from django.db import connections

from ..store import leases as store

NAME = "__scheduler"
TTL = 10.0
"""Seconds that a lease lasts after it was taken or renewed."""

RENEW_EVERY = 2.0


class Leadership:
    """One runner's claim to lead."""

    def __init__(self, using: str) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex}"[-255:]
        self._using = using

    def acquire(self) -> bool:
        """Take the lease if nobody else has it."""
        with connections[self._using].cursor() as cursor:
            return store.acquire(cursor, name=NAME, owner=self.owner, ttl=TTL)

    def renew(self) -> bool:
        """Keep the lease; False if it has run out or is another's."""
        with connections[self._using].cursor() as cursor:
            return store.renew(cursor, name=NAME, owner=self.owner, ttl=TTL)

    def release(self) -> bool:
        """Give the lease up, for a stand-by to take at once; False if it was not held any more."""
        with connections[self._using].cursor() as cursor:
            return store.release(cursor, name=NAME, owner=self.owner)

    def seconds_of_others(self) -> float:
        """Return for how many seconds another runner leads still, 0 if none does."""
        with connections[self._using].cursor() as cursor:
            return store.remaining(cursor, name=NAME, besides=self.owner)
