"""The landing page of the app: what it counts, what it warns of, and who sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.conf import LazySettings
from django.contrib.admin import AdminSite
from django.contrib.staticfiles import finders
from django.db import DataError, connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.utils import timezone

from django_outbox import outbox
from django_outbox.admin import overview as page
from django_outbox.admin import troubles
from django_outbox.admin.charts import chart
from django_outbox.admin.messages import OutboxMessageAdmin
from django_outbox.admin.overview import Overview, QueueRow
from django_outbox.models import Counter, DeadLetter, Lease, OutboxMessage, Schedule, Worker
from django_outbox.store import server
from django_outbox.store.overview import Minute
from tests.admin.conftest import Login

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("registry")]

operations = AdminSite(name="operations")
operations.register(OutboxMessage, OutboxMessageAdmin)
urlpatterns = [path("operations/", operations.urls)]

URL = "/admin/django_outbox/"
MESSAGES = "/admin/django_outbox/outboxmessage/"
LETTERS = "/admin/django_outbox/deadletter/"
HOSTILE = "<script>alert(1)</script>"
HOSTILE_ATTRIBUTE = '"><img src=x onerror=alert(1)>'


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test see what this process has kept of another's database."""
    monkeypatch.setattr(page, "_good_since", {})
    monkeypatch.setattr(troubles, "_never_vacuumed", {})


def ago(**length: float) -> Any:
    return timezone.now() - timedelta(**length)


def message(queue: str = "orders", **columns: Any) -> OutboxMessage:
    return OutboxMessage.objects.create(queue=queue, payload=b"secret", **columns)


def leased(queue: str = "orders") -> OutboxMessage:
    return message(queue, lease_token=uuid4(), lease_expires_at=ago(minutes=-1), leased_by="w")


def letter(queue: str = "orders") -> DeadLetter:
    return DeadLetter.objects.create(
        original_id=1,
        message_id=uuid4(),
        queue=queue,
        payload=b"secret",
        created_at=timezone.now(),
        failure_reason="rejected",
    )


def process(*queues: str, **columns: Any) -> Worker:
    given = {"worker_id": "worker-1", "kind": "worker", "host": "host-1", "pid": 7, **columns}
    return Worker.objects.create(id=uuid4(), queues=list(queues), **given)


def schedule(name: str = "nightly", **columns: Any) -> Schedule:
    return Schedule.objects.create(
        name=name, spec="@every 1d", timezone="UTC", queue="orders", payload=b"", **columns
    )


def lead(owner: str = "host-1:7:token") -> Lease:
    return Lease.objects.create(
        name="__scheduler", owner=owner, acquired_at=ago(hours=2), expires_at=ago(seconds=-9.5)
    )


def handle(*queues: str) -> None:
    outbox.handler(*queues)(lambda message: None)


def shown(client: Client) -> Overview:
    response = client.get(URL)
    assert response.status_code == 200
    overview: Overview = response.context["overview"]
    return overview


def text_of(client: Client) -> str:
    return client.get(URL).content.decode()


def queue(client: Client, name: str = "orders") -> QueueRow:
    rows = shown(client).queues
    assert rows is not None
    (row,) = [row for row in rows if row.name == name]
    return row


def whats(client: Client) -> list[str]:
    return [trouble.what for trouble in shown(client).troubles]


# Queues


def test_the_messages_of_a_queue_are_counted_by_state(superuser: Client) -> None:
    for _ in range(3):
        message()
    message(next_attempt_at=ago(seconds=90))
    message(attempts_count=2, next_attempt_at=ago(seconds=5))
    leased()
    message(lease_token=uuid4(), lease_expires_at=ago(seconds=1))  # has run out
    message(expires_at=ago(seconds=1))
    message(next_attempt_at=ago(hours=-1), expires_at=ago(seconds=1))
    for _ in range(2):
        message(next_attempt_at=ago(hours=-1))
    message(next_attempt_at=ago(hours=-1), attempts_count=1)
    letter()

    row = queue(superuser)
    assert (str(row.ready), str(row.leased), str(row.expired)) == ("6", "1", "2")
    assert (str(row.scheduled), str(row.retrying), str(row.dead)) == ("2", "1", "1")
    assert row.oldest == "1 min"


def test_each_count_leads_to_the_list_that_it_counts(superuser: Client) -> None:
    message("a & b")
    message("a & b", next_attempt_at=ago(hours=-1))
    message("a & b", next_attempt_at=ago(hours=-1), attempts_count=1)
    leased("a & b")
    letter("a & b")

    text = text_of(superuser)
    for state in ("ready", "leased", "scheduled", "retrying"):
        url = f"{MESSAGES}?queue=a+%26+b&amp;state={state}"
        assert f'href="{url}"' in text
        assert superuser.get(url.replace("&amp;", "&")).status_code == 200
    assert f'href="{LETTERS}?queue=a+%26+b"' in text
    assert superuser.get(f"{LETTERS}?queue=a+%26+b").status_code == 200


def test_a_count_of_nothing_leads_nowhere(superuser: Client) -> None:
    message()

    assert "state=retrying" not in text_of(superuser)


def test_counting_stops_and_says_so(superuser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "DEPTHS", ((200, 2),))
    for _ in range(4):
        message(next_attempt_at=ago(hours=-1))
        letter()
    leased()
    message()
    message()

    row = queue(superuser)
    assert (str(row.ready), str(row.leased)) == ("2+", "1+")
    assert (str(row.scheduled), str(row.retrying), str(row.dead)) == ("2+", "0+", "2+")


def test_what_is_counted_in_full_is_not_marked(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "DEPTHS", ((200, 2),))
    message()
    message()

    assert str(queue(superuser).ready) == "2"


def test_queues_are_found_by_messages_letters_and_handlers(superuser: Client) -> None:
    message("b")
    message("b")
    message("d", next_attempt_at=ago(hours=-1))
    letter("c")
    letter("c")
    handle("a")

    rows = shown(superuser).queues
    assert rows is not None
    assert [row.name for row in rows] == ["a", "b", "c", "d"]


def test_an_empty_outbox_says_so(superuser: Client) -> None:
    assert "The outbox is empty, and no handler is registered." in text_of(superuser)


def test_of_many_queues_the_first_are_shown(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOST_QUEUES", 3)
    for name in "edcba":
        message(name)

    overview = shown(superuser)
    assert overview.queues is not None
    assert [row.name for row in overview.queues] == ["a", "b", "c"]
    assert overview.has_more_queues


def test_what_the_planner_was_told_is_forgotten_afterwards(superuser: Client) -> None:
    shown(superuser)

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('enable_sort'), current_setting('statement_timeout')"
        )
        assert cursor.fetchone() == ("on", "0")


@pytest.mark.django_db(transaction=True)
def test_a_locked_table_costs_the_counts_and_not_the_page(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOST_SECONDS", 0.1)
    process("orders")
    with other_session() as session, session.transaction():
        session.execute("LOCK TABLE django_outbox_message IN ACCESS EXCLUSIVE MODE")
        overview = shown(superuser)

    assert overview.queues is None
    what = "A part of this page is missing: the database took more than 0.1 s for it."
    assert what in [trouble.what for trouble in overview.troubles]
    assert overview.processes is not None
    assert [row.name for row in overview.processes] == ["worker-1"]


@contextmanager
def other_session() -> Iterator[psycopg.Connection[Any]]:
    params = connection.get_connection_params()
    names = ("host", "port", "user", "password", "dbname")
    given = {name: params[name] for name in names if name in params}
    with psycopg.connect(**given, autocommit=True) as session:
        yield session


class OutboxElsewhere:
    """Sends the outbox to `orders`, and lets it be read from a replica of another."""

    def db_for_write(self, model: type[Any], **hints: Any) -> str | None:
        return "orders" if model._meta.app_label == "django_outbox" else None

    def db_for_read(self, model: type[Any], **hints: Any) -> str | None:
        return "default"


@pytest.mark.django_db(databases=["default", "orders"])
def test_it_reads_the_database_that_messages_are_written_to(
    superuser: Client, settings: LazySettings
) -> None:
    settings.DATABASE_ROUTERS = [OutboxElsewhere()]
    OutboxMessage.objects.using("orders").create(queue="there", payload=b"")
    OutboxMessage.objects.using("default").create(queue="here", payload=b"")

    rows = shown(superuser).queues
    assert rows is not None
    assert [row.name for row in rows] == ["there"]


class ToLite:
    def db_for_write(self, model: type[Any], **hints: Any) -> str | None:
        return "lite" if model._meta.app_label == "django_outbox" else None


def test_a_database_that_is_not_postgresql_is_named(
    superuser: Client, settings: LazySettings, sqlite: str
) -> None:
    settings.DATABASE_ROUTERS = [ToLite()]

    (trouble,) = shown(superuser).troubles
    assert trouble.what == ("The database 'lite' is not PostgreSQL, so nothing can be published.")


@pytest.mark.django_db(transaction=True, databases=["default", "orders"])
def test_a_database_that_is_away_costs_the_overview_and_not_the_page(
    superuser: Client, settings: LazySettings
) -> None:
    settings.DATABASE_ROUTERS = [OutboxElsewhere()]
    away = connections["orders"]
    away.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(away.settings_dict, "HOST", "127.0.0.1")
        patch.setitem(away.settings_dict, "PORT", "1")
        (trouble,) = shown(superuser).troubles

    assert trouble.what == "The database 'orders' did not answer."
    assert trouble.is_bad


# Charts


def test_the_last_hour_is_drawn_and_told_in_words(superuser: Client) -> None:
    message()
    Counter.objects.create(minute=ago(minutes=3), queue="orders", completed=1200, retried=5)
    Counter.objects.create(minute=ago(minutes=9), queue="orders", completed=34, buried=2)
    Counter.objects.create(minute=ago(minutes=90), queue="orders", completed=7)
    Counter.objects.create(minute=ago(minutes=1), queue="gone", completed=100)

    overview = shown(superuser)
    assert queue(superuser).chart.words == (
        "In the last hour 1,234 completed, 5 failed to be retried, and 2 went to the dead letters; "
        "1,205 in the busiest minute."
    )
    assert overview.total is not None
    assert overview.total.words.startswith("In the last hour 1,334 completed, 5 failed")
    text = text_of(superuser)
    assert 'role="img" aria-labelledby="outbox-total-title outbox-total-words"' in text
    assert '<title id="outbox-total-title">Deliveries of all queues</title>' in text


def test_counters_at_the_ends_of_the_hour_have_their_bars(superuser: Client) -> None:
    """Workers count by whole minutes, but nothing keeps others from writing rows."""
    message()
    minute = timezone.now().replace(second=0, microsecond=0)
    for seconds in (0, 59.9, -59 * 60, -59 * 60 + 59.9, -60 * 60, -60 * 60 + 59.9, 60):
        at = minute + timedelta(seconds=seconds)
        Counter.objects.create(minute=at, queue="orders", completed=1)

    # A minute may have begun since, but no more than one.
    drawn = queue(superuser).chart.done
    assert re.findall(r"M(\d+) ", drawn) in (["236", "0"], ["236", "232"])


def test_bars_stand_on_one_another_from_right_to_left() -> None:
    drawn = chart("orders", [Minute("orders", 0, 3, 1, 0), Minute("orders", 59, 2, 0, 0)])

    assert drawn.done == "M236 40.0h3v-30.0h-3zM0 40.0h3v-20.0h-3z"
    assert drawn.failed == "M236 10.0h3v-10.0h-3z"
    assert drawn.most == 4


def test_one_failure_in_a_busy_hour_is_still_seen() -> None:
    drawn = chart("orders", [Minute("orders", 5, 1_000_000, 0, 1)])

    assert drawn.failed == "M216 1.5h3v-1.5h-3z"


def test_an_hour_of_nothing_has_no_bars() -> None:
    drawn = chart("orders", [])

    assert (drawn.done, drawn.failed) == ("", "")
    assert drawn.words == "Nothing was delivered in the last hour."


# Workers and the leader


def test_workers_are_shown_and_those_silent_for_a_minute_are_lost(superuser: Client) -> None:
    process("orders", "refunds", concurrency=8, running=3, started_at=ago(hours=2, minutes=1))
    process(worker_id="lost", last_seen_at=ago(seconds=61))
    process(worker_id="slow", last_seen_at=ago(seconds=59))

    rows = shown(superuser).processes
    assert rows is not None
    assert [(row.name, row.is_lost) for row in rows] == [
        ("slow", False),
        ("worker-1", False),
        ("lost", True),
    ]
    row = rows[1]
    assert (row.queues, row.load, row.up_for) == ("orders, refunds", "3 of 8", "2 h")
    assert row.host == "host-1:7"
    assert text_of(superuser).count(">lost</span>") == 1


def test_of_many_workers_those_that_live_are_shown(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOST_PROCESSES", 1)
    process(worker_id="lost", last_seen_at=ago(hours=1))
    process(worker_id="alive")

    overview = shown(superuser)
    assert overview.processes is not None
    assert [row.name for row in overview.processes] == ["alive"]
    assert overview.has_more_processes


def test_the_leader_and_its_lease_are_shown(superuser: Client) -> None:
    lead("host-1:7:token")

    leader = shown(superuser).leader
    assert leader is not None
    assert (leader.owner, leader.led_for) == ("host-1:7:token", "2 h")
    assert leader.lease_for in ("9 s", "8 s")


def test_whose_lease_has_run_out_leads_no_more(superuser: Client) -> None:
    Lease.objects.create(
        name="__scheduler", owner="gone", acquired_at=ago(hours=1), expires_at=ago(seconds=1)
    )

    leader = shown(superuser).leader
    assert leader is not None
    assert leader.owner is None


# Warnings


def test_all_well_warns_of_nothing(superuser: Client) -> None:
    handle("orders")
    process("orders")
    message()
    schedule()
    lead()

    assert whats(superuser) == []


def test_messages_without_a_handler_are_warned_of(superuser: Client) -> None:
    message("ordres", next_attempt_at=ago(hours=-1))

    (trouble,) = shown(superuser).troubles
    assert trouble.what == "There are messages, but no handler, for ordres."
    assert trouble.advice.startswith("Deploy the code that handles them")
    assert trouble.url == f"{MESSAGES}?queue=ordres"
    assert trouble.is_bad


def test_a_queue_that_a_worker_elsewhere_serves_needs_no_handler_here(superuser: Client) -> None:
    message("theirs")
    process("theirs")

    assert whats(superuser) == []


def test_a_queue_that_is_pulled_from_needs_neither_handler_nor_worker(superuser: Client) -> None:
    message("__outbox:mail")

    assert whats(superuser) == []


@pytest.mark.parametrize(
    ("columns", "is_served"),
    [
        ({}, True),
        ({"last_seen_at": None}, False),
        ({"kind": "scheduler"}, False),
    ],
    ids=["alive", "lost", "a scheduler"],
)
def test_due_messages_that_no_worker_alive_serves_are_warned_of(
    superuser: Client, columns: dict[str, Any], is_served: bool
) -> None:
    handle("orders")
    message()
    if "last_seen_at" in columns:
        columns = {"last_seen_at": ago(seconds=61)}
    process("orders", **columns)
    process("others")

    warned = "Messages are due, but no worker is alive, for orders."
    assert (warned in whats(superuser)) is not is_served


def test_workers_that_have_not_been_seen_for_a_minute_are_named(superuser: Client) -> None:
    process("orders", worker_id="gone", last_seen_at=ago(seconds=61))
    process("orders", worker_id="here", last_seen_at=ago(seconds=50))

    assert whats(superuser) == ["Not seen for a minute: gone."]


def test_messages_that_are_not_due_need_no_worker_yet(superuser: Client) -> None:
    handle("orders")
    message(next_attempt_at=ago(hours=-1))

    assert whats(superuser) == []


def test_the_oldest_ready_message_is_warned_of_beyond_the_setting(
    superuser: Client, settings: LazySettings
) -> None:
    handle("orders")
    process("orders")
    message(next_attempt_at=ago(seconds=290))
    assert whats(superuser) == []
    assert not queue(superuser).is_late

    settings.OUTBOX = {"OVERVIEW_OLDEST_READY": 120}
    assert whats(superuser) == [
        "Messages have been ready for up to 4 min, more than 2 min, for orders."
    ]
    assert queue(superuser).is_late


def test_many_queues_make_one_warning(superuser: Client) -> None:
    for number in range(8):
        message(f"q-{number}")

    assert whats(superuser) == [
        "There are messages, but no handler, for q-0, q-1, q-2, q-3, q-4 and 3 more."
    ]


def test_schedules_without_a_leader_are_warned_of(superuser: Client) -> None:
    schedule("off", enabled=False)
    assert whats(superuser) == []

    schedule("on")
    assert whats(superuser) == [
        "No scheduler leads, so none of the enabled schedules fires (1 in all)."
    ]


def test_schedules_with_an_error_are_warned_of(superuser: Client) -> None:
    lead()
    schedule("fine")
    for number in range(6):
        schedule(f"bad-{number}", last_error="boom")

    (trouble,) = shown(superuser).troubles
    assert trouble.what == ("The last fire of bad-0, bad-1, bad-2, bad-3, bad-4 and 1 more failed.")
    assert trouble.url == "/admin/django_outbox/schedule/?error=yes"


def test_a_missing_migration_is_warned_of_and_nothing_else_is_asked(superuser: Client) -> None:
    message()
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM django_migrations WHERE app = 'django_outbox' AND name LIKE '0003%'"
        )

    overview = shown(superuser)
    (trouble,) = overview.troubles
    assert "lacks the migration(s) 0003_operations" in trouble.what
    assert trouble.advice == "Run: manage.py migrate django_outbox --database default"
    assert overview.queues is None


def test_a_schema_that_differs_is_warned_of(superuser: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX django_outbox_dead_time")

    (trouble,) = shown(superuser).troubles
    assert "are not as the migrations make them: 1 difference(s)." in trouble.what
    assert trouble.advice.startswith("Run manage.py outbox_check --database default")


def test_a_good_schema_is_not_compared_again_for_some_minutes(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def compare(alias: str) -> list[Any]:
        compared.append(alias)
        return []

    monkeypatch.setattr(page, "find_differences", compare)
    shown(superuser)
    shown(superuser)
    assert compared == ["default"]

    monkeypatch.setattr(page, "SCHEMA_KEPT", 0.0)
    shown(superuser)
    assert compared == ["default", "default"]


def test_a_schema_that_differs_is_compared_at_each_look(superuser: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_outbox_dead_letter ALTER queue DROP NOT NULL")
        assert len(whats(superuser)) == 1
        cursor.execute("ALTER TABLE django_outbox_dead_letter ALTER queue SET NOT NULL")
    assert whats(superuser) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE django_outbox_worker SET queues = '[1e5000]'",
        f"UPDATE django_outbox_worker SET queues = '{'[' * 3000}{']' * 3000}'",
        "UPDATE django_outbox_worker SET started_at = '-infinity', last_seen_at = 'infinity'",
        "UPDATE django_outbox_counter SET completed = 9223372036854775807, retried = -5",
        "UPDATE django_outbox_counter SET completed = -5, retried = 5, buried = 0",
        "UPDATE django_outbox_lease SET acquired_at = '-infinity', expires_at = 'infinity'",
        "UPDATE django_outbox_lease SET acquired_at = 'infinity'",
        "UPDATE django_outbox_message SET next_attempt_at = '-infinity'",
        "UPDATE django_outbox_message SET next_attempt_at = 'infinity', expires_at = '-infinity'",
        "UPDATE django_outbox_dead_letter SET failed_at = 'infinity'",
        "UPDATE django_outbox_schedule SET next_run_at = '-infinity'",
    ],
)
def test_what_python_cannot_hold_costs_nothing(superuser: Client, statement: str) -> None:
    handle("orders")
    process("orders")
    message()
    letter()
    schedule()
    lead()
    for name in ("orders", "mails"):
        Counter.objects.create(minute=ago(minutes=1), queue=name, completed=7)
    with connection.cursor() as cursor:
        cursor.execute(statement)

    overview = shown(superuser)
    assert overview.queues
    assert overview.processes
    assert overview.leader
    assert not [one for one in overview.troubles if "missing" in one.what]


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, RecursionError, DataError])
def test_a_part_that_cannot_be_read_costs_that_part_only(
    superuser: Client, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    message()
    process("orders")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise error("beyond")

    monkeypatch.setattr("django_outbox.store.overview.processes", refuse)
    overview = shown(superuser)
    assert overview.queues
    assert overview.processes is None
    assert "A part of this page is missing: workers could not be read." in whats(superuser)


def test_a_table_that_was_never_vacuumed_is_warned_of_once_that_has_lasted(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = server.Unvacuumed("django_outbox_dead_letter", 31_498, 50, None, is_automatic=True)
    monkeypatch.setattr(server, "unvacuumed", lambda *args, **kwargs: [never])
    assert whats(superuser) == []

    monkeypatch.setattr(troubles, "DEAD_SECONDS", 0.0)
    (what,) = whats(superuser)
    assert "has about 31,498 dead rows" in what
    assert what.endswith("it was last vacuumed: never.")


def test_what_cannot_be_read_for_a_different_schema_is_left_out(superuser: Client) -> None:
    message()
    process("orders")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_outbox_worker RENAME COLUMN host TO hostname")

    overview = shown(superuser)
    assert any("are not as the migrations make them" in one.what for one in overview.troubles)
    assert overview.processes is None
    assert overview.queues is not None


def test_dead_rows_beyond_what_autovacuum_begins_at_are_found() -> None:
    with connection.cursor() as cursor:
        found = server.unvacuumed(cursor, least=-1, times=-1.0, seconds=0.0)
        cursor.execute("SELECT current_setting('autovacuum')::boolean")
        (is_on,) = cursor.fetchone()

    tables = {one.table: one for one in found}
    assert "django_outbox_message" in tables
    assert tables["django_outbox_message"].threshold >= 50
    assert tables["django_outbox_message"].is_automatic == is_on


def test_a_tables_own_options_go_before_the_servers() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE django_outbox_message SET (autovacuum_vacuum_threshold = 7777,"
            " autovacuum_vacuum_scale_factor = 0, autovacuum_enabled = off)"
        )
        found = server.unvacuumed(cursor, least=-1, times=-1.0, seconds=0.0)

    (one,) = [one for one in found if one.table == "django_outbox_message"]
    assert one.threshold == 7777
    assert not one.is_automatic


@pytest.mark.django_db(transaction=True)
def test_an_old_transaction_is_warned_of_with_what_ends_it(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "PINNED_SECONDS", 0.0)
    with other_session() as session, session.transaction():
        session.execute("SET LOCAL application_name = '<b>nightly</b>'")
        session.execute("SELECT pg_current_xact_id()")
        pid = session.info.backend_pid
        (trouble,) = [one for one in shown(superuser).troubles if f"process {pid}" in one.what]
        text = text_of(superuser)

    assert "application <b>nightly</b>, idle in transaction" in trouble.what
    assert f"SELECT pg_terminate_backend({pid}) ends it." in trouble.advice
    assert "<b>nightly</b>" not in text
    assert "&lt;b&gt;nightly&lt;/b&gt;" in text


@pytest.mark.django_db(transaction=True)
def test_a_role_that_may_not_see_others_sessions_is_told_of_them_all_the_same() -> None:
    with other_session() as session, session.transaction():
        session.execute("SELECT pg_current_xact_id()")
        pid = session.info.backend_pid
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE pg_signal_backend")  # any role that reads no statistics
            try:
                pins = server.pins(cursor, seconds=0.0, transactions=-1, most=50)
                server.unvacuumed(cursor, least=-1, times=0.0, seconds=0.0)
            finally:
                cursor.execute("RESET ROLE")

    (pin,) = [pin for pin in pins if pin.name == str(pid)]
    assert pin.kind == "session"
    assert pin.seconds is None


# Who sees what


def test_without_a_permission_for_it_the_page_is_djangos_own(login: Login) -> None:
    message()
    client = login("add_schedule")

    response = client.get(URL)
    assert response.status_code == 200
    assert response.context["overview"] is None
    assert b"outbox-overview" not in response.content
    assert b"overview.js" not in response.content


@pytest.mark.parametrize(
    ("codename", "sees"),
    [
        ("view_outboxmessage", {"outbox-total", "outbox-queues"}),
        ("view_deadletter", {"outbox-queues"}),
        ("view_schedule", {"outbox-leader"}),
    ],
)
def test_each_part_needs_its_permission(login: Login, codename: str, sees: set[str]) -> None:
    message("with-messages")
    letter("with-letters")
    process("orders")

    text = text_of(login(codename))
    parts = re.findall(r'<section id="(outbox-\w+)" class="module"', text)
    assert set(parts) == sees
    assert ("with-messages" in text) == (codename == "view_outboxmessage")
    assert ("with-letters" in text) == (codename == "view_deadletter")


def test_who_may_change_may_view(login: Login) -> None:
    message()
    schedule()
    overview = shown(login("change_outboxmessage", "change_schedule"))
    assert overview.queues
    assert overview.leader
    assert overview.processes is None


def test_workers_need_their_permission(login: Login) -> None:
    process("orders")

    text = text_of(login("view_worker", "view_schedule"))
    assert "worker-1" in text
    assert "outbox-queues" not in text
    assert "worker-1" not in text_of(login("view_schedule"))


def test_warnings_need_the_permission_for_what_they_speak_of(login: Login) -> None:
    message("secret-queue")
    schedule("secret-schedule", last_error="boom")

    assert len(whats(login("view_outboxmessage"))) == 1
    assert len(whats(login("view_schedule"))) == 2
    assert whats(login("view_deadletter")) == []


def test_one_without_a_session_is_sent_to_the_login(client: Client) -> None:
    assert client.get(URL).status_code == 302


def test_it_is_on_any_admin_site_and_leads_to_that_sites_lists(
    superuser: Client, settings: LazySettings
) -> None:
    settings.ROOT_URLCONF = __name__
    message()

    text = superuser.get("/operations/django_outbox/").content.decode()
    assert 'id="outbox-queues"' in text
    assert "/operations/django_outbox/outboxmessage/?queue=orders&amp;state=ready" in text
    letter("letters")  # this site has no list of them
    row = superuser.get("/operations/django_outbox/").context["overview"].queues[0]
    assert (row.name, str(row.dead), row.dead.url) == ("letters", "1", None)


def test_the_list_of_models_stays(superuser: Client) -> None:
    text = text_of(superuser)
    assert f'<a href="{LETTERS}">' in text
    assert f'<a href="{MESSAGES}">' in text


# Hostile text, and scale


def test_whatever_is_named_is_text_and_nothing_else(superuser: Client) -> None:
    for hostile in (HOSTILE, HOSTILE_ATTRIBUTE):
        message(hostile, next_attempt_at=ago(hours=1))
        letter(hostile)
        Counter.objects.create(minute=ago(minutes=1), queue=hostile, completed=1)
        process(hostile, worker_id=hostile, host=hostile)
        schedule(hostile, last_error=hostile)
    lead(HOSTILE)

    text = text_of(superuser)
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 8
    assert text.count("&quot;&gt;&lt;img src=x onerror=alert(1)&gt;") >= 8


def test_nothing_on_the_page_needs_a_lax_content_security_policy(superuser: Client) -> None:
    message()
    text = text_of(superuser)
    body = text[text.index('id="outbox-refresh"') : text.index('id="content-main"')]

    assert re.findall(r"<script(?![^>]*\bsrc=)", body) == []
    assert re.findall(r"<[^>]+\s(?:style|on\w+)=", body) == []


def test_the_statements_are_as_many_for_many_queues_and_load_no_payload(
    superuser: Client,
) -> None:
    message()
    shown(superuser)  # compares the schema
    with CaptureQueriesContext(connection) as few:
        shown(superuser)
    for number in range(60):
        message(f"queue-{number}")
        message(f"queue-{number}", next_attempt_at=ago(hours=-1))
        letter(f"queue-{number}")
        process(f"queue-{number}", worker_id=f"worker-{number}")
        schedule(f"schedule-{number}", last_error="boom")
        Counter.objects.create(minute=ago(minutes=1), queue=f"queue-{number}", completed=1)
    with CaptureQueriesContext(connection) as many:
        shown(superuser)

    assert len(many) == len(few)
    asked = [query["sql"] for query in many if "pg_catalog" not in query["sql"]]
    assert not any("payload" in sql for sql in asked if "FROM pg_" not in sql)


def test_the_script_and_the_styles_are_there() -> None:
    for name in ("overview.js", "overview.css", "admin.css"):
        found = finders.find(f"django_outbox/{name}")
        assert isinstance(found, str)
        assert Path(found).stat().st_size


def test_a_worker_that_says_odd_things_of_itself_is_shown(superuser: Client) -> None:
    Worker.objects.create(
        id=uuid4(),
        worker_id="odd",
        kind="worker",
        host="h",
        pid=1,
        queues=json.loads('{"a": [1]}'),
    )
    process("a", 5)  # type: ignore[arg-type]

    rows = shown(superuser).processes
    assert rows is not None
    assert [row.queues for row in rows] == ["", "a"]
