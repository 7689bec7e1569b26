"""The public face: all that `from django_outbox import outbox` offers.

Models live in `django_outbox.models`, signals in `django_outbox.signals`.
"""

from .errors import (
    InvalidName,
    InvalidPayload,
    InvalidSpec,
    LeadershipLost,
    LeaseLost,
    NotStored,
    OutboxError,
    PayloadError,
    PayloadTooLarge,
    ReservedName,
    SchemaError,
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
from .pulling import NamedOutbox, named, run_once
from .retries import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryStrategy
from .scheduling.declaring import scheduled
from .scheduling.registration import schedule, unschedule
from .scheduling.running import run_schedules
from .scheduling.stop_token import StopToken
from .schema import validate_schema

__all__ = [
    "ConstantRetry",
    "ExponentialRetry",
    "InvalidName",
    "InvalidPayload",
    "InvalidSpec",
    "LeadershipLost",
    "LeaseLost",
    "LinearRetry",
    "Message",
    "NamedOutbox",
    "NoRetry",
    "NotStored",
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
    "SchemaError",
    "StopToken",
    "TimerConflict",
    "TransactionLeftOpen",
    "TransactionRequired",
    "acancel_timer",
    "apublish",
    "apublish_many",
    "cancel_timer",
    "handler",
    "named",
    "publish",
    "publish_many",
    "publisher",
    "run_once",
    "run_schedules",
    "schedule",
    "scheduled",
    "unschedule",
    "validate_schema",
]
