"""Migrations first: the code of before goes on with the new tables, beside the new code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage
from tests.older import NoHistory, unpack_before
from tests.process.stage import ROOT
from tests.support import wait_until
from tests.upgrade.tables import ALIAS, NAMES, NEWEST, Tables, before
from tests.upgrade.then import Code

CHECKED = [
    "('moved', None, 'c2', 't1')",
    "('single', 'x', 'c1', None)",
]


@pytest.fixture(params=NAMES[1:])
def then(request: pytest.FixtureRequest, tables: Tables, tmp_path: Path) -> Iterator[Code]:
    """The code of before each migration."""
    try:
        folder = unpack_before(request.param, tmp_path / "then")
    except NoHistory as error:
        pytest.skip(str(error))
    with Code("then", folder, tables, tmp_path / "then.log") as code:
        yield code


@pytest.fixture
def now(tables: Tables, tmp_path: Path) -> Iterator[Code]:
    with Code("now", ROOT, tables, tmp_path / "now.log") as code:
        yield code


def letters() -> list[tuple[str, str | None]]:
    found = DeadLetter.objects.using(ALIAS)
    return list(found.values_list("queue", "failure_reason"))


@pytest.mark.parametrize("old_publishes", [True, False])
def test_what_one_publishes_the_other_delivers(
    then: Code, now: Code, tables: Tables, *, old_publishes: bool
) -> None:
    publisher, worker = (then, now) if old_publishes else (now, then)

    publisher.publish(0, 3)
    worker.manage("outbox_worker", "--no-reload", "--drain")

    name = "now" if old_publishes else "then"
    assert tables.booked == [*CHECKED, *(f"order {n:04} by {name}" for n in range(3))]
    assert letters() == [("refused", "rejected")] * 2
    assert tables.waiting == 0
    replayed = DeadLetter.objects.using(ALIAS).replay()
    assert (replayed.replayed, tables.waiting, letters()) == (2, 2, [])


SMALL_BITES = ("--queue", "orders", "--concurrency", "2", "--batch-size", "5")
ORDERS_LEFT = "SELECT count(*) FROM django_outbox_message WHERE queue = 'orders'"


def wait_until_delivered(tables: Tables) -> None:
    wait_until(lambda: tables.query(ORDERS_LEFT) == [(0,)], within=30)


def publish_until_both_deliver(tables: Tables, first: int) -> int:
    """Publish orders until both have delivered some; return the number after the last."""
    for number in range(first, first + 5_000, 50):
        tables.publish_many([f"order {n:04}" for n in range(number, number + 50)], queue="orders")
        wait_until_delivered(tables)
        if {name.partition(" by ")[2] for name in tables.booked} == {"then", "now"}:
            return number + 50
    pytest.fail("One of the two delivers nothing")


def test_an_upgrade_under_traffic_loses_and_doubles_nothing(
    request: pytest.FixtureRequest, then: Code, now: Code, tables: Tables
) -> None:
    # G07
    tables.migrate(before(request.node.callspec.params["then"]))
    then.start_worker(*SMALL_BITES)
    then.publish(0, 50)

    tables.migrate(NEWEST)
    then.publish(50, 100)
    now.start_worker(*SMALL_BITES)
    last = publish_until_both_deliver(tables, 100)
    then.stop()
    now.publish(last, last + 50)
    wait_until_delivered(tables)
    now.stop()

    assert [name.partition(" by ")[0] for name in tables.booked] == [
        f"order {n:04}" for n in range(last + 50)
    ]


@pytest.mark.parametrize(
    "then", ["0003_operations", "0004_storage", "0005_claim_index"], indirect=True
)
def test_an_old_scheduler_fires_what_new_code_has_scheduled(then: Code, tables: Tables) -> None:
    outbox.schedule("report", "@every 1d", queue="orders", payload="daily", using=ALIAS)
    tables.query("UPDATE django_outbox_schedule SET next_run_at = now() - interval '1 second'")

    then.manage("outbox_scheduler", "--once")

    fired = OutboxMessage.objects.using(ALIAS).get()
    assert (fired.queue, fired.headers["schedule"]) == ("orders", "report")
