"""Schedules declared in code and in the settings: written, withdrawn, and left to others."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from django_outbox import handlers, outbox
from django_outbox.models import Schedule
from django_outbox.scheduling import declaring
from django_outbox.scheduling.declaring import write_declared
from django_outbox.scheduling.ticking import tick
from tests.contract.helpers import without_sql
from tests.scheduling.helpers import (
    boundaries_fired,
    make_due,
    messages,
    now,
    payload_of,
    schedule,
    stored,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def declared(registry: handlers.Registry, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Have nothing declared but what the test declares."""
    declared: dict[str, Any] = {}
    monkeypatch.setattr(declaring, "_declared", declared)
    return declared


def declare(spec: str = "@every 1h", **options: Any) -> None:
    """Declare a schedule for a handler of two queues, both named for what they hold."""

    @outbox.scheduled(spec, **options)
    @outbox.handler("reports", "letters")
    def send_report(message: outbox.Message[Any]) -> None: ...


def forget(declared: dict[str, Any]) -> None:
    """Deploy without the declarations of before."""
    declared.clear()
    handlers.registry._by_queue.clear()


def test_a_scheduled_handler_is_written_with_its_first_queue_and_its_name() -> None:
    declare()

    write_declared("default")

    read = Schedule.objects.get()
    assert read.name == "tests.send_report"
    assert (read.spec, read.queue, read.source) == ("@every 1h", "reports", "code")
    assert (read.enabled, read.withdrawn_at) == (True, None)


def test_a_handler_of_an_installed_app_is_named_after_the_app_s_label() -> None:
    def send_report(message: outbox.Message[Any]) -> None: ...

    send_report.__module__ = "tests.testapp.outbox_handlers"
    outbox.scheduled("@every 1h")(outbox.handler("reports")(send_report))

    write_declared("default")

    assert Schedule.objects.get().name == "testapp.send_report"


def test_nothing_is_written_when_it_is_declared() -> None:
    with without_sql():
        declare()

    assert not Schedule.objects.exists()


def test_a_declared_schedule_takes_the_options_of_schedule() -> None:
    declare(
        "@cron 0 6 * * * Asia/Tokyo",
        name="morning",
        payload={"to": "ops"},
        headers={"tenant": "acme"},
        max_attempts=3,
        expires_in=90,
        catch_up="latest",
    )
    write_declared("default")
    boundary = make_due("morning")

    tick("default")

    (message,) = messages("reports")
    assert boundaries_fired("morning") == [boundary]
    assert payload_of(message) == {"to": "ops"}
    assert message.headers["tenant"] == "acme"
    assert message.max_attempts == 3
    assert message.expires_at is not None
    assert stored("morning").catch_up == "latest"


def test_the_decorated_function_is_handed_back_as_it_was() -> None:
    def send_report(message: outbox.Message[Any]) -> None: ...

    handled = outbox.handler("reports")(send_report)

    assert outbox.scheduled("@every 1h")(handled) is handled


def test_one_function_may_have_several_schedules_of_different_names() -> None:
    @outbox.scheduled("@cron 0 18 * * *", name="evening")
    @outbox.scheduled("@cron 0 6 * * *", name="morning")
    @outbox.handler("reports")
    def send_report(message: outbox.Message[Any]) -> None: ...

    write_declared("default")

    assert set(Schedule.objects.values_list("name", "queue")) == {
        ("evening", "reports"),
        ("morning", "reports"),
    }


@pytest.mark.parametrize(
    ("spec", "options", "error"),
    [
        ("*/5 * * * *", {}, outbox.InvalidSpec),
        ("@every 0s", {}, outbox.InvalidSpec),
        ("@every 1h", {"name": ""}, outbox.InvalidName),
        ("@every 1h", {"name": "__report"}, outbox.ReservedName),
        ("@every 1h", {"catch_up": "newest"}, ValueError),
        ("@every 1h", {"payload": object()}, outbox.PayloadError),
        ("@every 1h", {"max_attempts": 0}, ValueError),
    ],
)
def test_a_declaration_that_is_wrong_is_refused_at_import_and_names_the_function(
    spec: str, options: dict[str, Any], error: type[Exception], declared: dict[str, Any]
) -> None:
    with without_sql(), pytest.raises(error) as caught:
        declare(spec, **options)

    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "send_report" in text
    assert "test_declaring" in text
    assert declared == {}


def test_below_the_handler_it_is_refused_with_what_to_do() -> None:
    def send_report(message: outbox.Message[Any]) -> None: ...

    with pytest.raises(ImproperlyConfigured, match=r"send_report.*above @outbox\.handler"):
        outbox.scheduled("@every 1h")(send_report)


def test_without_parentheses_it_is_refused_at_import_with_how_to_write_it() -> None:
    @outbox.handler("reports")
    def send_report(message: outbox.Message[Any]) -> None: ...

    with pytest.raises(TypeError, match=r"@outbox\.scheduled\('@every 5m'\).*send_report"):
        outbox.scheduled(send_report)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [None, 300, b"@every 5m", timedelta(minutes=5)])
def test_a_spec_that_is_no_text_is_refused_at_import_with_how_to_write_it(spec: Any) -> None:
    with pytest.raises(TypeError) as caught:
        declare(spec)

    assert "@outbox.scheduled('@every 5m')" in str(caught.value)
    assert repr(spec) in str(caught.value)


def test_a_name_that_is_declared_twice_is_refused() -> None:
    declare(name="report")

    @outbox.handler("mails")
    def send_mail(message: outbox.Message[Any]) -> None: ...

    with pytest.raises(ImproperlyConfigured, match=r"'report' is declared twice.*send_mail"):
        outbox.scheduled("@every 1h", name="report")(send_mail)


def test_the_setting_declares_schedules_by_name(settings: LazySettings) -> None:
    settings.OUTBOX = {
        "SCHEDULES": {
            "cleaning": {"spec": "@every 1d", "queue": "chores", "payload": {"deep": True}},
            "morning": {"spec": "@cron 0 6 * * *", "queue": "mails", "catch_up": "skip"},
        }
    }

    write_declared("default")

    assert set(Schedule.objects.values_list("name", "spec", "queue", "catch_up", "source")) == {
        ("cleaning", "@every 1d", "chores", "all", "code"),
        ("morning", "@cron 0 6 * * *", "mails", "skip", "code"),
    }
    make_due("cleaning")
    tick("default")
    assert [payload_of(message) for message in messages("chores")] == [{"deep": True}]


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "chores"},
        {"spec": "@every 1d"},
        {"spec": "0 6 * * *", "queue": "chores"},
        {"spec": "@every 1d", "queue": "__outbox:mails"},
        {"spec": "@every 1d", "queue": "chores", "catch_up": "newest"},
        {"spec": "@every 1d", "queue": "chores", "every": 5},
    ],
)
def test_a_setting_that_is_wrong_says_which_one(
    options: dict[str, Any], settings: LazySettings
) -> None:
    settings.OUTBOX = {"SCHEDULES": {"cleaning": options}}

    with without_sql(), pytest.raises(ImproperlyConfigured, match="cleaning"):
        write_declared("default")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"spec": 5, "queue": "chores"}, ": A spec is a str; 5 is of type int."),
        ({"spec": "@every 1d", "queue": 5}, ": The queue must be a str; 5 is of type int."),
        ({"spec": "@every 1d"}, " lacks 'queue'."),
        ("@every 1d", " must be a dict with a 'spec', a 'queue' and options; it is of type str."),
    ],
)
def test_a_setting_that_is_wrong_says_what_it_has_to_be(
    options: Any, says: str, settings: LazySettings
) -> None:
    settings.OUTBOX = {"SCHEDULES": {"cleaning": options}}

    with pytest.raises(ImproperlyConfigured) as caught:
        declaring.declarations()

    assert str(caught.value) == "OUTBOX['SCHEDULES']['cleaning']" + says


@pytest.mark.parametrize(
    ("key", "question"),
    [("catchup", "Did you mean 'catch_up'? "), ("Queue", "Did you mean 'queue'? "), ("using", "")],
)
def test_a_key_that_is_none_is_named_with_the_closest_and_all_there_are(
    key: str, question: str, settings: LazySettings
) -> None:
    settings.OUTBOX = {"SCHEDULES": {"cleaning": {"spec": "@every 1d", key: "chores"}}}

    with pytest.raises(ImproperlyConfigured) as caught:
        declaring.declarations()

    assert str(caught.value) == (
        f"OUTBOX['SCHEDULES']['cleaning'] has no key {key!r}. {question}The keys are spec, queue, "
        "payload, headers, max_attempts, expires_in, catch_up, enabled."
    )


def test_a_name_in_code_and_in_the_setting_is_refused(settings: LazySettings) -> None:
    declare(name="report")
    settings.OUTBOX = {"SCHEDULES": {"report": {"spec": "@every 1d", "queue": "chores"}}}

    with pytest.raises(ImproperlyConfigured, match="'report'"):
        write_declared("default")


def test_a_deploy_with_the_same_declaration_keeps_the_next_boundary() -> None:
    # E13
    declare()
    write_declared("default")
    first = stored("tests.send_report").next_run_at

    write_declared("default")

    assert stored("tests.send_report").next_run_at == first


def news(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged about schedules that were written."""
    found = [record for record in caplog.records if vars(record).get("event") == "schedule_written"]
    assert all(record.levelname == "INFO" for record in found)
    assert all(repr(vars(record)["schedule"]) in record.getMessage() for record in found)
    return [record.getMessage() for record in found]


def test_a_new_schedule_is_logged_and_the_same_one_again_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    declare(payload={"to": "secret"})

    with caplog.at_level(logging.DEBUG, "django_outbox"):
        write_declared("default")
        write_declared("default")

    assert news(caplog) == ["The schedule 'tests.send_report' is new: '@every 1h' in UTC."]


def test_another_spec_is_logged_with_what_it_replaces(
    declared: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    declare("@cron 0 3 * * * Europe/Berlin", name="bill")
    write_declared("default")
    forget(declared)
    declare("@cron 0 4 * * * Asia/Tokyo", name="bill")

    with caplog.at_level(logging.INFO, "django_outbox"):
        write_declared("default")

    (text,) = news(caplog)
    assert text == (
        "The schedule 'bill' starts afresh, and drops what was due by "
        "'@cron 0 3 * * * Europe/Berlin' in Europe/Berlin: '@cron 0 4 * * * Asia/Tokyo' in "
        "Asia/Tokyo."
    )


def test_another_time_zone_of_the_site_is_logged_for_a_cron_without_one(
    caplog: pytest.LogCaptureFixture, settings: LazySettings
) -> None:
    options = {"spec": "@cron 0 3 * * *", "queue": "chores"}
    settings.OUTBOX = {"SCHEDULES": {"cleaning": options}}
    settings.TIME_ZONE = "Europe/Berlin"
    write_declared("default")
    settings.TIME_ZONE = "Asia/Tokyo"

    with caplog.at_level(logging.INFO, "django_outbox"):
        write_declared("default")

    (text,) = news(caplog)
    assert text == (
        "The schedule 'cleaning' starts afresh, and drops what was due by '@cron 0 3 * * *' in "
        "Europe/Berlin: '@cron 0 3 * * *' in Asia/Tokyo."
    )


def test_one_that_is_declared_again_is_logged(
    declared: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    declare(name="bill")
    write_declared("default")
    forget(declared)
    write_declared("default")
    declare(name="bill")

    with caplog.at_level(logging.INFO, "django_outbox"):
        write_declared("default")

    (text,) = news(caplog)
    assert text == ("The schedule 'bill' is declared again: '@every 1h' in UTC.")


def test_another_spec_drops_what_was_due_and_does_not_count_it(declared: dict[str, Any]) -> None:
    declare("@every 3m", name="bill")
    write_declared("default")
    make_due("bill", ago=1000)
    forget(declared)
    declare("@every 4m", name="bill")

    write_declared("default")
    tick("default")

    assert messages() == []
    assert stored("bill").skipped_count == 0


def test_a_start_with_the_same_declarations_writes_nothing() -> None:
    declare(expires_in=60, headers={"kind": "daily"}, payload={"n": 1})
    write_declared("default")
    before = versions()
    Schedule.objects.update(last_error="no", retry_at=now())
    between = versions()
    assert between != before

    write_declared("default")

    assert versions() == between
    assert stored("tests.send_report").last_error == "no"


def versions() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT ctid::text FROM django_outbox_schedule ORDER BY id")
        return [row[0] for row in cursor.fetchall()]


def test_one_that_is_no_longer_declared_is_disabled_and_marked(
    declared: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    declare()
    write_declared("default")
    make_due("tests.send_report")
    before = now()

    forget(declared)
    with caplog.at_level(logging.WARNING, "django_outbox"):
        write_declared("default")

    read = stored("tests.send_report")
    assert read.enabled is False
    assert read.withdrawn_at is not None
    assert before <= read.withdrawn_at <= now()
    assert "tests.send_report" in caplog.text
    tick("default")
    assert messages() == []


def test_withdrawing_is_done_and_logged_once(
    declared: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    declare()
    write_declared("default")
    forget(declared)
    write_declared("default")
    marked = stored("tests.send_report").withdrawn_at
    caplog.clear()

    with caplog.at_level(logging.WARNING, "django_outbox"):
        write_declared("default")

    assert stored("tests.send_report").withdrawn_at == marked
    assert caplog.text == ""


def test_one_that_is_declared_again_is_enabled_and_fires_nothing_of_the_past(
    declared: dict[str, Any],
) -> None:
    declare()
    write_declared("default")
    forget(declared)
    write_declared("default")
    make_due("tests.send_report", ago=86400)
    before = now()

    declare()
    write_declared("default")

    read = stored("tests.send_report")
    assert (read.enabled, read.withdrawn_at) == (True, None)
    assert read.next_run_at is not None
    assert read.next_run_at > before
    tick("default")
    assert messages() == []


def test_one_that_was_off_by_hand_is_off_when_it_is_declared_again(
    declared: dict[str, Any],
) -> None:
    declare()
    write_declared("default")
    Schedule.objects.update(enabled=False)
    forget(declared)
    write_declared("default")
    assert stored("tests.send_report").withdrawn_at is not None

    declare()
    write_declared("default")

    read = stored("tests.send_report")
    assert (read.enabled, read.withdrawn_at) == (False, None)


def test_one_that_somebody_has_switched_off_stays_off_through_deploys() -> None:
    declare()
    write_declared("default")
    Schedule.objects.update(enabled=False)

    write_declared("default")

    assert stored("tests.send_report").enabled is False


def test_one_that_is_declared_off_may_be_switched_on_and_stays_on_through_deploys() -> None:
    declare(enabled=False)
    write_declared("default")
    Schedule.objects.update(enabled=True)

    write_declared("default")

    assert stored("tests.send_report").enabled is True


@pytest.mark.parametrize("at_first", [True, False])
def test_declaring_the_other_switch_than_before_has_its_way(
    at_first: bool, declared: dict[str, Any]
) -> None:
    declare(enabled=at_first)
    write_declared("default")
    forget(declared)

    declare(enabled=not at_first)
    write_declared("default")

    assert stored("tests.send_report").enabled is not at_first


def test_declaring_another_switch_has_its_way_over_what_somebody_has_done(
    declared: dict[str, Any],
) -> None:
    declare()
    write_declared("default")
    Schedule.objects.update(enabled=False)
    forget(declared)
    declare(enabled=False)
    write_declared("default")
    forget(declared)

    declare(enabled=True)
    write_declared("default")

    assert stored("tests.send_report").enabled is True


@pytest.mark.parametrize("source", ["api", "admin"])
def test_what_others_made_is_left_alone_when_nothing_is_declared(source: str) -> None:
    schedule()
    Schedule.objects.update(source=source)
    before = vars(stored()) | {"_state": None}

    write_declared("default")

    assert vars(stored()) | {"_state": None} == before


@pytest.mark.parametrize("source", ["api", "admin"])
def test_what_others_made_is_left_alone_when_code_declares_its_name(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    schedule("report", "@every 1d", payload={"by": "hand"})
    Schedule.objects.update(source=source)
    before = vars(stored()) | {"_state": None}

    declare("@every 5m", name="report")
    with caplog.at_level(logging.WARNING, "django_outbox"):
        write_declared("default")

    assert vars(stored()) | {"_state": None} == before
    assert "outbox.unschedule('report') and a restart give it back" in caplog.text
    assert news(caplog) == []
