"""Crashes: a worker that dies without a word loses nothing and charges no attempt."""

from __future__ import annotations

import signal
import time

import pytest

from django_outbox.models import DeadLetter, OutboxMessage
from tests.process.stage import Stage
from tests.support import committed, message_row, publish, publish_many, wait_until
from tests.testapp.models import Order

pytestmark = committed


@pytest.mark.parametrize("other", ["idle beside it", "started later"])
def test_the_message_of_a_killed_worker_is_delivered_again_after_its_lease(
    stage: Stage, other: str
) -> None:
    # B01, B09
    first = stage.worker()
    id_ = publish("precious", queue="gated_short", max_attempts=5)
    started = stage.event("start")
    if other == "idle beside it":
        second = stage.worker().ready()
    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    killed_at = time.monotonic()
    if other == "started later":
        second = stage.worker().ready()

    again = stage.event("start", within=10)

    assert time.monotonic() - killed_at < 1.5 + 1 + 2  # the lease, a poll, and starting up
    assert again["pid"] == second.pid
    assert again["id"] == id_
    assert again["message_id"] == started["message_id"]
    assert (started["attempt"], started["deliveries"]) == (1, 1)
    assert (again["attempt"], again["deliveries"]) == (1, 2)
    assert message_row(id_).attempts_count == 0
    stage.let_on()
    stage.event("end")
    wait_until(lambda: not OutboxMessage.objects.exists())
    assert not DeadLetter.objects.exists()


def test_the_place_of_a_killed_worker_is_not_kept_from_its_successor(stage: Stage) -> None:
    # B13: nothing but the lease counts, and no limit is left over from the dead
    arguments = ("--queue", "gated_short", "--concurrency", "1")
    first = stage.worker(*arguments)
    ids = [publish(n, queue="gated_short") for n in range(2)]
    stage.event("start")
    first.signal(signal.SIGKILL)
    first.wait()
    stage.worker(*arguments)

    started = []
    for _ in ids:
        started.append(stage.event("start", within=10)["id"])
        stage.let_on()
        stage.event("end")

    assert sorted(started) == ids
    wait_until(lambda: not OutboxMessage.objects.exists())


def test_an_atomic_handler_killed_midway_has_its_effects_once(stage: Stage) -> None:
    first = stage.worker()
    id_ = publish("book me", queue="gated_once")
    stage.event("start")
    first.signal(signal.SIGKILL)
    first.wait()
    assert not Order.objects.exists()
    OutboxMessage.objects.filter(pk=id_).update(lease_expires_at="2000-01-01T00:00Z")

    stage.worker()
    stage.event("start")
    stage.let_on()

    wait_until(lambda: not OutboxMessage.objects.exists())
    assert [order.name for order in Order.objects.all()] == ["book me"]


def test_a_batch_killed_midway_has_its_effects_once(stage: Stage) -> None:
    names = [f"order {n}" for n in range(10)]
    first = stage.worker("--concurrency", "1")
    publish_many(names, queue="gated_batch")
    stage.event("start")
    first.signal(signal.SIGKILL)
    first.wait()
    booked_before = Order.objects.count()  # by those that were claimed before the others
    OutboxMessage.objects.update(lease_expires_at="2000-01-01T00:00Z")

    stage.worker("--concurrency", "1")
    stage.event("start")
    stage.let_on()

    wait_until(lambda: not OutboxMessage.objects.exists())
    assert booked_before < 5
    assert sorted(Order.objects.values_list("name", flat=True)) == names
    assert not DeadLetter.objects.exists()


def test_two_workers_share_the_work_and_deliver_nothing_twice(stage: Stage) -> None:
    publish_many([f"order {n}" for n in range(1000)], queue="booked")

    workers = [stage.worker("--concurrency", "2", "--batch-size", "10") for _ in range(2)]

    wait_until(lambda: not OutboxMessage.objects.exists())
    names = sorted(Order.objects.values_list("name", flat=True))
    assert names == sorted(f"order {n}" for n in range(1000))
    assert [worker.stop() for worker in workers] == [0, 0]
    for worker in workers:
        assert "Lost" not in worker.log


def test_a_handler_longer_than_its_lease_runs_once_though_another_worker_idles(
    stage: Stage,
) -> None:
    # B03, B07
    for _ in range(2):
        stage.worker().ready()
    publish(queue="gated_short")
    stage.event("start")

    assert stage.next_step(within=3.5) is None  # more than two leases long
    stage.let_on()

    assert stage.event("end")["deliveries"] == 1
    wait_until(lambda: not OutboxMessage.objects.exists())
