"""What a worker takes from the database: connections, statements, transactions."""

from __future__ import annotations

import time

from tests.process.spare import Spare
from tests.process.stage import Stage
from tests.support import wait_until


def sessions(spare: Spare) -> list[tuple[str, object]]:
    """Return state and start of transaction of each backend of the worker."""
    return [
        (state, xact_start)
        for state, xact_start in spare.query(
            "SELECT state, xact_start FROM pg_stat_activity WHERE application_name = 'worker'"
        )
    ]


def test_a_worker_holds_a_connection_for_each_thread_and_one_more(
    stage: Stage, spare: Spare
) -> None:
    worker = stage.worker("--concurrency", "3", database_url=spare.url, PGAPPNAME="worker")
    for n in range(6):
        spare.publish(n, queue="gated_database")
    for _ in range(3):
        stage.event("start")

    assert len(sessions(spare)) == 4
    stage.let_on(6)
    wait_until(lambda: not spare.messages.exists())
    assert len(sessions(spare)) <= 4
    assert worker.stop() == 0
    assert sessions(spare) == []


def test_no_transaction_is_open_while_handlers_run(stage: Stage, spare: Spare) -> None:
    # F13
    worker = stage.worker("--concurrency", "2", database_url=spare.url, PGAPPNAME="worker")
    spare.publish(queue="gated_database")
    spare.publish(queue="gated")
    stage.event("start")
    stage.event("start")

    for n in range(200):
        spare.publish(n, queue="unserved")
        if n % 20 == 0:
            wait_until(lambda: sessions(spare) == [("idle", None)] * 2, within=1)
    ((usage,),) = spare.query("SELECT pg_notification_queue_usage()")

    assert usage < 0.01
    stage.let_on(2)
    assert worker.stop() == 0


def test_a_busy_queue_is_claimed_and_settled_in_large_statements(
    stage: Stage, spare: Spare
) -> None:
    for _ in range(10):
        spare.publish_many([None] * 500, queue="empty")
    before = spare.statements()

    worker = stage.worker("--drain", database_url=spare.url, PGOPTIONS="-c log_statement=all")

    assert worker.wait() == 0
    assert not spare.messages.exists()
    assert 10 <= spare.statements() - before < 200  # claims of 500, and as few settlements


def test_an_idle_worker_runs_two_statements_a_second_at_most_and_writes_hardly_anything(
    stage: Stage, spare: Spare
) -> None:
    # K11
    worker = stage.worker(
        database_url=spare.url, PGAPPNAME="worker", PGOPTIONS="-c log_statement=all"
    )
    spare.publish(queue="quick")
    stage.event("done")
    wait_until(lambda: not spare.messages.exists())

    time.sleep(1.5)  # the last of the work is over
    before = spare.statements()
    ((first,),) = spare.query("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    time.sleep(4)
    ran = spare.statements() - before
    ((last,),) = spare.query("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")

    assert 1 <= ran <= 8
    assert last - first <= 1  # that it lives, each ten seconds
    assert worker.stop() == 0
