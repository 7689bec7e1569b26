"""What processes write at DEBUG, of all libraries and all attributes: never what they deliver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from django_outbox import outbox
from django_outbox.models import DeadLetter, Schedule
from tests.process.spare import ALIAS, Spare
from tests.process.stage import Stage, WorkerProcess
from tests.support import wait_until

# L03
PAYLOAD, HEADER, PASSWORD = "SECRET-PAYLOAD", "SECRET-HEADER", "SECRET-PASSWORD"
SECRETS = {"payload": {"token": PAYLOAD}, "headers": {"authorization": HEADER}}
WRITTEN = {PAYLOAD, HEADER, PASSWORD, PAYLOAD.encode().hex(), HEADER.encode().hex()}
LOUD = {"DJANGO_SETTINGS_MODULE": "tests.security.loud"}


def url_with_password(spare: Spare) -> str:
    parts = urlsplit(spare.url)
    user, _, host = parts.netloc.rpartition("@")
    user = user.partition(":")[0] or "postgres"
    return parts._replace(netloc=f"{user}:{PASSWORD}@{host}").geturl()


def secrets_in(log: str) -> set[str]:
    return {secret for secret in WRITTEN if secret in log}


def worker(stage: Stage, spare: Spare, *arguments: str) -> WorkerProcess:
    return stage.worker(*arguments, database_url=url_with_password(spare), **LOUD).ready()


@pytest.fixture
def scheduler(spare: Spare) -> Iterator[WorkerProcess]:
    environment = {
        **os.environ,
        **LOUD,
        "DATABASE_URL": url_with_password(spare),
        "PYTHONUNBUFFERED": "1",
    }
    spare.execute("TRUNCATE django_outbox_schedule")
    process = WorkerProcess(["outbox_scheduler"], environment)
    yield process
    process.kill()
    spare.execute("TRUNCATE django_outbox_schedule, django_outbox_lease")


@contextmanager
def refused(spare: Spare, table: str) -> Iterator[None]:
    """Have a constraint refuse each row of the table; PostgreSQL's error quotes the row."""
    spare.execute(f"ALTER TABLE {table} ADD CONSTRAINT none CHECK (queue IS NULL) NOT VALID")
    try:
        yield
    finally:
        spare.execute(f"ALTER TABLE {table} DROP CONSTRAINT none")


def test_a_worker_that_delivers_retries_and_buries(stage: Stage, spare: Spare) -> None:
    process = worker(stage, spare)
    payload, headers = SECRETS["payload"], SECRETS["headers"]
    for queue in ("empty", "broken", "rejecting", "numbers"):
        spare.publish(payload, queue=queue, headers=headers)
    spare.publish(
        PAYLOAD.encode(), queue="numbers", headers={**headers, "content-type": "application/json"}
    )
    wait_until(lambda: spare.messages.filter(attempts_count=1).count() == 1)
    wait_until(lambda: DeadLetter.objects.using(ALIAS).count() == 3)

    assert process.stop() == 0

    for said in ("Completed", "broken on purpose", "rejected on purpose", "as invalid_payload"):
        assert said in process.log
    assert secrets_in(process.log) == set()


def test_a_worker_that_meets_rows_written_by_hand(stage: Stage, spare: Spare) -> None:
    rows = [
        (PAYLOAD, f'"{HEADER}"'),
        (PAYLOAD, f'{{"a": ["{HEADER}"]}}'),
        (f'{{"{PAYLOAD}', f'{{"content-type": "application/json", "a": "{HEADER}"}}'),
    ]
    with spare.session() as own, own.cursor() as cursor:
        insert = (
            "INSERT INTO django_outbox_message (queue, payload, headers) VALUES ('empty', %s, %s)"
        )
        cursor.executemany(insert, rows)
    process = worker(stage, spare)
    wait_until(lambda: DeadLetter.objects.using(ALIAS).values("id").count() == 3)

    assert process.stop() == 0

    assert process.log.count("'reason': 'invalid_payload'") == 3
    assert secrets_in(process.log) == set()


def test_a_worker_whose_lease_is_lost(stage: Stage, spare: Spare) -> None:
    process = worker(stage, spare)
    spare.publish(**SECRETS, queue="gated")
    stage.event("start")
    spare.execute("UPDATE django_outbox_message SET lease_token = gen_random_uuid()")
    stage.let_on()
    process.wait_for_log("Lost 1 lease")

    assert process.stop() == 0
    assert secrets_in(process.log) == set()


def test_a_worker_whose_burial_is_refused(stage: Stage, spare: Spare) -> None:
    process = worker(stage, spare, "--shutdown-timeout", "0.5")
    with refused(spare, "django_outbox_dead_letter"):
        spare.publish(**SECRETS, queue="rejecting")
        process.wait_for_log("refused")
        assert process.stop() == 1

    assert secrets_in(process.log) == set()


def test_a_worker_whose_database_goes_away(stage: Stage, spare: Spare) -> None:
    process = worker(stage, spare)
    spare.publish(**SECRETS, queue="gated_database")
    stage.event("start")
    spare.restart("immediate")
    process.wait_for_log("The database 'default'")
    stage.let_on()
    stage.event("start")
    stage.let_on()
    stage.event("end")
    wait_until(lambda: not spare.messages.exists())

    assert process.stop() == 0
    assert secrets_in(process.log) == set()


def test_a_worker_that_cannot_log_in(stage: Stage, spare: Spare) -> None:
    url = urlsplit(url_with_password(spare))._replace(path="/missing").geturl()
    process = stage.worker(database_url=url, **LOUD)

    assert process.wait() == 1
    assert "missing" in process.log
    assert secrets_in(process.log) == set()


def test_a_scheduler_that_fires_and_fails(scheduler: WorkerProcess, spare: Spare) -> None:
    payload, headers = SECRETS["payload"], SECRETS["headers"]
    outbox.schedule(
        "report", "@every 1s", queue="empty", payload=payload, headers=headers, using=ALIAS
    )
    wait_until(spare.messages.exists)

    with refused(spare, "django_outbox_message"):
        scheduler.wait_for_log("could not be fired")
        # It is said before it is committed.
        wait_until(lambda: Schedule.objects.using(ALIAS).get().last_error)
    row = Schedule.objects.using(ALIAS).get()
    assert scheduler.stop() == 0

    assert secrets_in(scheduler.log) == set()
    assert row.last_error is not None
    assert secrets_in(row.last_error) == set()


def test_a_scheduler_whose_database_goes_away(scheduler: WorkerProcess, spare: Spare) -> None:
    scheduler.wait_for_log("Leading as")
    spare.restart("immediate")
    scheduler.wait_for_log("Leading as", times=2)

    assert scheduler.stop() == 0
    assert secrets_in(scheduler.log) == set()
