"""Every exception the package raises by its own name.

All derive from `OutboxError`; those about a bad value also from `ValueError`, so that code which
validates input need not know this package.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from django.db.transaction import TransactionManagementError


class OutboxError(Exception):
    """The base of all errors of this package."""


class InvalidName(OutboxError, ValueError):
    """The name of a queue, a schedule or a named outbox is empty, too long or not storable."""


class ReservedName(OutboxError, ValueError):
    """The name starts with `__`, which is kept for the package itself."""


class InvalidSpec(OutboxError, ValueError):
    """The spec of a schedule cannot be read, or would never fire."""


class LeadershipLost(OutboxError):
    """Another scheduler leads, or the lease could not be renewed in time."""


class PayloadError(OutboxError, ValueError):
    """The payload holds something that JSON cannot carry."""


class PayloadTooLarge(OutboxError, ValueError):
    """The encoded payload is larger than the setting `MAX_PAYLOAD_BYTES` allows."""


class InvalidPayload(OutboxError, ValueError):
    """A stored payload cannot be decoded, or does not fit the type the handler asks for."""


class TransactionRequired(OutboxError, TransactionManagementError):
    """Publishing outside a transaction; the setting `REQUIRE_ATOMIC` allows it."""


class NotStored(OutboxError):
    """The database has passed over what was to be written, without an error: a trigger did."""


class LeaseLost(OutboxError):
    """Another worker holds the message by now, or it is gone; this delivery must not count."""


class TransactionLeftOpen(OutboxError):
    """A handler returned with a transaction open, so what it wrote there is rolled back."""


class SchemaError(OutboxError):
    """The tables in the database are not as the migrations made them."""

    def __init__(self, alias: str, differences: Sequence[object]) -> None:
        self.alias = alias
        self.differences = list(differences)
        super().__init__(alias, self.differences)

    def __str__(self) -> str:
        lines = "\n".join(f"- {difference}" for difference in self.differences)
        return f"The schema of django_outbox in the database {self.alias!r} differs:\n{lines}"


def summary(error: BaseException) -> str:
    """Return what an error says without the details that the database gives, which quote rows."""
    for one in (error, error.__cause__):  # Django's stands before psycopg's
        if isinstance(one, psycopg.Error) and one.diag.message_primary:
            return one.diag.message_primary
    return str(error).strip() or type(error).__name__
