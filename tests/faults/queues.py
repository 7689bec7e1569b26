"""What publishers, handlers and checks must agree on."""

from __future__ import annotations

import zlib
from typing import Any

LEASE_TTL = 4.0
"""Seconds; short, so that a worker that is paused loses its leases."""

ATTEMPTS = 3
"""After which a message of `failing` is buried."""

EXACTLY_ONCE = {"atomic", "slow_atomic", "batch", "acked", "relay", "retrying_atomic"}
"""Queues whose handlers write in the transaction that removes the message."""

BURIALS = {"failing": "retry_terminal", "rejecting": "rejected"}
"""Queues whose messages must become dead letters, with the reason."""

RELAYED = "/relayed"
"""What is added to a key for the message that the handler of `relay` returns."""


def content(key: str, **more: Any) -> dict[str, Any]:
    """Return a payload of which its handler can tell whether all of it has arrived."""
    filling = f"{key} ✓ " * 10
    return {"key": key, "filling": filling, "sum": zlib.crc32(filling.encode()), **more}


def is_intact(payload: dict[str, Any]) -> bool:
    """Tell whether it is as `content` made it."""
    return zlib.crc32(payload["filling"].encode()) == int(payload["sum"])
