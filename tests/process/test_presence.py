"""That workers and schedulers live, and what they have done, as operators see it."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

from django_outbox.models import Counter, Worker
from tests.process.spare import ALIAS, Spare
from tests.process.stage import Stage
from tests.support import wait_until


def workers() -> list[Worker]:
    return list(Worker.objects.using(ALIAS).order_by("started_at"))


def counted() -> dict[str, tuple[int, int, int]]:
    """Return what is counted of each queue: completed, retried, buried."""
    found: dict[str, tuple[int, int, int]] = {}
    for counter in Counter.objects.using(ALIAS):
        before = found.get(counter.queue, (0, 0, 0))
        now = (counter.completed, counter.retried, counter.buried)
        found[counter.queue] = (before[0] + now[0], before[1] + now[1], before[2] + now[2])
    return found


def test_a_worker_is_seen_while_it_lives_and_gone_when_it_has_stopped(
    stage: Stage, spare: Spare
) -> None:
    process = stage.worker("--worker-id", "w1", "--concurrency", "3", database_url=spare.url)
    wait_until(workers)

    (worker,) = workers()
    assert (worker.worker_id, worker.kind, worker.pid) == ("w1", "worker", process.pid)
    assert worker.host == os.uname().nodename
    assert worker.concurrency == 3
    assert "quick" in worker.queues
    assert worker.last_seen_at - worker.started_at < timedelta(seconds=1)

    assert process.stop() == 0
    assert workers() == []


def test_a_worker_that_was_killed_stays_as_it_was_last_seen(stage: Stage, spare: Spare) -> None:
    process = stage.worker(database_url=spare.url)
    wait_until(workers)

    process.signal(signal.SIGKILL)
    process.wait()

    assert [worker.pid for worker in workers()] == [process.pid]


def test_what_a_worker_has_done_is_counted_by_queue_when_it_ends(
    stage: Stage, spare: Spare
) -> None:
    spare.publish_many([None] * 30, queue="empty")
    spare.publish(queue="broken")

    assert stage.worker("--drain", database_url=spare.url).wait() == 0

    assert counted() == {"empty": (30, 0, 0), "broken": (0, 1, 0)}


def test_a_worker_that_may_not_write_of_itself_delivers_all_the_same(
    stage: Stage, spare: Spare
) -> None:
    spare.execute("ALTER TABLE django_outbox_worker RENAME TO hidden")
    try:
        spare.publish(queue="empty")
        process = stage.worker("--drain", database_url=spare.url)

        assert process.wait() == 0
        assert "That this worker lives could not be written" in process.log
    finally:
        spare.execute("ALTER TABLE hidden RENAME TO django_outbox_worker")
    assert not spare.messages.exists()


def test_a_worker_with_a_scheduler_is_seen_as_both(stage: Stage, spare: Spare) -> None:
    process = stage.worker("--with-scheduler", database_url=spare.url)
    wait_until(lambda: len(workers()) == 2)

    assert {worker.kind for worker in workers()} == {"worker", "scheduler"}
    assert process.stop() == 0
    assert workers() == []
