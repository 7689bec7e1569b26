"""Signals about deliveries, sent after their outcome has been written.

Every one comes with `message` (a `Message`), `worker_id` and `duration` (seconds). A receiver
that raises is logged and harms nothing.
"""

from django.dispatch import Signal

message_completed = Signal()
"""Delivered, and its row is gone."""

message_retried = Signal()
"""Failed; also `exception` and `delay` (seconds until the next attempt)."""

message_buried = Signal()
"""Moved to the dead letters; also `reason` and `exception` (None if the handler did not run)."""

message_released = Signal()
"""Handed back; also `exception`, None unless the handler's database session had gone."""

lease_lost = Signal()
"""Another worker has it by now; also `phase`, what could not be written."""
