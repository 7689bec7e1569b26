"""Schedules that somebody changes: in the table, by `save()`, switched off and on."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.forms import modelform_factory

from django_outbox.models import Schedule
from django_outbox.scheduling.ticking import tick
from tests.scheduling.helpers import (
    SIX,
    boundaries_fired,
    committed,
    make_due,
    messages,
    now,
    put_boundary,
    schedule,
    stored,
)

pytestmark = committed


def test_a_spec_changed_in_the_table_is_planned_anew_at_the_next_tick() -> None:
    # E21
    schedule(spec="@every 1d")
    before = now()
    Schedule.objects.update(spec="@every 5m")

    assert tick("default") == 0

    read = stored()
    assert read.next_run_at is not None
    assert before <= read.next_run_at - timedelta(minutes=5) <= now()
    assert tick("default", now=read.next_run_at) == 1


def test_a_zone_changed_in_the_table_is_planned_anew_at_the_next_tick() -> None:
    # E21
    schedule(spec="@cron 0 12 * * *")
    Schedule.objects.update(timezone="Asia/Tokyo")

    tick("default")

    read = stored()
    assert read.next_run_at is not None
    assert f"{read.next_run_at:%H:%M}" == "03:00"


def test_one_switched_off_in_the_table_does_not_fire() -> None:
    # E21
    schedule()
    make_due()
    Schedule.objects.update(enabled=False)

    assert tick("default") == 0
    assert messages() == []


def test_one_switched_on_again_in_the_table_fires_nothing_of_the_past() -> None:
    # E21
    schedule(spec="@every 1h")
    start = put_boundary("report", SIX)
    Schedule.objects.update(enabled=False)
    tick("default", now=start + timedelta(hours=5, minutes=30))

    Schedule.objects.update(enabled=True)

    assert tick("default", now=start + timedelta(hours=5, minutes=31)) == 0
    assert tick("default", now=start + timedelta(hours=6)) == 1
    assert boundaries_fired() == [start + timedelta(hours=6)]
    assert stored().skipped_count == 0


@pytest.mark.parametrize("spec", ["@every 1h", "@cron 0 * * * *"])
def test_what_comes_after_one_is_switched_on_fires_though_the_tick_is_late(spec: str) -> None:
    schedule(spec=spec, enabled=False)
    Schedule.objects.update(enabled=True)
    first = stored().next_run_at
    assert first is not None

    assert tick("default", now=first + timedelta(hours=2, seconds=1)) == 3

    assert boundaries_fired() == [first, first + timedelta(hours=1), first + timedelta(hours=2)]
    assert stored().plan_from is None


def test_switching_on_by_scheduling_again_keeps_the_boundary_that_comes_next() -> None:
    schedule(spec="@cron 0 * * * *", enabled=False)
    first = schedule(spec="@cron 0 * * * *").next_run_at
    assert first is not None

    assert tick("default", now=first) == 1


def test_a_spec_changed_in_the_table_starts_from_the_change_though_the_tick_is_late() -> None:
    schedule(spec="@every 1d")
    before = now()
    Schedule.objects.update(spec="@every 1h")
    after = now()

    assert tick("default", now=after + timedelta(hours=2, minutes=30)) == 2

    first = boundaries_fired()[0]
    assert before + timedelta(hours=1) <= first <= after + timedelta(hours=1)


def test_a_deploy_in_the_meantime_does_not_lose_what_comes_after_one_is_switched_on() -> None:
    schedule(spec="@every 1h", enabled=False)
    Schedule.objects.update(enabled=True)
    first = stored().next_run_at
    assert first is not None

    schedule(spec="@every 1h")

    assert tick("default", now=first) == 1


def test_saving_what_was_loaded_before_a_tick_fires_nothing_again() -> None:
    loaded = schedule()
    boundary = make_due()
    loaded.refresh_from_db()
    assert tick("default") == 1

    loaded.catch_up = "latest"
    loaded.save()

    assert tick("default") == 0
    assert boundaries_fired() == [boundary]
    read = stored()
    assert (read.catch_up, read.last_boundary_at) == ("latest", boundary)
    assert read.last_message_id == messages()[0].pk


def test_a_save_from_async_code_fires_nothing_again_either() -> None:
    loaded = schedule()
    boundary = make_due()
    loaded.refresh_from_db()
    assert tick("default") == 1

    async_to_sync(loaded.asave)()

    assert tick("default") == 0
    assert boundaries_fired() == [boundary]


def test_a_form_of_the_model_does_not_show_what_schedulers_keep() -> None:
    form = modelform_factory(Schedule, fields="__all__")

    assert set(form.base_fields).isdisjoint(Schedule.KEPT_BY_SCHEDULERS)


def test_what_was_set_is_written_though_other_columns_were_loaded_or_saved_first() -> None:
    schedule()
    moment = now() - timedelta(seconds=1)

    loaded = Schedule.objects.defer("queue").get()
    loaded.next_run_at = moment
    assert loaded.queue == "orders"
    loaded.save(update_fields=["catch_up"])
    loaded.save()

    assert stored().next_run_at == moment


def test_what_was_set_is_written_again_after_a_rollback() -> None:
    loaded = schedule()
    loaded.next_run_at = moment = now() - timedelta(seconds=1)
    with suppress(ValueError), transaction.atomic():
        loaded.save()
        raise ValueError

    loaded.save()

    assert stored().next_run_at == moment


def test_a_copy_of_a_schedule_can_be_saved() -> None:
    loaded = schedule()
    loaded.pk = None
    loaded.name = "copy"

    loaded.save()

    assert stored("copy").spec == stored().spec


def test_a_boundary_that_is_taken_away_is_planned_from_that_moment() -> None:
    schedule(spec="@every 1h")
    before = now()
    Schedule.objects.update(next_run_at=None)

    assert tick("default", now=before + timedelta(hours=2, minutes=30)) == 2


def test_a_boundary_given_with_another_spec_is_the_one_that_fires() -> None:
    schedule(spec="@every 1d")
    moment = now() - timedelta(seconds=1)

    Schedule.objects.update(spec="@every 1h", next_run_at=moment)

    assert tick("default") == 1
    assert boundaries_fired() == [moment]


def test_a_boundary_given_with_a_row_made_by_hand_is_the_one_that_fires() -> None:
    moment = now() - timedelta(seconds=1)
    Schedule.objects.create(
        name="by hand",
        spec="@every 1h",
        timezone="UTC",
        queue="orders",
        payload=b"{}",
        headers={"content-type": "application/json"},
        next_run_at=moment,
    )

    assert tick("default") == 1
    assert boundaries_fired("by hand") == [moment]


def test_saving_writes_a_boundary_that_was_set_on_purpose() -> None:
    loaded = schedule()
    loaded.next_run_at = now() - timedelta(seconds=1)

    loaded.save()

    assert tick("default") == 1


def test_saving_as_switched_on_what_was_loaded_before_fires_nothing_of_the_past() -> None:
    schedule(spec="@every 1h")
    Schedule.objects.update(enabled=False)
    loaded = stored()
    make_due(ago=5 * 3600.0)

    loaded.enabled = True
    loaded.save()

    assert tick("default") == 0


def test_one_switched_on_again_while_no_scheduler_ran_fires_nothing_of_the_past() -> None:
    schedule(spec="@every 1h")
    Schedule.objects.update(enabled=False)
    start = put_boundary("report", SIX)

    Schedule.objects.update(enabled=True)

    assert stored().next_run_at in (start, None)
    tick("default", now=start + timedelta(hours=5, minutes=30))
    assert all(boundary > start + timedelta(hours=5) for boundary in boundaries_fired())


def at_six() -> str:
    read = stored()
    assert read.next_run_at is not None
    return f"{read.next_run_at.astimezone(UTC):%H:%M:%S}"


def test_one_switched_on_with_another_spec_goes_by_the_new_one() -> None:
    schedule(spec="@every 1d")
    Schedule.objects.update(enabled=False)
    tick("default")

    Schedule.objects.update(enabled=True, spec="@cron 0 6 * * *")

    assert tick("default") == 0
    assert at_six() == "06:00:00"


def test_one_given_another_spec_and_then_switched_on_goes_by_the_new_one() -> None:
    schedule(spec="@every 1d")
    Schedule.objects.update(enabled=False)
    Schedule.objects.update(spec="@cron 0 6 * * *")
    Schedule.objects.update(enabled=True)

    assert tick("default") == 0

    assert at_six() == "06:00:00"


def test_one_switched_on_with_another_spec_fires_nothing_of_the_past() -> None:
    schedule(spec="@every 1d")
    Schedule.objects.update(enabled=False)
    make_due(ago=5)
    Schedule.objects.update(enabled=True, spec="@every 1h")

    assert tick("default") == 0

    assert messages() == []


def test_a_row_made_by_hand_without_a_boundary_is_planned_and_not_fired() -> None:
    before = now()
    Schedule.objects.create(
        name="by hand", spec="@every 5m", timezone="UTC", queue="orders", payload=b"null"
    )

    assert tick("default") == 0

    read = stored("by hand")
    assert read.source == "admin"
    assert read.next_run_at is not None
    assert before <= read.next_run_at - timedelta(minutes=5) <= now()
    assert tick("default", now=read.next_run_at) == 1


def test_other_columns_changed_in_the_table_go_into_the_next_fire() -> None:
    # E21
    schedule()
    boundary = make_due()
    Schedule.objects.update(queue="mails", max_attempts=7, headers={"tenant": "acme"})

    tick("default")

    (message,) = messages("mails")
    assert (message.max_attempts, message.headers["tenant"]) == (7, "acme")
    assert boundaries_fired() == [boundary]
