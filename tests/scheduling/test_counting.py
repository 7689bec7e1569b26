"""Counting what is passed over in a long outage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_outbox.scheduling.boundaries import CatchUp, due
from django_outbox.scheduling.specs import parse

START = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("catch_up", ["all", "latest", "skip"])
def test_the_minutes_of_a_month_are_all_counted(catch_up: CatchUp) -> None:
    now = START + timedelta(days=30, seconds=30)
    spec = parse("@cron * * * * *", default_zone="UTC")

    done = due(spec, next_run_at=START, now=now, catch_up=catch_up)

    assert len(done.fire) + done.skipped == 30 * 24 * 60 + 1
    assert done.next_run_at == START + timedelta(days=30, minutes=1)
