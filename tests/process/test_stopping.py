"""Stopping a worker: by signals, in good order, in time, or not at all."""

from __future__ import annotations

import random
import signal
import time

import pytest

from django_outbox.models import OutboxMessage
from tests.process.stage import Stage
from tests.support import committed, message_row, publish, publish_many, wait_until
from tests.testapp.models import Order

pytestmark = committed


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_running_handler_is_finished_and_settled(stage: Stage, signum: int) -> None:
    # G03
    worker = stage.worker("--shutdown-timeout", "30")
    publish(queue="gated")
    stage.event("start")

    worker.signal(signum)
    worker.wait_for_log("Stopping")
    assert worker.is_running
    stage.let_on()

    stage.event("end")
    assert worker.wait() == 0
    assert "Traceback" not in worker.log
    assert not OutboxMessage.objects.exists()


def leases_of(ids: list[int]) -> int:
    return OutboxMessage.objects.filter(pk__in=ids, lease_token__isnull=False).count()


def test_what_has_not_started_is_released_at_once_for_another_worker(stage: Stage) -> None:
    stopping = stage.worker("--concurrency", "1", "--batch-size", "20")
    # The quick ones teach the worker that it can claim ahead; what follows waits behind the gate.
    publish_many(["quick"] * 300, queue="booked")
    wait_until(lambda: not OutboxMessage.objects.exists())
    gated = publish(queue="gated")
    stage.event("start")
    waiting = publish_many(["waiting"] * 5, queue="booked")
    wait_until(lambda: leases_of(waiting) > 0, within=2)

    stopping.signal(signal.SIGTERM)
    stopping.wait_for_log("Stopping")
    wait_until(lambda: leases_of(waiting) == 0, within=1)
    rows = OutboxMessage.objects.filter(pk__in=waiting)
    assert list(rows.values_list("deliveries_count", flat=True)) == [0] * 5
    second = stage.worker("--concurrency", "1")
    wait_until(lambda: not rows.exists())
    assert message_row(gated).leased_by is not None

    stage.let_on()
    stage.event("end")
    assert stopping.wait() == 0
    assert second.stop() == 0


def test_a_hung_handler_is_left_to_its_lease(stage: Stage) -> None:
    # G05
    worker = stage.worker("--shutdown-timeout", "1")
    id_ = publish(queue="hung")
    stage.event("start")

    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    assert time.monotonic() - began <= 3
    assert str(id_) in worker.log
    assert "Traceback" not in worker.log
    assert message_row(id_).lease_token is not None

    stage.worker()
    again = stage.event("start")
    assert (again["id"], again["attempt"], again["deliveries"]) == (id_, 1, 2)
    stage.event("end")
    wait_until(lambda: not OutboxMessage.objects.exists())


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(stage: Stage, second: int) -> None:
    worker = stage.worker()
    publish(queue="gated")
    stage.event("start")

    worker.signal(signal.SIGTERM)
    worker.wait_for_log("Stopping")
    worker.signal(second)

    assert worker.wait(within=2) == 128 + second


def test_an_idle_worker_stops_at_once(stage: Stage) -> None:
    worker = stage.worker().ready()
    began = time.monotonic()

    assert worker.stop() == 0

    assert time.monotonic() - began < 2


def test_sigterm_at_any_moment_ends_with_0_and_leaves_nothing_behind(stage: Stage) -> None:
    # G01
    chance = random.Random(20_240_131)
    published = 0
    for _ in range(8):
        workers = [stage.worker("--concurrency", "2", "--batch-size", "5") for _ in range(3)]
        for worker in workers:
            worker.ready()
        published += len(publish_many(list(range(60)), queue="booked"))
        moments = sorted((chance.uniform(0, 0.05), n) for n in range(3))
        began = time.monotonic()
        for moment, n in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            workers[n].signal(signal.SIGTERM)

        assert [worker.wait() for worker in workers] == [0, 0, 0]
        for worker in workers:
            assert "Traceback" not in worker.log
        assert not OutboxMessage.objects.filter(lease_token__isnull=False).exists()
        assert not OutboxMessage.objects.exclude(deliveries_count=0).exists()
        assert Order.objects.count() + OutboxMessage.objects.count() == published
    assert Order.objects.count() > 0
