"""An outbox in memory, for tests without a database.

It replaces the storage and nothing else: messages are built, checked, dispatched, retried and
buried by the very code that a worker runs.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType

from ..models import DeadLetter
from ..publishing import default_alias
from ..store.storage import substituted
from .memory import MemoryStorage
from .messages import StoredMessage, drain_storage, view


class FakeOutbox:
    """Take the place of the tables behind `outbox` while the `with` block runs.

    `messages` are the live ones in claim order, `dead_letters` the buried ones (unsaved models),
    and `published` is everything that was published, in order, with its deadline. With `sync`
    every message is delivered inside `publish`, whatever its deadline.

    What it cannot know: a rollback of the database takes no message back, and it does not see
    whether `transaction.atomic()` is open, so publishing and `ack()` outside of it pass. A handler
    that opens a block itself needs a database to open it on. It notifies nobody.
    """

    def __init__(self, *, sync: bool = False) -> None:
        self.published: list[StoredMessage] = []
        self.dead_letters: list[DeadLetter] = []
        self._sync = sync
        self._storages: dict[str, MemoryStorage] = {}
        self._entered = ExitStack()

    def __enter__(self) -> FakeOutbox:
        self._entered.enter_context(substituted(self._storage))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.close()

    @property
    def messages(self) -> list[StoredMessage]:
        """The live messages in the order of their claims."""
        return [view(row) for row in self._storage(default_alias()).live()]

    def drain(self, *queues: str, advance: timedelta | None = None) -> int:
        """Deliver what is due, as `django_outbox.testing.drain` does."""
        return drain_storage(self._storage(default_alias()), queues, advance=advance)

    def _storage(self, alias: str) -> MemoryStorage:
        if alias not in self._storages:
            self._storages[alias] = MemoryStorage(
                alias, self.dead_letters, self.published.append, sync=self._sync
            )
        return self._storages[alias]
