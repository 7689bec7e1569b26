"""While there is a backlog, completions and the next claim share one transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_outbox.messages import Claimed
from django_outbox.models import OutboxMessage
from django_outbox.store import messages as store
from django_outbox.watchdog import Watchdog
from django_outbox.worker.database import Database, DatabaseAway, RowsLocked
from tests.support import committed, publish, session

pytestmark = [committed, pytest.mark.usefixtures("registry")]

LANES = [store.Lane("orders", lease_ttl=60.0)]


@pytest.fixture
def database() -> Iterator[Database]:
    watchdog = Watchdog()
    watchdog.start()
    database = Database("default", watchdog, listen=True)
    yield database
    database.close()
    watchdog.stop()


def claim_one(database: Database) -> Claimed:
    (claimed,) = database.call(store.claim, LANES, limit=1, worker_id="one")
    return claimed


def complete_and_claim(
    database: Database, claimed: Claimed, *, limit: int = 10
) -> tuple[set[int], list[Claimed]] | None:
    return database.call_together(
        store.complete_query([claimed.lease]),
        store.claim_query(LANES, limit=limit, worker_id="one"),
    )


def test_what_is_done_is_removed_and_what_is_due_is_claimed(database: Database) -> None:
    first, second = publish(1), publish(2)
    claimed = claim_one(database)

    answers = complete_and_claim(database, claimed)

    assert answers is not None
    completed, others = answers
    assert completed == {first}
    assert [other.id for other in others] == [second]
    assert OutboxMessage.objects.get().leased_by == "one"


def test_if_one_is_refused_nothing_comes_of_the_other(database: Database) -> None:
    first, second = publish(1), publish(2)
    claimed = claim_one(database)

    assert complete_and_claim(database, claimed, limit=-1) is None  # PostgreSQL takes no such limit

    assert set(OutboxMessage.objects.values_list("id", "leased_by")) == {
        (first, "one"),
        (second, None),
    }
    assert database.call(store.complete, [claimed.lease]) == {first}  # the session is as it was


def test_a_row_that_somebody_has_locked_keeps_both_from_waiting(database: Database) -> None:
    first, second = publish(1), publish(2)
    claimed = claim_one(database)

    with session() as other, other.transaction():
        other.execute("SELECT FROM django_outbox_message WHERE id = %s FOR UPDATE", [first])
        with pytest.raises(RowsLocked):
            complete_and_claim(database, claimed)

    assert OutboxMessage.objects.get(id=second).leased_by is None


def test_a_lost_connection_leaves_open_whether_it_was_done(database: Database) -> None:
    publish(1)
    claimed = claim_one(database)
    with session() as other:
        pid = database.connect().info.backend_pid
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    with pytest.raises(DatabaseAway) as away:
        complete_and_claim(database, claimed)

    assert away.value.sent
    assert OutboxMessage.objects.count() == 1


def test_a_notification_that_comes_meanwhile_is_heard(database: Database) -> None:
    publish(1)
    claimed = claim_one(database)
    database.take_news()
    with session() as other:
        other.execute("NOTIFY django_outbox, 'refunds'")

    complete_and_claim(database, claimed)

    assert database.take_news() == {"refunds"}


def test_the_statements_are_prepared_like_others(database: Database) -> None:
    for number in range(12):
        publish(number)
    claimed = [claim_one(database)]
    for _ in range(11):
        answers = complete_and_claim(database, claimed.pop(), limit=1)
        assert answers is not None
        claimed += answers[1]

    row = database.connect().execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    assert row == (2,)


def test_where_the_session_is_not_its_own_each_goes_by_itself() -> None:
    watchdog = Watchdog()
    watchdog.start()
    pooled = Database("default", watchdog, listen=False)
    publish(1)
    claimed = claim_one(pooled)

    assert complete_and_claim(pooled, claimed) is None

    assert OutboxMessage.objects.get().leased_by == "one"
    pooled.close()
    watchdog.stop()
