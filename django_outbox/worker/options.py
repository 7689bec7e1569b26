"""How a worker runs; what the options of `outbox_worker` say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """`strict` serves the queues by priority; `shutdown_timeout` is in seconds."""

    using: str
    worker_id: str
    concurrency: int = 8
    batch_size: int = 500
    strict: bool = False
    drain: bool = False
    max_messages: int | None = None
    shutdown_timeout: float = 30.0
