"""What the world hears of deliveries: log records and signals, after the write has succeeded.

Nothing is logged per message above DEBUG unless something went wrong, and no record carries a
payload. Receivers run in the handler threads, so that a slow one does not hold up the loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from django.dispatch import Signal

from .. import signals
from ..messages import SETTLED, Again, Bury, Done, Lost, Outcome, Release
from . import failures
from .delivery import Delivery

logger = logging.getLogger("django_outbox")

PHASES: dict[type, str] = {Done: "complete", Again: "retry", Bury: "bury", Release: "release"}
"""What is being written of each outcome, as logs and signals call it."""


class Reporter:
    """Log, count and signal for one worker; `submit` runs a job in a handler thread."""

    def __init__(
        self,
        worker_id: str,
        submit: Callable[[Callable[[], None]], None],
        count: Callable[[str, type, int], None] = lambda queue, kind, number: None,
    ) -> None:
        self._worker_id = worker_id
        self._submit = submit
        self._count = count

    def all_settled(self, ended: Sequence[tuple[Delivery, Outcome]]) -> None:
        """Report outcomes of one kind that have been written."""
        if not ended:
            return
        kind = type(ended[0][1])
        queues = Counter([delivery.claimed.queue for delivery, _ in ended])
        for queue, number in queues.items():
            self._count(queue, kind, number)
        if kind is Done and not self._tells_of_completions():
            return
        for delivery, outcome in ended:
            self._tell(delivery, outcome)

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        """Report an outcome that has been written."""
        self.all_settled([(delivery, outcome)])

    def _tells_of_completions(self) -> bool:
        return bool(signals.message_completed.receivers) or logger.isEnabledFor(logging.DEBUG)

    def _tell(self, delivery: Delivery, outcome: Outcome) -> None:
        match outcome:
            case Done():
                self._send(signals.message_completed, delivery)
                if logger.isEnabledFor(logging.DEBUG):
                    logger.debug("Completed %s", _name(delivery), extra=self._extra(delivery))
            case Again():
                self._retried(delivery, outcome)
            case Bury():
                self._buried(delivery, outcome)
            case Release():
                self._released(delivery, outcome)
            case Lost():
                raise AssertionError("a lost lease is reported by lost()")

    def acked(self, delivery: Delivery, outcome: Outcome) -> None:
        """Report a message whose handler's ack has removed it, and what came after that."""
        exception = getattr(outcome, "exception", None)
        if exception is not None:
            logger.error(
                "The handler of %s raised a %s after its ack, which stands",
                _name(delivery),
                failures.name_of(exception),
                exc_info=failures.to_log(exception),
                extra={"event": "failed_after_ack", **self._extra(delivery)},
            )
            failures.let_go(exception)
        self.settled(delivery, SETTLED)

    def lost(self, deliveries: Sequence[Delivery], phase: str) -> None:
        """Report leases that were found lost when something was to be written."""
        if not deliveries:
            return
        ids = [delivery.claimed.id for delivery in deliveries]
        logger.warning(
            "Lost %d lease(s), found at %s: %s. Another worker has the message, or it is gone.",
            len(ids),
            phase,
            ids,
            extra={
                "event": "lease_lost",
                "phase": phase,
                "ids": ids,
                "count": len(ids),
                "worker_id": self._worker_id,
            },
        )
        for delivery in deliveries:
            self._send(signals.lease_lost, delivery, phase=phase)

    def unsure(self, deliveries: Sequence[Delivery], phase: str) -> None:
        """Report rows that are gone after a write whose answer was lost with the connection."""
        if not deliveries:
            return
        ids = [delivery.claimed.id for delivery in deliveries]
        logger.warning(
            "The connection broke during %s of %s; the write has most likely been done.",
            phase,
            ids,
            extra={"event": "settlement_unsure", "phase": phase, "ids": ids, "count": len(ids)},
        )

    def timed_out(self, delivery: Delivery) -> None:
        """Report a handler past its timeout, whose lease is no longer renewed."""
        logger.warning(
            "The handler of %s is past its timeout of %g s; the lease is no longer renewed.",
            _name(delivery),
            delivery.handler.timeout,
            extra={"event": "handler_timeout", **self._extra(delivery)},
        )

    def _retried(self, delivery: Delivery, outcome: Again) -> None:
        logger.warning(
            "Attempt %d of %s failed, next in %.1f s%s",
            delivery.claimed.attempts_count + 1,
            _name(delivery),
            outcome.delay,
            _headline(outcome.error),
            extra={"event": "message_retried", **self._extra(delivery)},
        )
        self._send(
            signals.message_retried, delivery, exception=outcome.exception, delay=outcome.delay
        )

    def _buried(self, delivery: Delivery, outcome: Bury) -> None:
        logger.error(
            "Buried %s as %s%s",
            _name(delivery),
            outcome.reason,
            _headline(outcome.error),
            exc_info=failures.to_log(outcome.exception),
            extra={"event": "message_buried", "reason": outcome.reason, **self._extra(delivery)},
        )
        self._send(
            signals.message_buried, delivery, reason=outcome.reason, exception=outcome.exception
        )

    def _released(self, delivery: Delivery, outcome: Release) -> None:
        if outcome.exception is not None:
            logger.warning(
                "Released %s: its database session had gone. No attempt is charged.",
                _name(delivery),
                extra={"event": "message_released", **self._extra(delivery)},
            )
        self._send(signals.message_released, delivery, exception=outcome.exception)

    def _send(self, signal: Signal, delivery: Delivery, **what: Any) -> None:
        """Send a signal from a handler thread; the last to be told of an exception."""
        exception = what.get("exception")
        if not signal.receivers:
            failures.let_go(exception)
            return

        def send() -> None:
            signal.send_robust(
                sender=delivery.handler.function,
                message=delivery.describe(),
                worker_id=self._worker_id,
                duration=delivery.duration,
                **what,
            )
            failures.let_go(exception)

        self._submit(send)

    def _extra(self, delivery: Delivery) -> dict[str, Any]:
        return {
            "queue": delivery.claimed.queue,
            "id": delivery.claimed.id,
            "message_id": str(delivery.claimed.message_id),
            "worker_id": self._worker_id,
        }


def _name(delivery: Delivery) -> str:
    return f"message {delivery.claimed.id} of {delivery.claimed.queue!r}"


def _headline(error: str | None) -> str:
    """Return the first line of an error behind a colon, nothing if there is none."""
    return "" if not error else ": " + error.partition("\n")[0]
