"""What one peer must be able to do to be compared.

The command asks a peer only for its class attributes. Everything else runs in a process of the
peer's own, which imports its package and knows its database as `DATABASE_URL`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

BODY = {"text": "x" * (256 - len(json.dumps({"text": ""})))}
ENCODED = json.dumps(BODY).encode()  # 256 bytes


@dataclass(frozen=True)
class Consumer:
    """One way to run a peer's consumer; `arguments` go to its `consume()`."""

    options: str
    arguments: dict[str, Any] = field(default_factory=dict)
    processes: int = 1
    slow: bool = False
    """Whether it gets the smaller number of messages."""


class Peer(ABC):
    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    """Its distributions, and those that it owes its speed to."""
    tables: ClassVar[tuple[str, ...]]
    """What is emptied before each measurement."""
    left: ClassVar[str]
    """SQL that tells whether work is left."""
    consumers: ClassVar[tuple[Consumer, ...]]
    ways: ClassVar[tuple[str, ...]] = ()
    """What `publish` can be asked for, of `WAYS`."""
    listener: ClassVar[Consumer | None] = None
    """The consumer whose idle latency is measured, if notifications wake it."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the tables."""

    @abstractmethod
    def fill(self, messages: int) -> None:
        """Publish so many messages, in the fastest way there is."""

    @abstractmethod
    def consume(self, **arguments: Any) -> None:
        """Consume until a signal comes; each handler does nothing but call `marks.handled`."""

    def publish(self, way: str, messages: int) -> float:
        """Publish so many messages and return the seconds it took."""
        raise NotImplementedError

    def publisher(self) -> AbstractContextManager[Callable[[], None]]:
        """Return what publishes one message in a transaction of its own, on an open connection."""
        raise NotImplementedError


ONE = "in one transaction"
EACH = "each in its own"
MANY = "many at once"
WAYS = (ONE, EACH, MANY)


def chunks(messages: int, at_once: int) -> Iterator[int]:
    """Yield how many to publish by each statement, until all are published."""
    for begun in range(0, messages, at_once):
        yield min(at_once, messages - begun)
