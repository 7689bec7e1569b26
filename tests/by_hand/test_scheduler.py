"""A schedule written by hand fires, or says why it does not, and keeps no other from firing."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from django.core.management import call_command
from django.db.models.functions import Length

from django_outbox import outbox
from django_outbox.models import OutboxMessage, Schedule
from tests.by_hand import values
from tests.support import committed, session

pytestmark = [committed, pytest.mark.usefixtures("registry")]


class Fate(NamedTuple):
    """How many of a column's wrong schedules fire, and how many say why they cannot.

    The others wait: they are planned anew from now, or not due before the end of time.
    """

    fired: int
    failed: int = 0


FATES = {
    "id": Fate(4),
    "name": Fate(4),
    "spec": Fate(0, failed=5),
    "timezone": Fate(0, failed=4),
    "queue": Fate(2, failed=2),
    "payload": Fate(12),  # its handler's to judge
    "headers": Fate(5, failed=10),
    "max_attempts": Fate(0, failed=4),
    "expires_in": Fate(0, failed=4),
    "catch_up": Fate(0, failed=2),
    "source": Fate(2),
    "next_run_at": Fate(0, failed=2),
    "last_boundary_at": Fate(5),
    "last_run_at": Fate(5),
    "last_message_id": Fate(4),
    "last_error": Fate(2),
    "skipped_count": Fate(4, failed=1),
    "planned_for": Fate(0),
    "plan_from": Fate(0, failed=5),
    "retry_at": Fate(2),
    "withdrawn_at": Fate(5),
}


def write(name: str, *, spec: str = "@every 1h", assignment: str = "last_error = NULL") -> None:
    """Write a schedule that is due, and then what is wrong with it."""
    outbox.schedule(name, spec, queue="orders", payload=1, catch_up="latest")
    with session() as other:
        other.execute(
            "UPDATE django_outbox_schedule SET next_run_at = '2026-01-01Z' WHERE name = %s", [name]
        )
        other.execute(f"UPDATE django_outbox_schedule SET {assignment} WHERE name = '{name}'")


@pytest.mark.parametrize("column", FATES)
def test_wrong_schedules_keep_no_other_from_firing(column: str) -> None:
    spec = "@cron * * * * *" if column == "timezone" else "@every 1h"
    for n, value in enumerate(values.SCHEDULE[column]):
        write(f"wrong {n}", spec=spec, assignment=f"{column} = {value}")
    write("right")

    for _ in range(2):
        call_command("outbox_scheduler", "--once", verbosity=0)

    fired = OutboxMessage.objects.values_list("headers__schedule", flat=True)
    errors = Schedule.objects.annotate(length=Length("last_error"))
    failed = errors.filter(length__gte=10, length__lte=300).count()
    assert "right" in fired
    assert FATES[column] == (len(fired) - 1, failed)


def test_every_column_is_tried() -> None:
    columns = {field.column for field in Schedule._meta.fields}

    assert columns - {*FATES} == {"enabled", "declared_enabled"}


@pytest.mark.parametrize("moment", ["'-infinity'", "'4714-11-24 00:00:00Z BC'"])
def test_a_boundary_that_no_calendar_has_is_named(moment: str) -> None:
    write("wrong", assignment=f"next_run_at = {moment}")

    call_command("outbox_scheduler", "--once", verbosity=0)

    error = Schedule.objects.values_list("last_error", flat=True).get()
    assert error == "next_run_at lies outside of the years 1 to 9999."
