"""Nothing we do stays in a session that the next transaction may be somebody else's.

There is one session only, so the client that looks has the one that was used.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction

from django_outbox import outbox
from django_outbox.models import DeadLetter, Lease, OutboxMessage
from django_outbox.scheduling.running import tick_once
from tests.pooler.bouncer import CLEAN, Bouncer
from tests.pooler.site import ALIAS, Site
from tests.scheduling.helpers import make_due
from tests.support import committed, wait_until
from tests.testapp.models import Order

pytestmark = [committed, pytest.mark.usefixtures("registry")]


def publish(site: Site) -> None:
    for n in range(10):  # psycopg would prepare what is run that often, if it were let
        site.publish(n)
    assert len(site.publish_many(list(range(100)))) == 100
    assert OutboxMessage.objects.count() == 110


def move_timers(site: Site) -> None:
    timer: dict[str, Any] = {"timer_id": "cart", "activate_in": timedelta(hours=1)}
    id_ = site.publish("first", **timer)
    assert site.publish("again", **timer) is None
    assert site.publish("later", timer_conflict="extend", **timer) == id_
    assert site.publish("now", timer_id="cart", timer_conflict="replace") == id_
    with transaction.atomic(using=ALIAS):
        assert outbox.cancel_timer(queue="orders", timer_id="cart", using=ALIAS)


def deliver(site: Site) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        assert site.backend() == used

    used = site.backend()
    site.publish_many(list(range(20)))
    for _ in range(10):
        site.drain(max_messages=2)
    assert not OutboxMessage.objects.exists()


def deliver_atomically(site: Site) -> None:
    @outbox.handler("orders", atomic=True)
    def handle(message: outbox.Message[Any]) -> outbox.OutboxResponse | None:
        Order.objects.using(ALIAS).create(name=message.payload)
        return (
            outbox.OutboxResponse("second", queue="orders") if message.payload == "first" else None
        )

    site.publish("first")
    site.drain()
    assert site.orders() == ["first", "second"]


def acknowledge(site: Site) -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        assert message.heartbeat()
        with transaction.atomic(using=ALIAS):
            Order.objects.using(ALIAS).create(name="acked")
            message.ack()

    site.publish()
    site.drain()
    assert site.orders() == ["acked"]


def fail_and_replay(site: Site) -> None:
    @outbox.handler("orders", retry=outbox.ConstantRetry(0, max_attempts=2))
    def handle(message: outbox.Message[Any]) -> None:
        raise ValueError("out of stock")

    site.publish()
    site.drain()
    site.drain()
    assert DeadLetter.objects.get().attempts_count == 2
    site.call("outbox_replay", "--all")
    assert OutboxMessage.objects.count() == 1


def run_once(site: Site) -> None:
    site.publish()
    assert outbox.run_once("orders", lambda message: None, using=ALIAS)


def tick(site: Site) -> None:
    outbox.schedule("report", "@every 1d", queue="orders", using=ALIAS)
    make_due("report")
    assert tick_once(outbox.StopToken(), using=ALIAS) == (1, False)
    assert outbox.unschedule("report", using=ALIAS)


def lead(site: Site) -> None:
    outbox.schedule("report", "@every 1d", queue="orders", using=ALIAS)
    make_due("report")
    with site.scheduler():
        wait_until(OutboxMessage.objects.exists)
    assert not Lease.objects.exists()


def look(site: Site) -> None:
    for command in ("outbox_status", "outbox_check"):
        call_command(command, "--database", ALIAS, stdout=io.StringIO())
    site.call("outbox_prune", "--dead-older-than", "1d")
    outbox.validate_schema(using=ALIAS)


@pytest.mark.parametrize(
    "use",
    [
        publish,
        move_timers,
        deliver,
        deliver_atomically,
        acknowledge,
        fail_and_replay,
        run_once,
        tick,
        lead,
        look,
    ],
)
def test_the_next_client_finds_a_session_as_new(site: Site, use: Callable[[Site], None]) -> None:
    # F09
    used = site.backend()

    use(site)

    assert site.backend() == used
    assert site.states(1) == [CLEAN]


def test_what_a_session_is_told_is_there_for_the_next_client(bouncer: Bouncer, site: Site) -> None:
    for statement in (
        "SELECT set_config('enable_sort', 'off', false)",
        "PREPARE one AS SELECT 1",
        "LISTEN django_outbox",
        "SELECT pg_advisory_lock(1)",
        "CREATE TEMP TABLE mine ()",
    ):
        bouncer.query(site.database, statement)

    (state,) = site.states(1)
    assert state == CLEAN._replace(
        settings=["enable_sort = off"],
        prepared=["PREPARE one AS SELECT 1"],
        channels=["django_outbox"],
        locks=["ExclusiveLock"],
        tables=["mine"],
    )
