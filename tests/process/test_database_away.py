"""The database goes away and comes back: the same process goes on and charges no attempt."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
from django.db import connections

from django_outbox.handlers import Handler
from django_outbox.worker.loop import Options, Worker
from tests.process.spare import ALIAS, Spare
from tests.process.stage import PATIENCE, Stage, WorkerProcess
from tests.support import wait_until

MODES = ["fast", "immediate"]
SLOW_POLL = '{"POLL_INTERVAL": 60}'
"""With it, what is delivered promptly has been notified."""


def start(stage: Stage, spare: Spare, *arguments: str, **env: str) -> WorkerProcess:
    """Start a worker on the spare server and see it deliver a message."""
    worker = stage.worker(*arguments, database_url=spare.url, PGAPPNAME="worker", **env)
    worker.ready()
    spare.publish("first", queue="quick")
    stage.event("done")
    wait_until(lambda: not spare.messages.exists())
    return worker


def sessions(spare: Spare) -> list[int]:
    """Return the backends of the worker."""
    return [
        row[0]
        for row in spare.query("SELECT pid FROM pg_stat_activity WHERE application_name = 'worker'")
    ]


@pytest.mark.parametrize("mode", MODES)
def test_after_a_restart_an_idle_worker_delivers_and_listens_again(
    stage: Stage, spare: Spare, mode: str
) -> None:
    # F01
    worker = start(stage, spare, WORKER_OUTBOX=SLOW_POLL)

    spare.restart(mode)
    spare.publish("second", queue="quick")

    step = stage.event("done", within=10)
    assert (step["payload"], step["pid"], step["attempt"]) == ("second", worker.pid, 1)
    for payload in ("third", "fourth"):
        wait_until(lambda: not spare.messages.exists())
        spare.publish(payload, queue="quick")
        assert stage.event("done", within=2)["payload"] == payload
    assert worker.stop() == 0
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("mode", MODES)
def test_a_message_handled_during_a_restart_is_settled_and_not_delivered_again(
    stage: Stage, spare: Spare, mode: str
) -> None:
    worker = start(stage, spare)
    spare.publish(queue="gated")
    stage.event("start")

    spare.restart(mode)
    stage.let_on()
    stage.event("end")

    wait_until(lambda: not spare.messages.exists())
    assert stage.next_step(within=0.5) is None
    assert worker.stop() == 0


def test_a_message_handled_during_an_outage_is_settled_when_the_database_is_back(
    stage: Stage, spare: Spare
) -> None:
    worker = start(stage, spare)
    spare.publish(queue="gated")
    stage.event("start")

    spare.halt("fast")
    stage.let_on()
    stage.event("end")
    worker.wait_for_log("The database 'default'")
    spare.resume()

    wait_until(lambda: not spare.messages.exists())
    assert stage.next_step(within=0.5) is None
    assert worker.stop() == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("queue", ["gated_database", "gated_once"])
def test_a_handler_that_loses_its_session_in_a_restart_is_run_again_without_a_charge(
    stage: Stage, spare: Spare, queue: str, mode: str
) -> None:
    worker = start(stage, spare)
    id_ = spare.publish("booked", queue=queue)
    stage.event("start")

    spare.restart(mode)
    stage.let_on()

    again = stage.event("start", within=10)
    assert (again["id"], again["pid"]) == (id_, worker.pid)
    assert (again["attempt"], again["deliveries"]) == (1, 2)
    stage.let_on()
    wait_until(lambda: not spare.messages.exists())
    assert [order.name for order in spare.orders] == ["booked"]
    assert worker.stop() == 0


@pytest.mark.parametrize("queue", ["gated_database", "gated_once"])
def test_a_handler_whose_backend_is_killed_is_run_again_without_a_charge(
    stage: Stage, spare: Spare, queue: str
) -> None:
    worker = start(stage, spare)
    spare.publish("booked", queue=queue)
    started = stage.event("start")

    spare.query("SELECT pg_terminate_backend(%s, 5000)", [started["backend"]])
    stage.let_on()

    again = stage.event("start")
    assert (again["attempt"], again["deliveries"]) == (1, 2)
    stage.let_on()
    wait_until(lambda: not spare.messages.exists())
    assert [order.name for order in spare.orders] == ["booked"]
    assert worker.stop() == 0


def test_what_is_notified_while_the_listener_is_away_is_found_when_it_is_back(
    stage: Stage, spare: Spare
) -> None:
    # F03
    worker = start(stage, spare, WORKER_OUTBOX=SLOW_POLL)

    for pid in sessions(spare):
        spare.query("SELECT pg_terminate_backend(%s, 5000)", [pid])
    for n in range(5):
        spare.publish(n, queue="quick")

    steps = [stage.event("done", within=3) for _ in range(5)]
    assert sorted(step["payload"] for step in steps) == list(range(5))
    assert {step["attempt"] for step in steps} == {1}
    assert worker.stop() == 0


def test_a_read_only_spell_charges_no_attempt(stage: Stage, spare: Spare) -> None:
    worker = start(stage, spare)
    spare.publish("booked", queue="gated_database")
    stage.event("start")

    spare.set_read_only("on")
    try:
        stage.let_on()
        worker.wait_for_log("The database 'default'")
    finally:
        spare.set_read_only("off")

    again = stage.event("start")
    assert (again["attempt"], again["deliveries"]) == (1, 2)
    stage.let_on()
    stage.event("end")
    wait_until(lambda: not spare.messages.exists())
    assert [order.name for order in spare.orders] == ["booked"]
    assert worker.stop() == 0


def test_an_idle_worker_stops_while_the_database_is_away(stage: Stage, spare: Spare) -> None:
    worker = start(stage, spare)
    spare.halt("fast")
    worker.wait_for_log("The database 'default'")
    began = time.monotonic()

    assert worker.stop() == 0

    assert time.monotonic() - began < 3


def test_what_cannot_be_settled_in_time_is_left_to_its_lease(stage: Stage, spare: Spare) -> None:
    worker = start(stage, spare, "--shutdown-timeout", "1")
    id_ = spare.publish(queue="gated")
    stage.event("start")
    spare.halt("fast")

    worker.signal(signal.SIGTERM)
    stage.let_on()
    stage.event("end")

    assert worker.wait(within=5) == 1
    assert "Traceback" not in worker.log
    assert str(id_) in worker.log
    spare.resume()
    assert spare.messages.get().lease_token is not None


def test_a_connection_that_does_not_answer_is_given_up(spare: Spare) -> None:
    handled: list[Any] = []
    handler = Handler(function=lambda message: handled.append(message.payload), queues=("orders",))
    options = Options(using=ALIAS, worker_id="tester", concurrency=1)
    worker = Worker({"orders": handler}, options)
    worker._watchdog.patience = 1.0  # instead of half a minute
    thread = threading.Thread(target=worker.run)
    thread.start()
    stalled: list[int] = []
    try:
        spare.publish("first", queue="orders")
        wait_until(lambda: handled == ["first"] and not spare.messages.exists())
        connections[ALIAS].close()
        stalled = [
            row[0]
            for row in spare.query(
                "SELECT pid FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        ]
        for pid in stalled:
            os.kill(pid, signal.SIGSTOP)

        spare.publish("second", queue="orders")

        wait_until(lambda: handled == ["first", "second"] and not spare.messages.exists())
    finally:
        for pid in stalled:
            os.kill(pid, signal.SIGCONT)
        worker.stop()
        thread.join(PATIENCE)
    assert stalled
    assert not thread.is_alive()
