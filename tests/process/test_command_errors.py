"""Commands that cannot work say what to do, without a traceback, and exit 1."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.process.spare import Spare
from tests.process.stage import Stage

pytestmark = pytest.mark.django_db


def test_a_database_without_the_tables_is_told_to_migrate(stage: Stage, spare: Spare) -> None:
    spare.execute("CREATE DATABASE bare")
    try:
        url = urlsplit(spare.url)._replace(path="/bare").geturl()
        worker = stage.worker(database_url=url)

        assert worker.wait() == 1
    finally:
        spare.execute("DROP DATABASE bare WITH (FORCE)")
    assert "migrate django_outbox" in worker.log
    assert "Traceback" not in worker.log


def test_a_database_that_cannot_be_reached_is_named(stage: Stage, spare: Spare) -> None:
    url = urlsplit(spare.url)._replace(path="/missing").geturl()
    worker = stage.worker(database_url=url)

    assert worker.wait() == 1
    assert "missing" in worker.log
    assert "Traceback" not in worker.log


def test_a_database_that_is_not_postgresql_is_refused(stage: Stage) -> None:
    worker = stage.worker(database_url="sqlite://:memory:")

    assert worker.wait() == 1
    assert "PostgreSQL" in worker.log
    assert "SQLite" in worker.log
    assert "Traceback" not in worker.log


def test_a_project_without_handlers_is_told_where_to_put_them(stage: Stage) -> None:
    worker = stage.worker(WORKER_APPS="")

    assert worker.wait() == 1
    assert "outbox_handlers" in worker.log
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--queue", "quick", "--queue", "quikc"], "quikc"),
        (["--database", "nowhere"], "nowhere"),
        (["--worker-id", ""], "--worker-id"),
        (["--worker-id", "w" * 256], "--worker-id"),
    ],
    ids=["unknown queue", "unknown database", "no worker id", "long worker id"],
)
def test_an_option_that_names_nothing_is_refused(
    stage: Stage, arguments: list[str], said: str
) -> None:
    worker = stage.worker(*arguments)

    assert worker.wait() == 1
    assert said in worker.log
    assert "Traceback" not in worker.log
