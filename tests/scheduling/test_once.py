"""`outbox_scheduler --once` from cron, and in a test's transaction."""

from __future__ import annotations

import io
import signal
from datetime import UTC, datetime

import pytest
from django.conf import LazySettings
from django.core.management import call_command

from django_outbox.models import Schedule
from django_outbox.testing import published, tick_schedules
from tests.scheduling.helpers import (
    boundaries_fired,
    committed,
    make_due,
    put_boundary,
    schedule,
    stored,
)
from tests.support import session

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def declared(settings: LazySettings) -> None:
    settings.OUTBOX = {
        "SCHEDULES": {"bill": {"spec": "@cron 0 3 * * * Europe/Berlin", "queue": "billing"}}
    }


def run(*, verbosity: int) -> str:
    """Run the command and return what it writes to standard output."""
    out = io.StringIO()
    call_command("outbox_scheduler", "--once", verbosity=verbosity, stdout=out)
    return out.getvalue()


def test_it_writes_what_is_declared_and_fires_what_is_due() -> None:
    schedule()
    make_due()

    assert run(verbosity=1) == "Published 1 message(s).\n"

    assert [message.queue for message in published()] == ["orders"]
    assert set(Schedule.objects.values_list("name", flat=True)) == {"report", "bill"}


def test_with_verbosity_0_it_says_nothing() -> None:
    schedule()
    make_due()

    assert run(verbosity=0) == ""
    assert len(published()) == 1


def test_it_leaves_signals_to_those_who_call_it() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    run(verbosity=0)

    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_what_it_has_written_is_fired_by_tick_schedules() -> None:
    run(verbosity=0)
    boundary = stored("bill").next_run_at
    assert boundary is not None
    assert boundary.astimezone(UTC).hour in (1, 2)
    put_boundary("bill", datetime(2026, 11, 30, 2, 0, tzinfo=UTC))

    assert tick_schedules(datetime(2026, 11, 30, 2, 0, tzinfo=UTC)) == 1

    assert published("billing")[0].headers["boundary"] == "2026-11-30T02:00:00+00:00"


@committed
def test_it_waits_for_what_is_locked_for_a_moment_and_says_what_it_leaves() -> None:
    schedule()
    boundary = make_due()
    said = io.StringIO()
    with session() as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM django_outbox_schedule FOR UPDATE")
        call_command("outbox_scheduler", "--once", stdout=io.StringIO(), stderr=said)
        other.execute("ROLLBACK")
    assert "Somebody has locked schedules that are due" in said.getvalue()
    assert boundaries_fired() == []

    assert run(verbosity=1) == "Published 1 message(s).\n"
    assert boundaries_fired() == [boundary]
