"""The page of schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_outbox import handlers, outbox, testing
from django_outbox.admin.fires import fires_of
from django_outbox.admin.schedule_forms import ScheduleForm
from django_outbox.models import OutboxMessage, Schedule
from django_outbox.scheduling import declaring
from django_outbox.scheduling.declaring import write_declared
from tests.admin.conftest import Login
from tests.contract.helpers import Together, backend_pid, wait_until_blocked

pytestmark = pytest.mark.django_db

LIST = "/admin/django_outbox/schedule/"
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&gt;&lt;img src=x onerror=alert(2)&gt;"


def page(row: Schedule, tail: str = "change/") -> str:
    return f"{LIST}{row.pk}/{tail}"


def form(**changes: Any) -> dict[str, Any]:
    """Return what a browser sends for a new schedule."""
    return {
        "name": "nightly",
        "spec": "@cron 30 2 * * * Europe/Berlin",
        "queue": "reports",
        "payload": '{"kind": "nightly"}',
        "payload_is": "json",
        "headers": "",
        "max_attempts": "",
        "expires_in": "",
        "catch_up": "all",
        "enabled": "on",
    } | changes


def sent(response: Any, **changes: Any) -> dict[str, Any]:
    """Return what a browser sends for a form that it shows, with these changes."""
    shown = response.context["adminform"].form
    data = {name: shown[name].value() for name in shown.fields}
    data = {name: "" if value is None else value for name, value in data.items()} | changes
    return {name: value for name, value in data.items() if value is not False}


def made(name: str = "nightly", spec: str = "@every 5m", **options: Any) -> Schedule:
    return outbox.schedule(name, spec, **({"queue": "reports"} | options))


def by_hand(row: Schedule, assignments: str) -> None:
    """Change a row as somebody does at a prompt of the database."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE django_outbox_schedule SET {assignments} WHERE id = {row.pk}")


def column(row: Schedule, expression: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {expression} FROM django_outbox_schedule WHERE id = {row.pk}")
        return cursor.fetchone()[0]


def said(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def text(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", response.content.decode()))


@pytest.fixture
def together() -> Iterator[Together]:
    together = Together()
    yield together
    together.close()


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch, registry: handlers.Registry) -> None:
    """Let a test declare schedules of its own."""
    monkeypatch.setattr(declaring, "_declared", {})


@pytest.fixture
def in_code(declared: None) -> Schedule:
    """A schedule that the code declares, as a scheduler writes it."""

    @outbox.scheduled("@every 5m", name="in-code", payload={"from": "code"})
    @outbox.handler("reports")
    def report(message: outbox.Message[Any]) -> None: ...

    write_declared("default")
    return Schedule.objects.get(name="in-code")


# The list


@pytest.mark.parametrize(
    ("filters", "status"),
    [
        ("enabled__exact=1", 200),
        ("source__exact=code", 200),
        ("queue=reports&error=no", 200),
        ("enabled__exact=x", 302),
        ("enabled__exact=%00", 400),
        ("source__exact=%00", 400),
        ("source__exact=elsewhere", 200),
        ("queue=%00", 200),
        ("error=%00", 200),
        ("name=%00", 400),
        ("expires_in=x", 400),
        ("expires_in__gte=99999999999999", 400),
        ("spec__regex=(", 400),
        ("queue__regex=(", 400),
        ("payload__contains=x", 400),
        ("headers__a=1", 400),
        ("last_error__regex=.", 400),
        ("q=%00", 200),
        ("o=99", 200),
        ("p=x", 200),
    ],
)
def test_the_list_is_filtered_by_its_filters_and_by_nothing_else(
    superuser: Client, filters: str, status: int
) -> None:
    made()
    assert superuser.get(f"{LIST}?{filters}").status_code == status


def test_the_list_says_how_each_schedule_stands(superuser: Client) -> None:
    row = made("nightly", "@cron 30 2 * * * America/New_York")
    by_hand(
        row,
        "next_run_at = '2031-07-01 06:30Z', planned_for = spec || ' ' || timezone, "
        "last_run_at = '2031-01-05 07:30Z', last_error = E'first line\\nsecond line', "
        "skipped_count = 7",
    )
    shown = text(superuser.get(LIST))

    for part in (
        "nightly",
        "enabled",
        "@cron 30 2 * * * America/New_York",
        "reports",
        "Tue 2031-07-01 02:30:00 EDT Tue 2031-07-01 06:30:00 UTC",
        "Sun 2031-01-05 02:30:00 EST Sun 2031-01-05 07:30:00 UTC",
        "first line",
        " 7 ",
        "made by schedule()",
    ):
        assert part in shown
    assert "second line" not in shown


def test_the_list_can_be_filtered_and_searched(superuser: Client) -> None:
    made("one", queue="mails", enabled=False)
    by_hand(made("two", queue="reports"), "last_error = 'down'")
    made("three", queue="three-mails")

    def names(query: str) -> list[str]:
        rows = superuser.get(LIST + query).context["cl"].result_list
        return [row.name for row in rows]

    assert names("") == ["one", "three", "two"]
    assert names("?enabled__exact=0") == ["one"]
    assert names("?source__exact=api") == ["one", "three", "two"]
    assert names("?source__exact=code") == []
    assert names("?queue=mails") == ["one"]
    assert names("?queue=elsewhere") == []
    assert names("?error=yes") == ["two"]
    assert names("?error=no") == ["one", "three"]
    assert names("?q=mails") == ["one", "three"]
    assert names("?q=two") == ["two"]


def test_the_list_takes_few_statements_and_reads_no_payload(
    superuser: Client, in_code: Schedule, django_assert_max_num_queries: Any
) -> None:
    for n in range(30):
        made(f"schedule-{n}", payload={"n": n})
    superuser.get(LIST)
    with django_assert_max_num_queries(8) as queries:
        superuser.get(LIST)

    assert [query["sql"] for query in queries if '"payload"' in query["sql"]] == []
    assert [query["sql"] for query in queries if '"headers"' in query["sql"]] == []


def test_the_page_of_one_takes_few_statements(
    superuser: Client, in_code: Schedule, django_assert_max_num_queries: Any
) -> None:
    by_hand(in_code, "last_message_id = 1")
    with django_assert_max_num_queries(9):
        superuser.get(page(in_code))


def test_the_list_says_where_code_and_table_differ(superuser: Client, in_code: Schedule) -> None:
    assert "differs from code" not in text(superuser.get(LIST))

    by_hand(in_code, "spec = '@every 6m', queue = 'elsewhere', payload = '1', enabled = false")

    assert "differs from code: spec, queue, payload" in text(superuser.get(LIST))
    assert "differs from code: spec, queue, payload" in text(superuser.get(page(in_code)))


def test_the_list_says_what_is_no_longer_declared(
    superuser: Client, in_code: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declaring, "_declared", {})
    assert "no longer declared" in text(superuser.get(LIST))

    write_declared("default")
    assert "no longer declared" in text(superuser.get(LIST))
    assert "undoes what is changed here" not in text(superuser.get(page(in_code)))
    assert "it comes back" not in text(superuser.get(page(in_code, "delete/")))


def test_the_list_says_which_declared_name_somebody_has_taken(
    superuser: Client, in_code: Schedule
) -> None:
    made("in-code", "@every 1h")

    assert "declared in code too, ignored there" in text(superuser.get(LIST))
    assert "it comes back" in text(superuser.get(page(in_code, "delete/")))


def test_a_wrong_declaration_is_a_warning_on_the_list(
    superuser: Client, settings: Any, in_code: Schedule
) -> None:
    settings.OUTBOX = {"SCHEDULES": {HOSTILE: {"spec": "daily", "queue": "q"}}}
    response = superuser.get(LIST)

    assert response.status_code == 200
    (warning,) = said(response)
    assert warning.startswith("What the code declares cannot be compared: OUTBOX['SCHEDULES']")
    assert "<script>alert" not in response.content.decode()
    assert superuser.get(page(in_code)).status_code == 200


# Adding


def test_a_schedule_is_added_with_its_next_boundary(superuser: Client) -> None:
    response = superuser.post(f"{LIST}add/", form(), follow=True)

    row = Schedule.objects.get()
    assert "was added successfully" in said(response)[0]
    assert (row.name, row.spec, row.timezone, row.queue, row.source) == (
        "nightly",
        "@cron 30 2 * * * Europe/Berlin",
        "Europe/Berlin",
        "reports",
        "admin",
    )
    assert (bytes(row.payload), row.headers) == (
        b'{"kind":"nightly"}',
        {"content-type": "application/json"},
    )
    assert row.next_run_at is not None
    assert row.next_run_at > datetime.now(UTC)
    assert row.planned_for == "@cron 30 2 * * * Europe/Berlin Europe/Berlin"
    assert row.plan_from is None
    assert (row.max_attempts, row.expires_in, row.catch_up, row.enabled) == (
        None,
        None,
        "all",
        True,
    )
    (entry,) = LogEntry.objects.all()
    assert (entry.object_id, entry.object_repr, entry.is_addition()) == (
        str(row.pk),
        "nightly",
        True,
    )


def test_every_option_is_written(superuser: Client) -> None:
    options = form(
        headers='{"tenant": "acme"}', max_attempts="3", expires_in="90", catch_up="latest"
    )
    del options["enabled"]
    superuser.post(f"{LIST}add/", options)

    row = Schedule.objects.get()
    assert row.headers == {"tenant": "acme", "content-type": "application/json"}
    assert (row.max_attempts, row.expires_in) == (3, timedelta(seconds=90))
    assert (row.catch_up, row.enabled) == ("latest", False)


def test_a_cron_without_a_zone_gets_that_of_the_site(superuser: Client, settings: Any) -> None:
    settings.TIME_ZONE = "America/New_York"
    superuser.post(f"{LIST}add/", form(spec="@cron 0 9 * * *"))

    assert Schedule.objects.get().timezone == "America/New_York"


def test_bytes_are_written_in_hex(superuser: Client) -> None:
    superuser.post(f"{LIST}add/", form(payload="00 ff\r\n7A", payload_is="hex"))

    row = Schedule.objects.get()
    assert bytes(row.payload) == b"\x00\xffz"
    assert row.headers == {"content-type": "application/octet-stream"}


@pytest.mark.parametrize(
    ("field", "given", "error"),
    [
        (
            "spec",
            "30 2 * * *",
            (
                "'30 2 * * *' is no spec. Accepted are '@every <n><s|m|h|d>' and "
                "'@cron <five fields> [zone]'. Did you mean '@cron 30 2 * * *'?"
            ),
        ),
        (
            "spec",
            "@cron 0 3 * * * Europe/Berln",
            (
                "'@cron 0 3 * * * Europe/Berln': 'Europe/Berln' is no zone. A zone is an IANA name "
                "such as Europe/Berlin. Did you mean '@cron 0 3 * * * Europe/Berlin'?"
            ),
        ),
        (
            "name",
            "__mine",
            (
                "The schedule's name '__mine' starts with '__', which is kept for django_outbox "
                "itself; use another name."
            ),
        ),
        (
            "queue",
            "__outbox:x",
            (
                "The queue '__outbox:x' starts with '__', which is kept for django_outbox itself; "
                "use another name."
            ),
        ),
        ("queue", "q" * 256, f"The queue '{'q' * 60}…' has 256 characters, more than 255."),
        (
            "payload",
            "{'a': 1}",
            (
                "This is not valid JSON: Expecting property name enclosed in double quotes: line 1 "
                "column 2 (char 1)"
            ),
        ),
        ("payload", "NaN", "This is not valid JSON: NaN is not JSON"),
        ("headers", "[]", "Headers are a JSON object of strings, such as {}."),
        (
            "headers",
            '{"a": 1}',
            "headers must map str to str; 'a' is of type str, and its value of type int.",
        ),
        (
            "headers",
            '{"content-type": "text/csv"}',
            (
                "The content-type header 'text/csv' goes with a payload of bytes; this one is of "
                "type dict, stored as application/json."
            ),
        ),
        ("max_attempts", "0", "max_attempts must lie between 1 and 1,000,000; it is 0."),
        ("expires_in", "-5", "expires_in must be positive; it is -1 day, 23:59:55."),
        ("expires_in", "soon", "Enter a valid duration."),
    ],
)
def test_what_cannot_be_used_is_said_at_its_field(
    superuser: Client, field: str, given: str, error: str
) -> None:
    response = superuser.post(f"{LIST}add/", form(**{field: given}))

    assert response.context["adminform"].form.errors == {field: [error]}
    assert not Schedule.objects.exists()


def test_a_payload_that_is_too_large_is_said_at_its_field(superuser: Client, settings: Any) -> None:
    settings.OUTBOX = {"MAX_PAYLOAD_BYTES": 10}
    response = superuser.post(f"{LIST}add/", form())

    assert list(response.context["adminform"].form.errors) == ["payload"]


def test_a_name_that_is_taken_is_never_written_over(superuser: Client) -> None:
    made("nightly", "@every 5m")
    response = superuser.post(f"{LIST}add/", form())

    assert response.context["adminform"].form.errors == {
        "name": ["There is a schedule of this name. Edit that one instead."]
    }
    assert Schedule.objects.get().spec == "@every 5m"


@pytest.mark.django_db(transaction=True)
def test_a_name_that_is_taken_while_the_form_is_saved_is_never_written_over(
    superuser: Client, together: Together
) -> None:
    with transaction.atomic():
        made("nightly", "@every 5m")
        answer = together.start(superuser.post, f"{LIST}add/", form())
        wait_until_blocked(answer, by=backend_pid())

    assert answer.result(10).context["adminform"].form.errors == {
        "name": ["There is a schedule of this name. Edit that one instead."]
    }
    assert Schedule.objects.get().spec == "@every 5m"


# Editing


def test_only_what_was_changed_is_written(superuser: Client) -> None:
    row = made("nightly", payload={"n": 1}, headers={"tenant": "acme"}, max_attempts=3)
    shown = superuser.get(page(row))
    # Meanwhile a scheduler has fired it.
    by_hand(row, "next_run_at = '2031-01-01Z', skipped_count = 7")
    with CaptureQueriesContext(connection) as queries:
        superuser.post(page(row), sent(shown, queue="mails"))

    (update,) = [q["sql"] for q in queries if 'UPDATE "django_outbox_schedule"' in q["sql"]]
    assert re.findall(r'"(\w+)" = ', update.partition(" WHERE ")[0]) == ["queue"]
    row.refresh_from_db()
    assert (row.queue, row.source, row.skipped_count) == ("mails", "api", 7)
    assert row.next_run_at == datetime(2031, 1, 1, tzinfo=UTC)


def test_a_changed_spec_has_its_next_boundary_at_once(superuser: Client) -> None:
    row = made("nightly", "@cron 0 3 * * * Europe/Berlin")
    superuser.post(page(row), sent(superuser.get(page(row)), spec="@every 1h"))

    row.refresh_from_db()
    assert (row.spec, row.timezone, row.planned_for) == ("@every 1h", "UTC", "@every 1h UTC")
    assert row.next_run_at is not None
    hour = timedelta(hours=1)
    assert hour - timedelta(minutes=1) < row.next_run_at - datetime.now(UTC) <= hour
    assert row.plan_from is None


def test_a_changed_spec_has_its_next_boundary_where_there_was_none(superuser: Client) -> None:
    row = made("nightly")
    by_hand(row, "spec = '@every 7m'")  # which leaves the boundary to the next tick
    superuser.post(page(row), sent(superuser.get(page(row)), spec="@every 1h"))

    row.refresh_from_db()
    assert row.next_run_at is not None
    assert (row.planned_for, row.plan_from) == ("@every 1h UTC", None)


def test_an_unchanged_spec_keeps_its_zone_and_its_boundary(superuser: Client) -> None:
    row = made("nightly", "@cron 0 3 * * *")
    by_hand(row, "timezone = 'Asia/Tokyo', next_run_at = '2031-01-01Z'")
    superuser.post(page(row), sent(superuser.get(page(row)), max_attempts="4"))

    row.refresh_from_db()
    assert (row.timezone, row.max_attempts) == ("Asia/Tokyo", 4)
    assert row.next_run_at == datetime(2031, 1, 1, tzinfo=UTC)


def test_a_zone_that_does_not_exist_is_replaced_when_the_schedule_is_saved(
    superuser: Client,
) -> None:
    row = made("nightly", "@cron 0 3 * * *")
    by_hand(row, "timezone = 'Mars/Base'")
    superuser.post(page(row), sent(superuser.get(page(row))))

    row.refresh_from_db()
    assert (row.timezone, row.plan_from) == ("UTC", None)
    assert row.next_run_at is not None


def test_bytes_are_kept_unless_they_are_changed(superuser: Client) -> None:
    row = made("nightly", payload=b"\x00\xff", headers={"content-type": "application/x-thing"})
    shown = superuser.get(page(row))
    assert shown.context["adminform"].form["payload"].value() == "00 ff"
    superuser.post(page(row), sent(shown, queue="mails"))
    row.refresh_from_db()
    kept = {"content-type": "application/x-thing"}
    assert (bytes(row.payload), row.headers) == (b"\x00\xff", kept)

    superuser.post(page(row), sent(superuser.get(page(row)), payload="01 02"))
    row.refresh_from_db()
    assert (bytes(row.payload), row.headers) == (b"\x01\x02", kept)

    changed = sent(superuser.get(page(row)), payload="[1]", payload_is="json", headers="")
    superuser.post(page(row), changed)
    row.refresh_from_db()
    assert (bytes(row.payload), row.headers) == (b"[1]", {"content-type": "application/json"})


def test_json_is_kept_as_it_is_written_when_a_browser_sends_it_back(superuser: Client) -> None:
    row = made("nightly", payload={"a": [1, 2]})
    by_hand(row, """payload = '{"a":   [1, 2]}'""")
    shown = superuser.get(page(row))
    payload = shown.context["adminform"].form["payload"].value()
    assert payload == '{\n  "a": [\n    1,\n    2\n  ]\n}'
    superuser.post(page(row), sent(shown, payload=payload.replace("\n", "\r\n"), queue="mails"))

    row.refresh_from_db()
    assert (bytes(row.payload), row.queue) == (b'{"a":   [1, 2]}', "mails")


def test_a_large_payload_is_cut_to_look_at_and_kept(superuser: Client) -> None:
    row = made("nightly", payload={"text": "x" * 200_000})
    shown = superuser.get(page(row))
    assert "the first 100,000 of 200,011 bytes" in text(shown)
    assert "It is too large to be edited here" in text(shown)
    superuser.post(page(row), sent(shown, queue="mails"))

    row.refresh_from_db()
    assert (len(row.payload), row.queue) == (200_011, "mails")


def test_a_payload_is_downloaded_as_a_file_that_no_browser_opens(
    superuser: Client, login: Login
) -> None:
    row = made("nightly", payload=b"<script>", headers={"content-type": "text/html"})
    for client in (superuser, login("view_schedule")):
        response = client.get(page(row, "payload/"))
        assert response.content == b"<script>"
        assert response["Content-Type"] == "application/octet-stream"
        assert response["X-Content-Type-Options"] == "nosniff"
        assert response["Content-Disposition"] == f'attachment; filename="schedule-{row.pk}.bin"'
    assert login("run_schedule").get(page(row, "payload/")).status_code == 403
    assert superuser.get(f"{LIST}0/payload/").status_code == 404


def test_json_that_cannot_be_read_keeps_its_content_type(superuser: Client) -> None:
    row = made("nightly")
    by_hand(row, r"payload = '\xff'")
    superuser.post(page(row), sent(superuser.get(page(row)), payload="31"))

    row.refresh_from_db()
    assert (bytes(row.payload), row.headers) == (b"1", {"content-type": "application/json"})


def test_nobody_undoes_unknowingly_what_somebody_else_has_changed(superuser: Client) -> None:
    row = made("nightly")
    data = sent(superuser.get(page(row)), queue="mails")
    superuser.post(page(row, "disable/"))
    response = superuser.post(page(row), data)

    assert "Somebody has changed this schedule since you opened it." in text(response)
    assert list(Schedule.objects.values_list("queue", "enabled")) == [("reports", False)]


def test_what_a_scheduler_does_is_no_reason_to_open_the_form_again(superuser: Client) -> None:
    row = made("nightly")
    data = sent(superuser.get(page(row)), queue="mails")
    by_hand(row, "next_run_at = clock_timestamp()")
    testing.tick_schedules()
    superuser.post(page(row), data)

    assert column(row, "queue") == "mails"
    assert column(row, "last_message_id IS NOT NULL") is True
    assert LogEntry.objects.get().get_change_message().lower() == "changed queue."


def test_the_form_warns_that_code_undoes_what_is_changed(
    superuser: Client, in_code: Schedule
) -> None:
    warning = "the next start of a scheduler undoes what is changed here"
    assert warning in text(superuser.get(page(in_code)))
    assert warning not in text(superuser.get(page(made())))

    data = sent(superuser.get(page(in_code)), queue="mails", enabled=False)
    superuser.post(page(in_code), data)
    in_code.refresh_from_db()
    assert (in_code.queue, in_code.source, in_code.enabled) == ("mails", "code", False)

    write_declared("default")
    in_code.refresh_from_db()
    assert (in_code.queue, in_code.enabled) == ("reports", False)


def test_a_schedule_that_is_gone_when_it_is_saved_is_not_found(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = made()
    data = sent(superuser.get(page(row)), queue="mails")
    is_valid = ScheduleForm.is_valid

    def delete_and_check(self: Any) -> bool:
        Schedule.objects.all().delete()
        return is_valid(self)

    monkeypatch.setattr(ScheduleForm, "is_valid", delete_and_check)
    assert superuser.post(page(row), data).status_code == 404


def test_the_queues_that_have_handlers_are_suggested(superuser: Client, in_code: Schedule) -> None:
    shown = superuser.get(f"{LIST}add/").content.decode()

    assert 'list="outbox-queues"' in shown
    assert '<datalist id="outbox-queues"><option value="reports"></option></datalist>' in shown


# The next fires


def fires_shown(client: Client, **query: str) -> list[list[str]]:
    """Return the table's cells, row by row."""
    content = client.get(f"{LIST}preview/", query).content.decode()
    rows = re.findall("<tr>(.*?)</tr>", content, re.DOTALL)
    return [re.findall("<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]


def test_the_next_five_fires_are_shown_in_the_zone_and_in_utc(superuser: Client) -> None:
    head, *rows = fires_shown(superuser, spec="@cron 30 7 * * * Asia/Tokyo")

    assert head == ["Asia/Tokyo", "UTC", "Note"]
    assert len(rows) == 5
    for local, utc, note in rows:
        assert re.fullmatch(r"\w{3} \d{4}-\d\d-\d\d 07:30:00 JST", local)
        assert re.fullmatch(r"\w{3} \d{4}-\d\d-\d\d 22:30:00 UTC", utc)
        assert note == ""


def test_the_next_fires_of_a_schedule_go_on_from_its_next_boundary(superuser: Client) -> None:
    row = made("nightly", "@every 5m")
    by_hand(row, "next_run_at = '2031-01-01 00:00:07Z'")

    assert fires_shown(superuser, spec="@every 5m", name="nightly")[:3] == [
        ["UTC", "Note"],
        ["Wed 2031-01-01 00:00:07 UTC", ""],
        ["Wed 2031-01-01 00:05:07 UTC", ""],
    ]
    assert "2031" not in str(fires_shown(superuser, spec="@every 6m", name="nightly"))
    assert "Wed 2031-01-01 00:05:07 UTC" in text(superuser.get(page(row)))


def test_what_a_schedule_that_is_off_would_do_is_shown(superuser: Client) -> None:
    row = made("nightly", "@every 5m", enabled=False)
    by_hand(row, "next_run_at = '2001-01-01 00:00:07Z'")
    shown = text(superuser.get(page(row)))

    assert "It is disabled. Enabled now, it would fire at:" in shown
    assert ":07 UTC" in shown
    assert "2001-01-01" not in shown


def test_a_wrong_spec_is_explained_where_the_fires_would_be(superuser: Client) -> None:
    response = superuser.get(f"{LIST}preview/", {"spec": HOSTILE, "name": "\x00"})

    assert response.status_code == 200
    assert "is no spec. Accepted are" in text(response)
    assert "<script>" not in response.content.decode()
    assert "<img" not in response.content.decode()
    assert superuser.get(f"{LIST}preview/").content == b""


def test_the_next_fires_of_a_new_spec_show_when_another_field_is_wrong(superuser: Client) -> None:
    response = superuser.post(
        f"{LIST}add/", form(spec="@cron 30 7 * * * Asia/Tokyo", queue="__mine")
    )

    assert "07:30:00 JST" in text(response)


def test_no_fires_show_beside_a_wrong_spec(superuser: Client) -> None:
    row = made("nightly", "@cron 30 7 * * * Asia/Tokyo")
    response = superuser.post(page(row), sent(superuser.get(page(row)), spec="7:30"))

    assert "is no spec. Accepted are" in text(response)
    assert "JST" not in text(response)
    assert column(row, "spec") == "@cron 30 7 * * * Asia/Tokyo"


@pytest.mark.parametrize(
    ("spec", "now", "expected"),
    [
        (
            "@cron 30 2 * * * America/New_York",
            datetime(2026, 3, 7, 6, tzinfo=UTC),
            [
                ("Sat 2026-03-07 02:30:00 EST", "Sat 2026-03-07 07:30:00 UTC", ""),
                (
                    "Sun 2026-03-08 03:00:00 EDT",
                    "Sun 2026-03-08 07:00:00 UTC",
                    "after the change of clocks",
                ),
                ("Mon 2026-03-09 02:30:00 EDT", "Mon 2026-03-09 06:30:00 UTC", ""),
            ],
        ),
        (
            "@cron 30 2 * * * Europe/Berlin",
            datetime(2026, 10, 24, 6, tzinfo=UTC),
            [
                (
                    "Sun 2026-10-25 02:30:00 CEST",
                    "Sun 2026-10-25 00:30:00 UTC",
                    "the hour that comes twice, the first time",
                ),
                (
                    "Mon 2026-10-26 02:30:00 CET",
                    "Mon 2026-10-26 01:30:00 UTC",
                    "after the change of clocks",
                ),
            ],
        ),
        (
            "@cron 0 * * * * Europe/Berlin",
            datetime(2026, 10, 24, 23, 30, tzinfo=UTC),
            [
                (
                    "Sun 2026-10-25 02:00:00 CEST",
                    "Sun 2026-10-25 00:00:00 UTC",
                    "the hour that comes twice, the first time",
                ),
                (
                    "Sun 2026-10-25 02:00:00 CET",
                    "Sun 2026-10-25 01:00:00 UTC",
                    "the hour that comes twice, the second time",
                ),
                ("Sun 2026-10-25 03:00:00 CET", "Sun 2026-10-25 02:00:00 UTC", ""),
            ],
        ),
    ],
)
def test_what_the_change_of_clocks_does_is_marked(
    spec: str, now: datetime, expected: list[tuple[str, str, str]]
) -> None:
    found = fires_of(spec, default_zone="UTC", now=now)

    shown = [(fire.local, fire.utc, fire.note) for fire in found.fires]
    assert shown[: len(expected)] == expected


def test_fires_end_with_the_calendar() -> None:
    found = fires_of("@every 1d", default_zone="UTC", now=datetime(9999, 12, 29, tzinfo=UTC))

    assert [fire.utc[4:14] for fire in found.fires] == ["9999-12-30", "9999-12-31"]


# What can be done


def test_a_schedule_is_switched_off_and_on(superuser: Client) -> None:
    row = made()
    response = superuser.post(page(row, "disable/"), follow=True)
    assert said(response) == ["Disabled 1 schedule: nightly."]
    assert "Enable</button>" in response.content.decode()
    assert "Disable</button>" not in response.content.decode()
    assert column(row, "enabled") is False

    assert said(superuser.post(page(row, "disable/"), follow=True)) == [
        "Disabled none: it is so already."
    ]
    assert said(superuser.post(page(row, "enable/"), follow=True)) == [
        "Enabled 1 schedule: nightly."
    ]
    assert column(row, "enabled AND plan_from IS NOT NULL") is True
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
        "Disabled.",
        "Enabled.",
    ]


@pytest.mark.parametrize("tool", ["run_now", "disable"])
def test_without_its_line_in_the_log_nothing_is_done(
    superuser: Client, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = made()

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the log is full")

    monkeypatch.setattr(LogEntry.objects, "create", refuse)
    monkeypatch.setattr(LogEntry.objects, "log_actions", refuse)
    with pytest.raises(RuntimeError, match="the log is full"):
        superuser.post(page(row, f"{tool}/"))
    row.refresh_from_db()
    assert row.enabled
    assert not OutboxMessage.objects.exists()


def test_many_are_switched_off_at_once(superuser: Client) -> None:
    rows = [made(name) for name in ("a", "b", "c")]
    by_hand(rows[1], "enabled = false")
    data = {"action": "disable_selected", "_selected_action": [row.pk for row in rows]}
    response = superuser.post(LIST, data, follow=True)

    assert said(response) == ["Disabled 2 schedules: a, c."]
    assert not Schedule.objects.filter(enabled=True).exists()
    assert sorted(LogEntry.objects.values_list("object_repr", "change_message")) == [
        ("a", "Disabled, one of 2."),
        ("c", "Disabled, one of 2."),
    ]


def test_run_now_publishes_one_message_and_moves_no_boundary(superuser: Client) -> None:
    row = made(
        payload={"n": 1},
        headers={"tenant": "acme"},
        max_attempts=3,
        expires_in=60,
        enabled=False,
    )
    before = Schedule.objects.values().get()
    response = superuser.post(page(row, "run_now/"), follow=True)

    assert said(response) == ["Published a message now for 1 schedule: nightly."]
    message = OutboxMessage.objects.get()
    assert (message.queue, bytes(message.payload), message.max_attempts) == (
        "reports",
        b'{"n":1}',
        3,
    )
    boundary = datetime.fromisoformat(message.headers.pop("boundary"))
    assert boundary.utcoffset() == timedelta()
    assert timedelta() <= message.created_at - boundary < timedelta(seconds=1)
    assert message.headers == {
        "tenant": "acme",
        "content-type": "application/json",
        "schedule": "nightly",
    }
    assert message.expires_at is not None
    assert message.expires_at - message.next_attempt_at == timedelta(seconds=60)
    assert Schedule.objects.values().get() == before
    assert LogEntry.objects.get().change_message == f"Run now: message {message.pk} for reports."


def test_many_are_run_now_and_what_cannot_be_says_why(superuser: Client) -> None:
    rows = [made(name) for name in ("a", "b", "c")]
    by_hand(rows[1], "queue = '__outbox:x'")
    data = {"action": "run_selected", "_selected_action": [row.pk for row in rows]}
    response = superuser.post(LIST, data, follow=True)

    assert said(response) == [
        (
            "The schedule 'b' cannot be run: The queue '__outbox:x' starts with '__', which is "
            "kept for django_outbox itself; use another name."
        ),
        "Published a message now for 2 schedules: a, c.",
    ]
    assert OutboxMessage.objects.count() == 2


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        ("queue = ''", "The queue '' is empty."),
        ("headers = '[1]'", "The headers column must hold an object of strings."),
        ("max_attempts = 0", "max_attempts must lie between 1 and 1,000,000; it is 0."),
        ("expires_in = '-1 s'", "expires_in must be positive; it is -1.0."),
    ],
)
def test_what_cannot_be_run_says_why(superuser: Client, assignment: str, why: str) -> None:
    row = made()
    by_hand(row, assignment)
    response = superuser.post(page(row, "run_now/"), follow=True)

    assert said(response) == [f"The schedule 'nightly' cannot be run: {why}"]
    assert not OutboxMessage.objects.exists()
    assert not LogEntry.objects.exists()


def test_a_message_that_the_database_keeps_out_is_no_run(superuser: Client) -> None:
    row = made()
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE django_outbox_message ADD CONSTRAINT mine CHECK (queue <> 'reports')"
        )
    response = superuser.post(page(row, "run_now/"), follow=True)

    assert "cannot be run" in said(response)[0]
    assert 'violates check constraint "mine"' in said(response)[0]


def test_a_declared_schedule_is_deleted_with_a_warning(
    superuser: Client, in_code: Schedule
) -> None:
    warning = "it comes back at the next start of a scheduler"
    other = made()
    assert warning in text(superuser.get(page(in_code, "delete/")))
    assert warning not in text(superuser.get(page(other, "delete/")))

    data = {"action": "delete_selected", "_selected_action": [in_code.pk, other.pk]}
    assert warning in text(superuser.post(LIST, data))
    superuser.post(LIST, {**data, "post": "yes"})
    assert not Schedule.objects.exists()
    assert LogEntry.objects.filter(action_flag=DELETION).count() == 2


def test_the_page_links_to_the_last_message_while_it_is_there(superuser: Client) -> None:
    row = made()
    with transaction.atomic():
        message_id = outbox.publish({}, queue="reports")
    by_hand(row, f"last_message_id = {message_id}, last_error = E'one\\ntwo'")
    shown = superuser.get(page(row)).content.decode()
    assert f'<a href="/admin/django_outbox/outboxmessage/{message_id}/change/">' in shown
    assert '<pre class="outbox-pre" tabindex="0">one\ntwo</pre>' in shown

    OutboxMessage.objects.all().delete()
    assert f"{message_id}, which is no longer in the outbox" in text(superuser.get(page(row)))


# Who may


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"spec": "@every 10m"}, None),
        ({"queue": "mails"}, None),
        ({"payload": "[1]"}, None),
        ({}, "down"),
    ],
)
def test_a_schedule_that_is_mended_has_no_error_any_more(
    superuser: Client, changes: dict[str, str], error: str | None
) -> None:
    row = made()
    by_hand(row, "last_error = 'down', retry_at = now() + interval '1 minute'")
    superuser.post(page(row), sent(superuser.get(page(row)), **changes))
    row.refresh_from_db()
    assert row.last_error == error
    assert (row.retry_at is None) == (error is None)


def test_of_many_that_cannot_be_run_some_are_named(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_outbox.admin.schedules.MOST_NAMED", 2)
    rows = [made(f"bad-{number}") for number in range(5)]
    Schedule.objects.update(queue="__outbox:x")
    response = superuser.post(
        LIST,
        {"action": "run_selected", "_selected_action": [row.pk for row in rows]},
        follow=True,
    )
    first, second, more = said(response)
    assert first.startswith("The schedule 'bad-0' cannot be run: The queue '__outbox:x'")
    assert second.startswith("The schedule 'bad-1' cannot be run: ")
    assert more == "Nor can 3 more."


def test_the_state_says_that_the_last_fire_failed(superuser: Client) -> None:
    made("fine")
    by_hand(made("bad"), "last_error = 'down'")
    page = superuser.get(LIST).content.decode()
    assert page.count("last fire failed") == 1


def test_a_payload_that_is_nested_deep_fills_no_page(superuser: Client) -> None:
    row = made()
    body = b"[" * 900 + b",".join([b"1"] * 49_000) + b"]" * 900
    Schedule.objects.update(payload=body)
    response = superuser.get(page(row))
    assert len(response.content) < 500_000
    response = superuser.post(page(row), sent(response, max_attempts="3"))
    assert response.status_code == 302
    row.refresh_from_db()
    assert (bytes(row.payload), row.max_attempts) == (body, 3)


def test_who_may_only_look_sees_no_button_and_no_form(login: Login) -> None:
    client = login("view_schedule")
    row = made(payload={"secret": 1}, expires_in=60)
    shown = client.get(page(row)).content.decode()

    assert "outbox-tool" not in shown
    assert 'name="spec"' not in shown
    assert "&quot;secret&quot;: 1" in shown
    assert "0:01:00" in shown
    assert client.get(LIST).context["action_form"] is None
    assert client.get(f"{LIST}preview/", {"spec": "@every 5m"}).status_code == 200
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(f"{LIST}add/", form()).status_code == 403
    for tail in ("change/", "run_now/", "enable/", "disable/", "delete/"):
        assert client.post(page(row, tail), form()).status_code == 403
    for action in ("run_selected", "enable_selected", "disable_selected", "delete_selected"):
        client.post(LIST, {"action": action, "_selected_action": [row.pk], "post": "yes"})
    assert Schedule.objects.get().enabled
    assert not OutboxMessage.objects.exists()


def test_who_may_run_may_not_change(login: Login) -> None:
    client = login("view_schedule", "run_schedule")
    row = made()
    shown = client.get(page(row)).content.decode()

    assert "Run now</button>" in shown
    assert "Disable</button>" not in shown
    assert client.post(page(row, "disable/")).status_code == 403
    assert client.post(page(row, "run_now/")).status_code == 302
    assert OutboxMessage.objects.count() == 1


def test_who_may_change_may_not_run(login: Login) -> None:
    client = login("change_schedule")
    row = made()
    shown = client.get(page(row)).content.decode()

    assert "Run now</button>" not in shown
    assert "Disable</button>" in shown
    assert client.post(page(row, "run_now/")).status_code == 403
    assert client.post(page(row, "disable/")).status_code == 302
    assert not OutboxMessage.objects.exists()


def test_without_a_permission_there_is_no_page(login: Login) -> None:
    client = login("view_outboxmessage", "run_schedule")
    row = made()

    for url in (LIST, page(row), f"{LIST}preview/?spec=@every+5m"):
        assert client.get(url).status_code == 403
    assert client.post(page(row, "run_now/")).status_code == 403


def test_a_tool_is_not_run_by_a_link(superuser: Client) -> None:
    row = made()

    for tool in ("run_now", "enable", "disable"):
        assert superuser.get(page(row, f"{tool}/")).status_code == 405


# What somebody has written by hand


@pytest.mark.parametrize(
    "assignments",
    [
        "spec = 'nonsense'",
        "spec = ''",
        "timezone = 'Mars/Base'",
        "timezone = '../../etc/passwd'",
        "timezone = ''",
        "spec = '@cron 0 3 * * *', timezone = 'Factory'",
        "next_run_at = 'infinity'",
        "next_run_at = '-infinity'",
        "next_run_at = 'infinity', enabled = false",
        "spec = 'nonsense', enabled = false",
        "next_run_at = '20000-01-01'",
        "next_run_at = '0044-03-15 BC'",
        "next_run_at = NULL",
        "last_run_at = 'infinity', last_boundary_at = '-infinity', retry_at = 'infinity'",
        "plan_from = 'infinity', withdrawn_at = 'infinity'",
        "plan_from = '-infinity'",
        "expires_in = '100000000 years'",
        "headers = '[1, 2]'",
        """headers = '{"a": 1}'""",
        """headers = ('{"a": ' || repeat('9', 5000) || '}')::jsonb""",
        "headers = (repeat('[', 3000) || repeat(']', 3000))::jsonb",
        r"""payload = '\xff', headers = '{"content-type": "application/json"}'""",
        r"""payload = '"\\ud800"'""",
        "payload = ''",
        "catch_up = 'often'",
        "source = 'nobody'",
        "max_attempts = -1",
        "skipped_count = -9223372036854775808",
        "name = '__mine'",
        "name = ''",
        "last_error = ''",
        "last_message_id = -1",
    ],
)
def test_a_row_that_was_written_by_hand_can_be_looked_at(
    superuser: Client, login: Login, assignments: str
) -> None:
    row = made("nightly", "@cron 0 3 * * * Europe/Berlin")
    by_hand(row, assignments)

    for client in (superuser, login("view_schedule")):
        for url in (LIST, page(row), page(row, "history/")):
            assert client.get(url).status_code == 200
    for query in ("?o=3", "?o=5", "?o=-6", "?q=x"):
        assert superuser.get(LIST + query).status_code == 200
    preview = {"name": "nightly", "spec": "@cron 0 3 * * * Europe/Berlin"}
    assert superuser.get(f"{LIST}preview/", preview).status_code == 200
    data = {"action": "disable_selected", "_selected_action": [row.pk]}
    assert superuser.post(LIST, data, follow=True).status_code == 200
    assert superuser.post(page(row), sent(superuser.get(page(row)))).status_code in (200, 302)
    assert superuser.post(page(row, "run_now/"), follow=True).status_code == 200
    assert superuser.post(page(row, "delete/"), {"post": "yes"}).status_code == 302
    assert not Schedule.objects.exists()


def test_nothing_that_somebody_has_written_is_markup(superuser: Client, login: Login) -> None:
    row = made(HOSTILE, queue=HOSTILE, payload=HOSTILE, headers={HOSTILE: HOSTILE})
    by_hand(row, f"last_error = '{HOSTILE}', timezone = '<script>alert(1)</script>'")
    one = {"_selected_action": [row.pk]}
    pages = [
        superuser.get(LIST),
        superuser.get(page(row)),
        login("view_schedule").get(page(row)),
        superuser.post(page(row, "run_now/"), follow=True),
        superuser.post(page(row, "disable/"), follow=True),
        superuser.post(LIST, one | {"action": "enable_selected"}, follow=True),
        superuser.post(page(row), sent(superuser.get(page(row))), follow=True),
        superuser.get(page(row, "history/")),
        superuser.get(page(row, "delete/")),
        superuser.post(LIST, one | {"action": "delete_selected"}),
        superuser.post(page(row, "delete/"), {"post": "yes"}, follow=True),
        superuser.post(f"{LIST}add/", form(spec=HOSTILE, queue=HOSTILE, payload=HOSTILE)),
    ]

    for response in pages:
        assert response.status_code == 200
        assert "<script>alert" not in response.content.decode()
        assert "<img src=x" not in response.content.decode()
    assert ESCAPED in pages[0].content.decode()
