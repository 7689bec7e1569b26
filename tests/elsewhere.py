"""An outbox in another database than that of the tests."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import transaction

from django_outbox import outbox


class Elsewhere:
    """The outbox of the database `alias`."""

    alias: ClassVar[str]

    def publish(self, payload: Any = None, *, queue: str, **options: Any) -> int:
        """Publish in a transaction of its own and return the id."""
        with transaction.atomic(using=self.alias):
            id_ = outbox.publish(payload, queue=queue, using=self.alias, **options)
        assert id_ is not None
        return id_

    def publish_many(self, payloads: list[Any], *, queue: str) -> list[int]:
        """Publish in a transaction of its own and return the ids."""
        with transaction.atomic(using=self.alias):
            return outbox.publish_many(payloads, queue=queue, using=self.alias)
