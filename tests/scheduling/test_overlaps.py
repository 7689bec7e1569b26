"""Runs that overlap: every boundary has a message of its own, however the one before it fares."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage
from django_outbox.scheduling.ticking import tick
from tests.scheduling.helpers import SIX, committed, put_boundary, schedule
from tests.support import drain

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def test_a_job_that_keeps_failing_is_fired_at_each_boundary_and_ends_each_by_itself() -> None:
    # C15
    @outbox.handler("orders", retry=outbox.ConstantRetry(60, max_attempts=5))
    def fail(message: outbox.Message[Any]) -> None:
        raise ValueError("no stock")

    schedule(spec="@every 10s")
    put_boundary("report", SIX)
    for n in range(6):
        assert tick("default", now=SIX + timedelta(seconds=10 * n)) == 1
        drain()

    boundaries = [message.headers["boundary"] for message in OutboxMessage.objects.order_by("id")]
    assert boundaries == [f"2026-06-01T06:00:{second}0+00:00" for second in range(6)]
    attempts = OutboxMessage.objects.values_list("attempts_count", flat=True)
    assert set(attempts) == {1}

    for _ in range(4):
        OutboxMessage.objects.update(next_attempt_at=SIX)
        drain()
    assert not OutboxMessage.objects.exists()
    letters = DeadLetter.objects.values_list("attempts_count", "failure_reason")
    assert list(letters) == [(5, "retry_terminal")] * 6
