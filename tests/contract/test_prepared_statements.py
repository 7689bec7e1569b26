"""The loop's statements are prepared where its session is its own, and it survives their loss."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from django_outbox.store import messages
from django_outbox.watchdog import Watchdog
from django_outbox.worker.database import Database, DatabaseAway

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def database() -> Iterator[Database]:
    watchdog = Watchdog()
    watchdog.start()
    database = Database("default", watchdog, listen=True)
    for _ in range(8):
        database.call(messages.soonest, ["orders"], since=None)
    yield database
    database.close()
    watchdog.stop()


def prepared(database: Database) -> int:
    row = database.connect().execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    assert row is not None
    return int(row[0])


def test_what_is_run_often_is_prepared(database: Database) -> None:
    assert prepared(database) == 1


def test_one_that_is_gone_costs_a_new_session_which_prepares_none(database: Database) -> None:
    # As behind a pooler that the settings do not tell of; psycopg itself must not learn of it.
    database.connect().pgconn.exec_(b"DEALLOCATE ALL")

    with pytest.raises(DatabaseAway):
        database.call(messages.soonest, ["orders"], since=None)

    time.sleep(max(0.0, database.retry_at - time.monotonic()))
    for _ in range(8):
        assert database.call(messages.soonest, ["orders"], since=None) is None
    assert prepared(database) == 0
