"""The public face: all that `from django_outbox import outbox` offers.

Models live in `django_outbox.models`, signals in `django_outbox.signals`.
"""

from .errors import (
    InvalidName,
    InvalidPayload,
    LeaseLost,
    OutboxError,
    PayloadError,
    PayloadTooLarge,
    ReservedName,
    TransactionLeftOpen,
    TransactionRequired,
)
from .handlers import Reject, Retry, handler
from .messages import Message, OutboxResponse, ReplayResult, TimerConflict
from .publishing import (
    OutboxPublisher,
    acancel_timer,
    apublish,
    apublish_many,
    cancel_timer,
    publish,
    publish_many,
    publisher,
)
from .retries import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryStrategy

__all__ = [
    "ConstantRetry",
    "ExponentialRetry",
    "InvalidName",
    "InvalidPayload",
    "LeaseLost",
    "LinearRetry",
    "Message",
    "NoRetry",
    "OutboxError",
    "OutboxPublisher",
    "OutboxResponse",
    "PayloadError",
    "PayloadTooLarge",
    "Reject",
    "ReplayResult",
    "ReservedName",
    "Retry",
    "RetryStrategy",
    "TimerConflict",
    "TransactionLeftOpen",
    "TransactionRequired",
    "acancel_timer",
    "apublish",
    "apublish_many",
    "cancel_timer",
    "handler",
    "publish",
    "publish_many",
    "publisher",
]
