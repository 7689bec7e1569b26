"""The roles of the recipe do their work, and are refused the rest.

The statements are those of the page itself. Roles belong to the whole server, so here each has a
name of this database's own.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection, connections, transaction
from pytest_django import DjangoDbBlocker

from django_outbox import handlers, outbox
from django_outbox.management.commands import outbox_worker
from django_outbox.models import Counter, DeadLetter, Lease, OutboxMessage, Schedule
from django_outbox.scheduling.running import scheduler_thread
from django_outbox.store.messages import operating
from tests.support import (
    PATIENCE,
    committed,
    letter_of,
    message_row,
    publish,
    session,
    steal,
    wait_until,
    worker,
)
from tests.testapp.models import Order

pytestmark = [committed, pytest.mark.usefixtures("registry")]

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/least-privilege.md"
SAMPLES = re.findall(r"(?ms)^```postgresql\n(.*?)^```$", PAGE.read_text())
ROLES = re.findall(r"CREATE ROLE (\w+)", "".join(SAMPLES))


def own(text: str) -> str:
    """Return the text with roles that are this database's own."""
    prefix = connection.settings_dict["NAME"]
    return re.sub(rf"\b({'|'.join(ROLES)})\b", rf"{prefix}_\1", text)


@pytest.fixture(scope="module", autouse=True)
def roles(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Make the roles as the page does, and let them use the tables of the tests' app."""
    with django_db_blocker.unblock(), session() as owner:
        for sample in SAMPLES:
            owner.execute(own(sample))
        owner.execute(
            own("GRANT ALL ON testapp_order, testapp_order_id_seq TO outbox_worker, shop_worker")
        )
        yield
        for role in ROLES:
            owner.execute(own(f"DROP OWNED BY {role}"))
        for role in reversed(ROLES):
            owner.execute(own(f"DROP ROLE {role}"))


@pytest.fixture(autouse=True)
def aliases(monkeypatch: pytest.MonkeyPatch, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Let each role name an alias: the test database, in sessions of that role."""
    default = connections.databases["default"]
    for role in ROLES:
        options = {**default["OPTIONS"], "assume_role": own(role)}
        monkeypatch.setitem(connections.databases, role, {**default, "OPTIONS": options})
    with django_db_blocker.unblock():
        yield
        for role in ROLES:
            connections[role].close()
            del connections[role]


def publish_under(alias: str, payload: Any = None, **options: Any) -> int | None:
    with transaction.atomic(using=alias):
        return outbox.publish(payload, queue="orders", using=alias, **options)


def refuses(alias: str, statement: str) -> bool:
    """Tell whether the role of the alias lacks a privilege for the statement."""
    with connections[alias].cursor() as cursor:
        try:
            cursor.execute(statement)
        except ProgrammingError as error:
            if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                raise
            return True
    return False


READ = "SELECT payload FROM django_outbox_message"
CHANGE = "UPDATE django_outbox_message SET payload = ''"
FORGE = "UPDATE django_outbox_message SET deliveries_count = 0"
REMOVE = "DELETE FROM django_outbox_message"
INSERT = "INSERT INTO django_outbox_message (queue, payload) VALUES ('orders', '')"
FORGE_ID = "INSERT INTO django_outbox_message (id, queue, payload) VALUES (-1, 'orders', '')"
READ_LETTERS = "SELECT payload FROM django_outbox_dead_letter"
EDIT_LETTERS = "UPDATE django_outbox_dead_letter SET payload = ''"
REASON_LETTERS = "UPDATE django_outbox_dead_letter SET failure_reason = ''"
DISCARD_LETTERS = "DELETE FROM django_outbox_dead_letter"
READ_SCHEDULES = "SELECT payload FROM django_outbox_schedule"
CHANGE_SCHEDULES = "UPDATE django_outbox_schedule SET queue = ''"
DELETE_SCHEDULES = "DELETE FROM django_outbox_schedule"
TAKE_THE_LEAD = "UPDATE django_outbox_lease SET owner = ''"
TRUNCATE = "TRUNCATE django_outbox_message"
DROP = "DROP TABLE django_outbox_message"

EVERYTHING = (
    READ,
    CHANGE,
    FORGE,
    REMOVE,
    INSERT,
    FORGE_ID,
    READ_LETTERS,
    EDIT_LETTERS,
    REASON_LETTERS,
    DISCARD_LETTERS,
    READ_SCHEDULES,
    CHANGE_SCHEDULES,
    DELETE_SCHEDULES,
    TAKE_THE_LEAD,
    TRUNCATE,
)

MAY = {
    "outbox_publisher": {INSERT},
    "outbox_timers": {INSERT, READ, CHANGE, REMOVE},
    "outbox_worker": {READ, FORGE, REMOVE},
    "outbox_scheduler": {INSERT, READ_SCHEDULES, CHANGE_SCHEDULES, TAKE_THE_LEAD},
    "outbox_viewer": {READ, READ_LETTERS, READ_SCHEDULES},
    "outbox_operator": {
        *(READ, INSERT, FORGE_ID, READ_LETTERS, EDIT_LETTERS, DISCARD_LETTERS, READ_SCHEDULES),
    },
    "outbox_admin": {
        *(READ, REMOVE, INSERT, FORGE_ID, READ_LETTERS, EDIT_LETTERS, DISCARD_LETTERS),
        *(READ_SCHEDULES, CHANGE_SCHEDULES, DELETE_SCHEDULES),
    },
    "shop_web": {INSERT},
    "shop_worker": {READ, FORGE, REMOVE, INSERT},
}


@pytest.mark.parametrize("role", MAY)
def test_a_role_may_do_this_and_is_refused_all_else(role: str) -> None:
    assert {one for one in EVERYTHING if not refuses(role, one)} == MAY[role]


def test_no_role_owns_a_table() -> None:
    for role in ROLES:
        with pytest.raises(ProgrammingError, match="must be owner"):
            connections[role].cursor().execute(DROP)


# Publishers


@pytest.mark.parametrize("role", ["outbox_publisher", "shop_web"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"headers": {"kind": "new"}, "correlation_id": "c", "max_attempts": 3},
        {"activate_in": timedelta(hours=1)},
        {"expires_in": timedelta(hours=1)},
        {"timer_id": "t"},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
def test_a_publisher_publishes(role: str, options: dict[str, Any]) -> None:
    id_ = publish_under(role, {"n": 1}, **options)

    assert [message.id for message in OutboxMessage.objects.all()] == [id_]


def test_a_publisher_publishes_about_an_object() -> None:
    order = Order.objects.create(name="a lamp")

    publish_under("outbox_publisher", ref=order)

    assert OutboxMessage.objects.get().ref == f"testapp.order:{order.pk}"


def test_a_publisher_publishes_many() -> None:
    alias = "outbox_publisher"
    with transaction.atomic(using=alias):
        ids = outbox.publish_many([1, 2, 3], queue="orders", using=alias)

    assert sorted(message.id for message in OutboxMessage.objects.all()) == ids


def test_a_publisher_is_told_that_a_timer_is_there() -> None:
    publish(timer_id="t")

    assert publish_under("outbox_publisher", timer_id="t") is None


@pytest.mark.parametrize("conflict", ["extend", "replace"])
def test_only_who_moves_timers_may_move_one(conflict: str) -> None:
    id_ = publish("old", timer_id="t", activate_in=60)
    move = {"timer_id": "t", "timer_conflict": conflict, "activate_in": 3600}

    with pytest.raises(ProgrammingError, match="permission denied"):
        publish_under("outbox_publisher", "new", **move)
    assert publish_under("outbox_timers", "new", **move) == id_

    assert bytes(message_row(id_).payload) == b'"new"'


def test_only_who_moves_timers_may_cancel_one() -> None:
    publish(timer_id="t", activate_in=60)

    with pytest.raises(ProgrammingError, match="permission denied"):
        outbox.cancel_timer(queue="orders", timer_id="t", using="outbox_publisher")
    assert outbox.cancel_timer(queue="orders", timer_id="t", using="outbox_timers")

    assert not OutboxMessage.objects.exists()


# Workers


def handle_orders() -> list[Any]:
    """Register a handler that fails and rejects as its payload says; return what it will get."""
    got: list[Any] = []

    @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)
        if message.payload == "fails":
            raise ValueError("no stock")
        if message.payload == "rejects":
            raise outbox.Reject("no such order")

    return got


def test_a_worker_completes_retries_and_buries() -> None:
    got = handle_orders()
    publish("done")
    failing, rejected = publish("fails"), publish("rejects")

    assert worker(using="outbox_worker", drain=True).run() == 0

    assert sorted(got) == ["done", "fails", "rejects"]
    assert (message_row(failing).attempts_count, message_row(failing).lease_token) == (1, None)
    assert letter_of(rejected).failure_reason == "rejected"
    assert OutboxMessage.objects.count() == 1
    counted = Counter.objects.values_list("completed", "retried", "buried")
    assert [sum(column) for column in zip(*counted, strict=True)] == [1, 1, 1]


def test_an_atomic_handler_of_a_worker_writes_and_settles_together() -> None:
    alias = "outbox_worker"

    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> None:
        Order.objects.using(alias).create(name=message.payload)

    publish("a lamp")
    assert worker(using=alias, drain=True).run() == 0

    assert [order.name for order in Order.objects.all()] == ["a lamp"]
    assert not OutboxMessage.objects.exists()


def test_handlers_publish_only_as_publishers() -> None:
    @outbox.handler("questions", retry=outbox.ConstantRetry(3600))
    def answer(message: outbox.Message[Any]) -> outbox.OutboxResponse:
        return outbox.OutboxResponse("yes", queue="answers")

    id_ = publish(queue="questions")
    assert worker(using="outbox_worker", drain=True).run() == 0
    assert "permission denied" in (message_row(id_).last_error or "")

    other = publish(queue="questions")
    assert worker(using="shop_worker", drain=True).run() == 0
    assert not OutboxMessage.objects.filter(pk=other).exists()
    assert OutboxMessage.objects.filter(queue="answers").count() == 1


def test_a_worker_takes_over_from_a_dead_one_and_renews() -> None:
    attempts: list[tuple[int, bool]] = []

    @outbox.handler("orders", lease_ttl=0.6)
    def handle(message: outbox.Message[Any]) -> None:
        time.sleep(0.8)  # longer than the lease, so it was renewed
        attempts.append((message.deliveries_count, message.heartbeat()))

    id_ = publish()
    with session() as other:
        other.execute(
            "UPDATE django_outbox_message SET lease_token = gen_random_uuid(), leased_by = 'dead',"
            " deliveries_count = 1, lease_expires_at = clock_timestamp() - interval '1 s'"
            " WHERE id = %s",
            [id_],
        )
    assert worker(using="outbox_worker", drain=True).run() == 0

    assert attempts == [(2, True)]
    assert not OutboxMessage.objects.exists()


def test_the_command_of_a_worker_runs_under_its_role_and_not_under_a_publisher(
    registry: handlers.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_worker, "registry", registry)
    got = handle_orders()
    publish("done")
    command = ("outbox_worker", "--no-reload", "--drain", "--database")

    for role in ("outbox_publisher", "outbox_viewer"):
        with pytest.raises(CommandError, match="refused a statement"):
            call_command(*command, role, verbosity=0)
    assert got == []
    call_command(*command, "outbox_worker", verbosity=0)

    assert got == ["done"]


# Schedulers


def make_due(name: str) -> None:
    with session() as owner:
        owner.execute(
            "UPDATE django_outbox_schedule SET next_run_at = clock_timestamp() WHERE name = %s",
            [name],
        )


def test_a_scheduler_declares_leads_and_fires(settings: Any) -> None:
    settings.OUTBOX = {"SCHEDULES": {"report": {"spec": "@every 1s", "queue": "orders"}}}
    stop = outbox.StopToken()

    def run() -> None:
        outbox.run_schedules(stop, using="outbox_scheduler")
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: OutboxMessage.objects.count() >= 2)
        assert Lease.objects.count() == 1
    finally:
        stop.stop()
        thread.join(PATIENCE)

    assert not Lease.objects.exists()
    assert Schedule.objects.get().last_error is None
    assert {message.queue for message in OutboxMessage.objects.all()} == {"orders"}


def test_the_command_of_a_scheduler_fires_with_all_options() -> None:
    outbox.schedule(
        "report",
        "@every 1h",
        queue="orders",
        payload={"n": 1},
        headers={"kind": "report"},
        max_attempts=3,
        expires_in=timedelta(hours=1),
    )
    make_due("report")

    call_command("outbox_scheduler", "--once", database="outbox_scheduler", verbosity=0)

    assert Schedule.objects.get().last_error is None
    assert OutboxMessage.objects.get().headers["kind"] == "report"


def test_a_worker_cannot_be_a_scheduler() -> None:
    outbox.schedule("report", "@every 1h", queue="orders")

    with pytest.raises(CommandError, match=r"refused a statement: .*django_outbox_schedule"):
        call_command("outbox_scheduler", "--once", database="outbox_worker", verbosity=0)


def test_a_scheduler_that_lacks_a_privilege_says_so_and_not_that_the_database_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with scheduler_thread("outbox_worker"):
        wait_until(lambda: "which tries again until it does" in caplog.text)

    assert (
        "The database does not let the scheduler work, which tries again until it does: "
        "permission denied for table django_outbox_schedule"
    ) in caplog.text


# Viewers and operators


@pytest.fixture
def letter() -> DeadLetter:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        raise outbox.Reject("no such order")

    publish({"n": 1})
    worker(drain=True).run()
    return DeadLetter.objects.get()


@pytest.mark.parametrize("role", ["outbox_viewer", "outbox_operator"])
@pytest.mark.parametrize(
    "command",
    [
        ("outbox_status",),
        ("outbox_status", "--json"),
        ("outbox_check",),
        ("outbox_replay", "--all", "--dry-run"),
        ("outbox_prune", "--dead-older-than", "1d", "--dry-run"),
    ],
    ids=" ".join,
)
def test_viewers_look(letter: DeadLetter, role: str, command: tuple[str, ...]) -> None:
    out = StringIO()

    call_command(*command, database=role, stdout=out)

    assert out.getvalue()
    assert DeadLetter.objects.count() == 1


@pytest.mark.parametrize(
    "command",
    [("outbox_replay", "--all"), ("outbox_prune", "--dead-older-than", "1d")],
    ids=" ".join,
)
def test_a_viewer_changes_nothing(letter: DeadLetter, command: tuple[str, ...]) -> None:
    with pytest.raises(
        CommandError, match="The database user lacks a privilege: permission denied"
    ):
        call_command(*command, database="outbox_viewer", stdout=StringIO())

    assert DeadLetter.objects.count() == 1
    assert not OutboxMessage.objects.exists()


def test_an_operator_replays(letter: DeadLetter) -> None:
    out = StringIO()

    call_command("outbox_replay", "--all", database="outbox_operator", stdout=out)

    assert OutboxMessage.objects.get().message_id == letter.message_id
    assert not DeadLetter.objects.exists()


def test_an_operator_discards_and_prunes(letter: DeadLetter) -> None:
    alias = "outbox_operator"

    call_command("outbox_prune", "--dead-older-than", "1d", database=alias, stdout=StringIO())
    assert DeadLetter.objects.using(alias).discard() == 1

    assert not DeadLetter.objects.exists()


def test_the_admin_runs_cancels_and_releases_messages() -> None:
    waiting, unwanted = publish(activate_in=60), publish(activate_in=60)
    held = publish()
    token = steal(held)

    with connections["outbox_admin"].cursor() as cursor:
        ran = operating.run_now(cursor, [waiting], notify=True)
        cancelled = operating.cancel(cursor, [unwanted])
        tokens = {held: token}
        released = operating.release_abandoned(cursor, tokens, lost_after=60, notify=True)

    assert ran | cancelled | released == {waiting: "done", unwanted: "done", held: "done"}


def test_the_admin_writes_and_deletes_schedules() -> None:
    outbox.schedule("report", "@every 1h", queue="orders", using="outbox_admin")

    assert outbox.unschedule("report", using="outbox_admin")
    with pytest.raises(ProgrammingError, match="permission denied"):
        outbox.unschedule("report", using="outbox_scheduler")


def test_a_privilege_that_a_command_lacks_is_named_in_one_line(letter: DeadLetter) -> None:
    with pytest.raises(CommandError) as caught:
        call_command("outbox_status", database="outbox_worker", stdout=StringIO())

    assert str(caught.value) == (
        "The database user lacks a privilege: permission denied for table "
        "django_outbox_dead_letter. The documentation says what each command needs, in 'Give each "
        "process only the privileges it needs'."
    )


def test_a_publisher_that_may_see_the_migrations_publishes_by_command(tmp_path: Path) -> None:
    lines = tmp_path / "messages.jsonl"
    lines.write_text('{"queue": "orders", "payload": 7}\n')

    call_command("outbox_publish", str(lines), database="outbox_publisher", stdout=StringIO())

    assert OutboxMessage.objects.get().queue == "orders"
