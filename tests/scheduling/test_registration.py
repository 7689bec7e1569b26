"""Registration: what is refused before any SQL, what is written, and what stays as it was."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection, transaction

from django_outbox import outbox
from django_outbox.models import Schedule
from django_outbox.scheduling.ticking import tick
from tests.contract.helpers import Together, without_sql
from tests.scheduling.helpers import (
    boundaries_fired,
    committed,
    make_due,
    messages,
    now,
    payload_of,
    put_boundary,
    schedule,
    stored,
)
from tests.support import session

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", outbox.InvalidName),
        ("n" * 256, outbox.InvalidName),
        ("a\x00b", outbox.InvalidName),
        ("a\ud800b", outbox.InvalidName),
        ("__report", outbox.ReservedName),
        ("__scheduler", outbox.ReservedName),
    ],
)
def test_a_bad_name_of_schedule_or_queue_is_refused_before_any_sql(
    name: str, error: type[Exception]
) -> None:
    with without_sql():
        with pytest.raises(error):
            outbox.schedule(name, "@every 5m", queue="orders")
        with pytest.raises(error):
            outbox.schedule("report", "@every 5m", queue=name)
        with pytest.raises(error):
            outbox.unschedule(name)


def test_the_queue_of_a_named_outbox_cannot_be_reached_by_a_schedule() -> None:
    with without_sql(), pytest.raises(outbox.ReservedName):
        outbox.schedule("report", "@every 5m", queue="__outbox:mails")


@pytest.mark.parametrize(
    "spec", ["*/5 * * * *", "@hourly", "@every 0s", "@cron 0 0 31 2 *", "@cron 60 * * * *", ""]
)
def test_a_bad_spec_is_refused_before_any_sql(spec: str) -> None:
    with without_sql(), pytest.raises(outbox.InvalidSpec):
        outbox.schedule("report", spec, queue="orders")


def test_a_spec_that_the_table_cannot_hold_is_refused_before_any_sql() -> None:
    minutes = ",".join(str(minute) for minute in range(60))
    hours = ",".join(str(hour) for hour in range(24))
    days = ",".join(str(day) for day in range(1, 32))
    spec = f"@cron {minutes} {hours} {days} * *"
    assert len(spec) > 255

    with without_sql(), pytest.raises(outbox.InvalidSpec, match="255"):
        outbox.schedule("report", spec, queue="orders")


def test_a_zone_that_is_a_path_is_refused_before_any_sql() -> None:
    with without_sql(), pytest.raises(outbox.InvalidSpec):
        outbox.schedule("report", "@cron 0 6 * * * ../UTC", queue="orders")


def test_an_unknown_catch_up_is_a_value_error_before_any_sql() -> None:
    with without_sql(), pytest.raises(ValueError, match="all, latest, skip"):
        schedule(catch_up="newest")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"payload": object()}, outbox.PayloadError),
        ({"payload": float("nan")}, outbox.PayloadError),
        ({"payload": "x" * 1_100_000}, outbox.PayloadTooLarge),
        ({"headers": {"tenant": 7}}, TypeError),
        ({"headers": {"a\x00": "b"}}, ValueError),
        ({"max_attempts": 0}, ValueError),
        ({"max_attempts": "3"}, TypeError),
        ({"expires_in": -1}, ValueError),
    ],
)
def test_what_cannot_be_published_cannot_be_scheduled(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with without_sql(), pytest.raises(error):
        schedule(**options)


def test_a_schedule_is_read_back_as_it_was_given() -> None:
    before = now()

    given = outbox.schedule(
        "report",
        "@every 5m",
        queue="mails",
        payload={"to": "ops"},
        headers={"tenant": "acme"},
        max_attempts=3,
        expires_in=90,
        catch_up="latest",
    )

    read = stored("report")
    assert given == read
    assert (read.spec, read.queue, read.catch_up) == ("@every 5m", "mails", "latest")
    assert json.loads(bytes(read.payload)) == {"to": "ops"}
    assert read.headers["tenant"] == "acme"
    assert (read.max_attempts, read.expires_in) == (3, timedelta(seconds=90))
    assert (read.enabled, read.source) == (True, "api")
    assert read.next_run_at is not None
    assert before <= read.next_run_at - timedelta(minutes=5) <= now()
    assert (read.last_boundary_at, read.last_run_at, read.last_message_id) == (None, None, None)
    assert (read.last_error, read.skipped_count) == (None, 0)


def test_a_boundary_that_never_comes_is_replaced_when_it_is_scheduled_again() -> None:
    schedule()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_outbox_schedule SET next_run_at = 'infinity'")

    again = schedule()

    assert again.next_run_at is not None
    assert again.next_run_at <= now() + timedelta(hours=1)


def test_the_schedule_returned_has_the_values_of_the_table() -> None:
    given, read = schedule(), stored()

    for field in Schedule._meta.fields:
        assert getattr(given, field.attname) == getattr(read, field.attname), field.name


def test_scheduling_a_name_again_replaces_what_it_publishes() -> None:
    schedule(payload={"v": 1}, headers={"a": "1"}, max_attempts=3, catch_up="skip")

    schedule(queue="mails", payload={"v": 2})

    read = stored()
    assert Schedule.objects.count() == 1
    assert (read.queue, read.max_attempts, read.catch_up) == ("mails", None, "all")
    assert "a" not in read.headers
    make_due()
    tick("default")
    assert [payload_of(message) for message in messages()] == [{"v": 2}]


def test_unschedule_tells_whether_there_was_one() -> None:
    schedule()

    assert outbox.unschedule("report") is True
    assert not Schedule.objects.exists()
    assert outbox.unschedule("report") is False


def test_unschedule_leaves_the_others_alone() -> None:
    schedule("report")
    schedule("cleaning")

    assert outbox.unschedule("cleaning") is True

    assert [read.name for read in Schedule.objects.all()] == ["report"]


def test_the_same_spec_keeps_its_next_boundary() -> None:
    # E13
    first = schedule().next_run_at

    again = [schedule(payload={"deploy": n}).next_run_at for n in range(3)]

    assert again == [first] * 3


def test_a_deploy_every_ten_minutes_does_not_postpone_a_fire_of_every_hour() -> None:
    # E13
    first = schedule(spec="@every 1h").next_run_at
    assert first is not None
    start = first - timedelta(hours=1)

    for minutes in range(10, 190, 10):
        schedule(spec="@every 1h")
        tick("default", now=start + timedelta(minutes=minutes))

    assert boundaries_fired() == [start + timedelta(hours=hour) for hour in (1, 2, 3)]


def test_a_boundary_that_is_overdue_outlives_a_deploy() -> None:
    schedule()
    boundary = make_due(ago=3)

    schedule()

    tick("default")
    assert boundaries_fired() == [boundary]


@pytest.mark.parametrize("spec", ["@every 2h", "@every 60m", "@cron 0 * * * *"])
def test_a_changed_spec_starts_afresh(spec: str) -> None:
    schedule(spec="@every 1h")
    make_due(ago=7200)
    before = now()

    read = schedule(spec=spec)

    assert read.next_run_at is not None
    assert read.next_run_at > before
    tick("default")
    assert messages() == []


def test_a_changed_zone_starts_afresh() -> None:
    schedule(spec="@cron 0 12 * * * Asia/Tokyo")
    make_due(ago=7200)

    read = schedule(spec="@cron 0 12 * * * Asia/Kolkata")

    assert read.timezone == "Asia/Kolkata"
    assert read.next_run_at is not None
    assert f"{read.next_run_at:%H:%M}" == "06:30"
    assert read.next_run_at > now()


def test_a_cron_keeps_the_time_zone_of_the_registration(settings: LazySettings) -> None:
    settings.TIME_ZONE = "Asia/Almaty"
    read = schedule(spec="@cron 0 12 * * *")
    assert read.timezone == "Asia/Almaty"
    assert read.next_run_at is not None
    assert f"{read.next_run_at:%H:%M}" == "07:00"

    settings.TIME_ZONE = "UTC"
    boundary = put_boundary("report", datetime.fromisoformat("2026-06-01T07:00Z"))
    tick("default", now=boundary)

    assert boundaries_fired() == [boundary]
    assert stored().next_run_at == datetime.fromisoformat("2026-06-02T07:00Z")


def test_another_time_zone_of_the_project_moves_a_cron_without_a_zone(
    settings: LazySettings,
) -> None:
    settings.TIME_ZONE = "Asia/Almaty"
    schedule(spec="@cron 0 12 * * *")
    settings.TIME_ZONE = "Asia/Kolkata"

    read = schedule(spec="@cron 0 12 * * *")

    assert read.timezone == "Asia/Kolkata"
    assert read.next_run_at is not None
    assert f"{read.next_run_at:%H:%M}" == "06:30"


def test_one_scheduled_as_disabled_does_not_fire() -> None:
    assert schedule(enabled=False).enabled is False
    make_due()

    tick("default")

    assert messages() == []


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
def test_enabling_again_does_not_fire_what_passed_meanwhile(spec: str) -> None:
    schedule(spec=spec)
    schedule(spec=spec, enabled=False)
    make_due(ago=3600)
    before = now()

    read = schedule(spec=spec, enabled=True)

    assert read.enabled is True
    assert read.next_run_at is not None
    assert read.next_run_at > before
    assert read.skipped_count == 0
    tick("default")
    assert messages() == []


class Spec(str, Enum):  # noqa: UP042 - of the old kind, which formats as its member's name
    HOURLY = "@every 1h"


def test_a_spec_that_is_a_member_of_an_enum_keeps_its_boundary() -> None:
    first = schedule(spec=Spec.HOURLY).next_run_at

    assert schedule(spec=Spec.HOURLY).next_run_at == first
    assert first is not None
    assert tick("default", now=first) == 1


@committed
def test_a_schedule_may_be_unscheduled_by_somebody_else_while_it_is_made(
    together: Together,
) -> None:
    def make_and_remove(n: int) -> None:
        for _ in range(30):
            if n % 2:
                assert schedule().name == "report"
            else:
                outbox.unschedule("report")

    together.run([partial(make_and_remove, n) for n in range(4)])


def test_a_schedule_made_in_a_handler_does_not_keep_the_trace_of_that_delivery() -> None:
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    outbox.publish({}, queue="orders", headers=trace)

    def handle(message: outbox.Message[Any]) -> None:
        outbox.schedule("report", "@every 1h", queue="orders", headers={"kind": "daily"})

    assert outbox.run_once("orders", handle)

    assert stored().headers == {"kind": "daily", "content-type": "application/json"}


def test_a_schedule_is_rolled_back_with_its_caller() -> None:
    with transaction.atomic():
        schedule()
        transaction.set_rollback(True)

    assert not Schedule.objects.exists()


def test_an_unschedule_is_rolled_back_with_its_caller() -> None:
    schedule()

    with transaction.atomic():
        assert outbox.unschedule("report") is True
        transaction.set_rollback(True)

    assert stored().enabled


@committed
def test_it_works_in_autocommit_too() -> None:
    schedule()
    with session() as other:
        names = other.execute("SELECT name FROM django_outbox_schedule").fetchall()
    assert names == [("report",)]

    assert outbox.unschedule("report") is True
    with session() as other:
        assert other.execute("SELECT name FROM django_outbox_schedule").fetchall() == []


@committed
def test_others_see_it_when_the_caller_has_committed() -> None:
    with session() as other, transaction.atomic():
        schedule()
        names = other.execute("SELECT name FROM django_outbox_schedule").fetchall()
        assert names == []


@pytest.mark.django_db(databases=["default", "orders"])
def test_using_says_which_database_it_is_written_to() -> None:
    given = outbox.schedule("report", "@every 5m", queue="orders", using="orders")

    assert given._state.db == "orders"
    assert not Schedule.objects.using("default").exists()
    assert outbox.unschedule("report") is False
    assert outbox.unschedule("report", using="orders") is True
