"""A heartbeat waits for a database that is away, as the worker itself does."""

from __future__ import annotations

import threading
import time
from typing import Any

from django_outbox.handlers import Handler
from django_outbox.worker.loop import Options, Worker
from tests.process.spare import ALIAS, Spare
from tests.process.stage import PATIENCE
from tests.support import Gate, wait_for, wait_until


def test_a_heartbeat_waits_for_the_database_without_spinning_and_gets_its_answer(
    spare: Spare,
) -> None:
    gate = Gate()
    answers: list[Any] = []

    def handle(message: Any) -> None:
        gate.wait()
        answers.append(message.heartbeat())

    worker = Worker(
        {"orders": Handler(function=handle, queues=("orders",))},
        Options(using=ALIAS, worker_id="tester", concurrency=1),
    )
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(worker.run()))
    thread.start()
    try:
        id_ = spare.publish("long", queue="orders")
        wait_for(gate.reached)
        spare.halt("fast")
        gate.opened.set()
        wait_until(lambda: worker._leases.is_asked)
        began, used = time.monotonic(), time.process_time()
        time.sleep(2)  # of the outage
        share = (time.process_time() - used) / (time.monotonic() - began)
        assert answers == []
        spare.resume()
        wait_until(lambda: answers == [True], within=PATIENCE)
        wait_until(lambda: not spare.messages.filter(pk=id_).exists())
    finally:
        gate.opened.set()
        worker.stop()
        thread.join(PATIENCE)

    assert codes == [0]
    assert share < 0.5
