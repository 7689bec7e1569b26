"""Claiming: in order, exactly as many as asked for, past what others hold, under a fresh token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import psycopg
import pytest
from django.conf import LazySettings
from django.db import connection, connections, transaction

from django_outbox import outbox
from django_outbox.models import OutboxMessage
from django_outbox.store import messages as store
from django_outbox.store.messages import claiming, settling
from tests.support import (
    PATIENCE,
    Gate,
    committed,
    drain,
    expire_lease,
    message_row,
    publish,
    publish_many,
    running,
    session,
    wait_for,
    wait_until,
    worker,
)

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def nothing(message: outbox.Message[Any]) -> None:
    pass


def claim(
    session: psycopg.Connection[Any], *queues: str, limit: int = 10, ttl: float = 60
) -> list[Any]:
    """Claim as a worker does, in one statement on the given session."""
    lanes = [store.Lane(queue, ttl) for queue in queues or ("orders",)]
    with session.cursor(binary=True) as cursor:
        return store.claim(cursor, lanes, limit=limit, worker_id="tester")


# Order


def test_messages_are_delivered_in_the_order_they_are_due() -> None:
    got: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)

    now = datetime.now(UTC)
    for age in (1, 3, 2):
        publish(age, activate_at=now - timedelta(minutes=age))
    publish(0)
    drain()

    assert got == [3, 2, 1, 0]


def test_messages_due_at_the_same_moment_are_delivered_in_the_order_of_their_ids() -> None:
    got: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.id)

    ids = publish_many(list(range(50)), activate_at=datetime.now(UTC))
    drain(batch_size=7)

    assert got == ids


def test_queues_given_are_served_in_strict_priority() -> None:
    got: list[str] = []

    @outbox.handler("urgent", "normal", "bulk")
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.queue)

    for queue in ("bulk", "normal", "urgent"):
        publish_many(list(range(5)), queue=queue)
    drain("urgent", "normal", "bulk", strict=True, batch_size=4)

    assert got == ["urgent"] * 5 + ["normal"] * 5 + ["bulk"] * 5


def test_without_priorities_no_queue_waits_for_another_to_be_empty() -> None:
    got: list[str] = []

    @outbox.handler("first", "second")
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.queue)

    for queue in ("first", "second"):
        publish_many(list(range(100)), queue=queue)
    drain(batch_size=10)

    assert set(got[:30]) == {"first", "second"}


def test_an_expired_lease_is_claimed_in_its_turn_and_not_after_all_others() -> None:
    # B19
    first = publish()
    with session() as claimer:
        assert [row.id for row in claim(claimer, limit=1)] == [first]
        publish_many(list(range(20)))
        expire_lease(first)

        assert claim(claimer, limit=5)[0].id == first


def test_a_queue_without_a_handler_is_left_alone() -> None:
    outbox.handler("orders")(nothing)
    publish()
    other = publish(queue="unknown")

    drain()

    assert [row.id for row in OutboxMessage.objects.all()] == [other]
    assert message_row(other).deliveries_count == 0


def test_a_gap_in_the_ids_stalls_nothing() -> None:
    # A05
    got: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)

    publish("before")
    for _ in range(50):
        with transaction.atomic():
            outbox.publish("never", queue="orders")
            transaction.set_rollback(True)
    publish("after")
    drain()

    assert got == ["before", "after"]


def test_a_message_committed_late_is_delivered_though_later_ones_went_first() -> None:
    got: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message.payload)

    with running(), session() as slow:
        with slow.transaction():
            slow.execute(
                "INSERT INTO django_outbox_message (queue, payload, headers, correlation_id)"
                """ VALUES ('orders', '"late"', '{"content-type": "application/json"}', '')"""
            )
            publish_many(["early"] * 20)
            wait_until(lambda: len(got) == 20)
        wait_until(lambda: len(got) == 21, within=3)

    assert got == ["early"] * 20 + ["late"]


# The lease


def test_a_claim_leases_under_a_fresh_token_until_the_ttl_is_over() -> None:
    first, second = publish_many([1, 2])
    with session() as claimer:
        before = claimer.execute("SELECT clock_timestamp()").fetchone()
        claim(claimer, limit=1, ttl=90)
        claim(claimer, limit=1, ttl=90)
        after = claimer.execute("SELECT clock_timestamp()").fetchone()

    assert before is not None
    assert after is not None
    rows = [message_row(first), message_row(second)]
    assert rows[0].lease_token is not None
    assert rows[1].lease_token is not None
    assert rows[0].lease_token != rows[1].lease_token
    for row in rows:
        assert row.lease_expires_at is not None
        assert before[0] <= row.lease_expires_at - timedelta(seconds=90) <= after[0]
        assert (row.leased_by, row.deliveries_count) == ("tester", 1)


def test_a_worker_leases_under_its_own_id_for_the_handlers_ttl() -> None:
    gate = Gate()

    @outbox.handler("orders", lease_ttl=33)
    def handle(message: outbox.Message[Any]) -> None:
        gate.wait()

    id_ = publish()
    with running(worker_id="worker-7"), session() as other:
        wait_for(gate.reached)
        row = message_row(id_)
        now = other.execute("SELECT clock_timestamp()").fetchone()
        gate.opened.set()

    assert now is not None
    assert row.leased_by == "worker-7"
    assert row.lease_expires_at is not None
    assert 28 < (row.lease_expires_at - now[0]).total_seconds() <= 33


def test_a_leased_message_is_not_claimed_before_its_lease_ends() -> None:
    id_ = publish()
    with session() as first, session() as second:
        (held,) = claim(first)
        assert claim(second) == []

        expire_lease(id_)

        (again,) = claim(second)
    assert again.id == id_
    assert again.lease.token != held.lease.token
    assert again.deliveries_count == 2


def test_a_claim_skips_what_another_claim_has_locked() -> None:
    ids = publish_many(list(range(4)))
    with session() as first, session() as second, first.transaction():
        held = [row.id for row in claim(first, limit=2)]
        second.execute("SET lock_timeout = '1s'")
        taken = [row.id for row in claim(second, limit=2)]

    assert (held, taken) == (ids[:2], ids[2:])


def test_an_expired_lease_whose_settlement_is_under_way_is_not_claimed() -> None:
    # B05
    id_ = publish()
    with session() as late, session() as other:
        (held,) = claim(late)
        expire_lease(id_)
        with late.transaction():
            with late.cursor() as cursor:
                assert store.complete_one(cursor, held.lease)
            assert claim(other) == []
        assert claim(other) == []

    assert not OutboxMessage.objects.exists()


def test_a_late_settlement_matches_nothing_once_the_message_is_claimed_again() -> None:
    # B05
    id_ = publish()
    with session() as late, session() as other:
        (held,) = claim(late)
        expire_lease(id_)
        (again,) = claim(other)
        with late.cursor() as cursor:
            assert not store.complete_one(cursor, held.lease)

    assert str(message_row(id_).lease_token) == again.lease.token


def test_a_future_message_is_never_leased_before_it_is_due() -> None:
    # D01
    outbox.handler("orders", lease_ttl=1)(nothing)
    future = publish(activate_in=3600)

    with running(), running(worker_id="second"):
        for n in range(20):
            id_ = publish(n)
            wait_until(lambda id_=id_: not OutboxMessage.objects.filter(pk=id_).exists())  # type: ignore[misc]

    row = message_row(future)
    assert (row.lease_token, row.deliveries_count) == (None, 0)


def test_a_delayed_message_is_delivered_once_and_not_early() -> None:
    # D01
    handled: list[datetime] = []

    @outbox.handler("orders", lease_ttl=1)
    def handle(message: outbox.Message[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            handled.append(cursor.fetchone()[0])

    with running(), running(worker_id="second"), running(worker_id="third"):
        id_ = publish(activate_in=1.5)
        due = message_row(id_).next_attempt_at
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert len(handled) == 1
    assert timedelta(0) <= handled[0] - due < timedelta(seconds=1)


# How many


@pytest.mark.parametrize(
    "switched_off",
    [
        ("hashjoin", "mergejoin", "material", "hashagg", "sort"),
        ("nestloop", "hashjoin"),
        ("nestloop", "mergejoin"),
        ("indexscan", "indexonlyscan", "bitmapscan"),
        ("seqscan",),
        (),
    ],
    ids=lambda names: "without " + ", ".join(names),
)
@pytest.mark.parametrize("analyzed", ["analyzed", "not analyzed"])
def test_a_claim_leases_exactly_the_limit_under_any_plan(
    switched_off: tuple[str, ...], analyzed: str
) -> None:
    # B11
    publish_many(list(range(500)))
    publish_many(list(range(500)), queue="refunds")
    with session() as claimer:
        if analyzed == "analyzed":
            claimer.execute("ANALYZE django_outbox_message")
        for name in switched_off:
            claimer.execute(f"SET enable_{name} = off")
        claimed = claim(claimer, "orders", "refunds", limit=10)
        row = claimer.execute(
            "SELECT count(*) FROM django_outbox_message WHERE lease_token IS NOT NULL"
        ).fetchone()

    assert len(claimed) == 10
    assert row == (10,)


def test_a_worker_handles_no_more_than_max_messages() -> None:
    handled: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.id)

    ids = publish_many(list(range(10)))
    drain(max_messages=3, concurrency=4)

    assert sorted(handled) == ids[:3]
    assert not OutboxMessage.objects.exclude(deliveries_count=0).exists()


def test_a_worker_that_has_reached_max_messages_finishes_them_and_ends() -> None:
    gate = Gate()
    handled: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        gate.wait()
        handled.append(message.id)

    ids = publish_many(list(range(3)))
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(worker(max_messages=2, concurrency=2).run())
    )
    thread.start()
    wait_for(gate.reached)
    gate.opened.set()
    thread.join(PATIENCE)

    assert codes == [0]
    assert sorted(handled) == ids[:2]
    assert [row.id for row in OutboxMessage.objects.all()] == ids[2:]


def test_draining_works_off_what_handlers_publish_meanwhile() -> None:
    handled: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[int]) -> None:
        handled.append(message.payload)
        if message.payload:
            publish(message.payload - 1)

    publish(5)
    drain(concurrency=2)

    assert handled == [5, 4, 3, 2, 1, 0]


def test_draining_an_empty_queue_ends_at_once() -> None:
    outbox.handler("orders")(nothing)
    publish(activate_in=3600)
    began = time.monotonic()

    drain()

    assert time.monotonic() - began < 2


class Explained(psycopg.Cursor[Any]):
    """A cursor that keeps the plan of what it executes."""

    plan: dict[str, Any]

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        super().execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query, params)
        ((plans,),) = self.fetchall()
        (self.plan,) = plans
        return super().execute(query, params, **options)


def test_what_is_due_next_week_costs_a_claim_nothing() -> None:
    # K05
    with session() as claimer:
        claimer.execute(
            "INSERT INTO django_outbox_message"
            " (queue, payload, headers, correlation_id, next_attempt_at)"
            " SELECT 'orders', 'x', '{}', '', now() + interval '1 week'"
            " FROM generate_series(1, 20000)"
        )
        publish_many(list(range(10)))
        claimer.execute("ANALYZE django_outbox_message")
        cursor = Explained(claimer)
        store.claim(cursor, [store.Lane("orders", 60.0)], limit=100, worker_id="tester")

    plan = cursor.plan
    assert plan["Plan"]["Actual Rows"] == 10
    assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 500
    assert "Seq Scan" not in str(plan)
    assert not OutboxMessage.objects.filter(
        lease_token__isnull=False, next_attempt_at__gt=datetime.now(UTC)
    ).exists()


# Claiming ahead


def test_nothing_waits_behind_a_slow_handler_while_another_worker_idles() -> None:
    gate = Gate()
    handled: list[tuple[str, Any]] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "slow":
            gate.wait()
        handled.append((message_row(message.id).leased_by or "", message.payload))

    with running(worker_id="busy"):
        publish("slow")
        wait_for(gate.reached)
        publish_many(["quick"] * 5)
        with running(worker_id="idle"):
            wait_until(lambda: len(handled) == 5, within=3)
            gate.opened.set()
            wait_until(lambda: len(handled) == 6)

    assert handled == [("idle", "quick")] * 5 + [("busy", "slow")]


def test_quick_messages_are_claimed_ahead() -> None:
    held: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        held.append(OutboxMessage.objects.filter(lease_token__isnull=False).count())

    publish_many(list(range(200)))
    drain(batch_size=50)

    assert len(held) == 200
    assert max(held) >= 25  # half a batch at the least, for a single thread


def test_no_more_is_claimed_ahead_than_can_start_within_a_second() -> None:
    held: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        time.sleep(0.25)  # so long is the work
        held.append(OutboxMessage.objects.filter(lease_token__isnull=False).count())

    publish_many(list(range(100)))
    drain(max_messages=8)

    assert len(held) == 8
    assert max(held) <= 5  # the one that runs, and four


def test_what_has_not_started_after_five_seconds_is_handed_back_with_its_delivery() -> None:
    gate = Gate()

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "slow":
            gate.wait()

    # The quick ones teach the worker that it can claim ahead; then one gets stuck.
    with session() as other, other.transaction():
        quick = publish_many(["quick"] * 50)
        slow = publish("slow")
        behind = publish_many(["behind"] * 20)
    with running(batch_size=20):
        wait_for(gate.reached)
        ahead = set(
            OutboxMessage.objects.filter(
                pk__in=behind, lease_token__isnull=False, deliveries_count=1
            ).values_list("pk", flat=True)
        )
        began = time.monotonic()
        wait_until(
            lambda: (
                not OutboxMessage.objects.exclude(pk=slow)
                .filter(lease_token__isnull=False)
                .exists()
            )
        )
        waited = time.monotonic() - began
        rows = list(OutboxMessage.objects.filter(pk__in=behind))
        gate.opened.set()
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert ahead
    assert 3 < waited < 7
    assert [row.deliveries_count for row in rows] == [0] * 20
    assert not set(quick) & {row.pk for row in rows}


# Being woken


def test_a_published_message_wakes_an_idle_worker(settings: LazySettings) -> None:
    settings.OUTBOX = {"POLL_INTERVAL": 30}
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    with running():
        for n in range(10):
            publish(n)
            wait_until(lambda n=n: len(handled) == n + 1, within=2)  # type: ignore[misc]

    assert handled == list(range(10))


def test_without_notify_polling_still_delivers(settings: LazySettings) -> None:
    settings.OUTBOX = {"NOTIFY": False, "POLL_INTERVAL": 0.2}
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    with running():
        for n in range(3):
            publish(n)
            wait_until(lambda n=n: len(handled) == n + 1, within=2)  # type: ignore[misc]

    assert handled == [0, 1, 2]


def test_without_notify_a_worker_does_not_listen(settings: LazySettings) -> None:
    settings.OUTBOX = {"NOTIFY": False, "POLL_INTERVAL": 0.2}
    handled = threading.Event()

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.set()

    with running(), session() as other:
        publish()
        wait_for(handled)
        row = other.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE query ILIKE 'listen%' AND datname = current_database()"
        ).fetchone()
    assert row == (0,)


@pytest.mark.parametrize("listen_on", [None, "direct"])
def test_behind_a_pooler_a_worker_listens_on_the_direct_database_or_polls(
    listen_on: str | None, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F09
    direct = {**connections.databases["default"]}
    monkeypatch.setitem(connections.databases, "direct", direct)
    monkeypatch.setitem(settings.DATABASES, "direct", direct)
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    poll = 30 if listen_on else 0.2
    settings.OUTBOX = {"LISTEN_DATABASE": listen_on, "POLL_INTERVAL": poll}
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    with running():
        for n in range(5):
            publish(n)
            wait_until(lambda n=n: len(handled) == n + 1, within=2)  # type: ignore[misc]
        with session() as other:
            listening = other.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE query ILIKE 'listen %' AND datname = current_database()"
            ).fetchone()

    assert listening == (1 if listen_on else 0,)


# Cancelling


def test_a_timer_is_either_cancelled_or_delivered() -> None:
    # D09
    delivered: list[int] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        delivered.append(message.payload)

    cancelled: list[int] = []
    with running(concurrency=2):
        for n in range(200):
            publish(n, timer_id=f"t{n}")
            if outbox.cancel_timer(queue="orders", timer_id=f"t{n}"):
                cancelled.append(n)
        wait_until(lambda: not OutboxMessage.objects.exists())

    assert sorted(delivered + cancelled) == list(range(200))


# Isolation


@pytest.mark.parametrize("atomic", [False, True])
def test_repeatable_read_is_no_reason_to_stop(*, atomic: bool, settings: LazySettings) -> None:
    # B15
    handled: list[int] = []

    @outbox.handler("orders", atomic=atomic)
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    publish_many(list(range(200)))
    options = {**connection.settings_dict["OPTIONS"], "isolation_level": 2}
    before = connection.settings_dict["OPTIONS"]
    settings_of_default = connection.settings_dict
    settings_of_default["OPTIONS"] = options
    try:
        with running(concurrency=2), running(concurrency=2, worker_id="second"):
            wait_until(lambda: not OutboxMessage.objects.exists(), within=20)
    finally:
        settings_of_default["OPTIONS"] = before

    assert sorted(handled) == list(range(200))


# What changes while a statement runs


HELD_UP = 7
"""The key of an advisory lock at which a statement waits after it has taken its snapshot."""


def while_held_up(statement: Callable[[], Any], change: str, params: list[Any]) -> Any:
    """Return what a statement answers that another session's change comes in the middle of."""
    answers: list[Any] = []
    with session() as other:
        other.execute("SELECT pg_advisory_lock(%s)", [HELD_UP])
        thread = threading.Thread(target=lambda: answers.append(statement()))
        thread.start()
        wait_until(lambda: other.execute(WAITS).fetchone() == (1,))
        other.execute(change, params)
        other.execute("SELECT pg_advisory_unlock(%s)", [HELD_UP])
        thread.join(PATIENCE)
    return answers[0]


WAITS = """
SELECT count(*)::int FROM pg_locks
WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def hold_up(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, before: str) -> None:
    """Have the statement wait, after it began, at a place in its text."""
    text = getattr(module, name)
    pause = f"AND (SELECT true FROM pg_advisory_xact_lock({HELD_UP}))"
    assert text.count(before) == 1
    monkeypatch.setattr(module, name, text.replace(before, f"{pause} {before}"))


def test_a_message_changed_in_the_middle_of_a_claim_is_claimed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = publish_many(["a", "b", "c"])
    hold_up(monkeypatch, claiming, "CLAIM", "ORDER BY next_attempt_at, id")
    with session() as own:
        first = while_held_up(
            lambda: claim(own),
            "UPDATE django_outbox_message SET payload = '2' WHERE id = %s",
            [ids[0]],
        )
        second = claim(own)

    assert [row.id for row in [*first, *second]] == [ids[1], ids[2], ids[0]]
    assert second[0].body == b"2"


def test_a_lease_stolen_in_the_middle_of_a_renewal_is_not_renewed_and_one_only_changed_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = publish_many(["a", "b", "c"])
    hold_up(monkeypatch, settling, "RENEW", "FOR UPDATE SKIP LOCKED")
    with session() as own:
        leases = [row.lease for row in claim(own)]

        def renew() -> set[int]:
            with own.cursor(binary=True) as cursor:
                return settling.renew(cursor, leases, [60.0] * 3)

        renewed = while_held_up(
            renew,
            "UPDATE django_outbox_message SET payload = '2',"
            " lease_token = CASE WHEN id = %s THEN gen_random_uuid() ELSE lease_token END"
            " WHERE id = ANY(%s)",
            [ids[0], ids[:2]],
        )
        with own.cursor(binary=True) as cursor:
            standing = settling.still_held(cursor, leases)

    assert renewed == {ids[2]}
    assert standing == {ids[1], ids[2]}


# What a site adds


@pytest.fixture
def archive() -> Iterator[None]:
    """A table of a site's that inherits from that of the messages."""
    with session() as own:
        own.execute("CREATE TABLE archive () INHERITS (django_outbox_message)")
        yield
        own.execute("DROP TABLE archive")


@pytest.mark.usefixtures("archive")
def test_rows_of_a_table_that_inherits_are_neither_claimed_nor_settled() -> None:
    with session() as own:
        own.execute(
            "INSERT INTO archive (id, queue, payload)"
            " SELECT n, CASE WHEN n % 2 = 0 THEN 'orders' ELSE 'labels' END, '0'"
            " FROM generate_series(1, 100) AS n"
        )
        before = own.execute("SELECT * FROM archive ORDER BY id").fetchall()
    fates = [outbox.Reject("no"), outbox.Retry(delay=0), None]
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)
        if fate := fates[message.payload % 3] if message.attempt == 1 else None:
            raise fate

    publish_many(list(range(1, 61)))
    drain()
    drain()

    assert sorted(handled) == sorted([*range(1, 61), *range(1, 61, 3)])
    with session() as own:
        assert own.execute("SELECT * FROM archive ORDER BY id").fetchall() == before
