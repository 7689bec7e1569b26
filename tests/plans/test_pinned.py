"""Claims pass by what is gone and still there for an old snapshot.

As long as anybody might see them, vacuum must leave completed messages where they are: rows in the
table, entries in the claim index. Only pages that were read tell of them, since no row comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from django.db import connection, transaction

from django_outbox import outbox
from django_outbox.store.messages import Lane, claim, complete
from django_outbox.worker.window import LONG_SLACK
from tests.support import committed, session

from .explaining import (
    LIMIT,
    Plan,
    assert_goes_along_the_claim_index,
    buffers,
    explain_claim,
    rows_read,
    scans,
)

COMPLETED = 8_000
AT_ONCE = 1_000
MOST_PAGES = 60
"""Pages that the scan for 100 messages of 256 bytes may read, those of the index included."""


@pytest.fixture
def snapshot() -> Iterator[None]:
    """Have a transaction open that sees the table as it was."""
    with session() as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM django_outbox_message")
        yield


@pytest.fixture(params=[1, 5], ids=["one queue", "five queues"])
def lanes(request: pytest.FixtureRequest, snapshot: None) -> list[Lane]:
    """Return the lanes of a worker that has completed most of what there was."""
    queues = [f"q{n}" for n in range(request.param)]
    publish(queues, COMPLETED + AT_ONCE)
    with connection.cursor() as cursor:  # the window is kept a slack behind the clock
        cursor.execute(
            "UPDATE django_outbox_message SET next_attempt_at = next_attempt_at - interval '1 hour'"
        )
    lows = {queue: Lane(queue, 60.0) for queue in queues}
    for _ in range(COMPLETED // AT_ONCE):
        consume(lows)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE django_outbox_message")
    return list(lows.values())


def publish(queues: Iterable[str], number: int) -> None:
    """Publish an equal share of so many messages to each queue."""
    queues = list(queues)
    for queue in queues:
        with transaction.atomic():
            outbox.publish_many(["x" * 254] * (number // len(queues)), queue=queue)


def consume(lows: dict[str, Lane]) -> None:
    """Claim, complete, and move on, an equal share of each queue."""
    with connection.cursor() as cursor:
        for queue, lane in lows.items():
            claimed = claim(cursor, [lane], limit=AT_ONCE // len(lows), worker_id="w")
            last = claimed[-1]
            lows[queue] = lane._replace(low_at=last.due_at, low_id=last.id)
            assert complete(cursor, [row.lease for row in claimed])


def pages_of_scans(plan: Plan) -> int:
    return sum(buffers(node) for node in scans(plan))


@committed
def test_a_claim_in_the_window_does_not_walk_over_what_was_completed(lanes: list[Lane]) -> None:
    with transaction.atomic():
        plan = explain_claim(lanes)

    assert plan["Actual Rows"] == LIMIT
    assert_goes_along_the_claim_index(plan)
    assert rows_read(plan) == LIMIT
    assert pages_of_scans(plan) <= MOST_PAGES


@committed
@pytest.mark.parametrize(("slack", "walked"), [(0.0, 0), (LONG_SLACK, 2 * AT_ONCE)])
def test_a_worker_that_keeps_up_walks_over_its_slack_and_no_more(
    lanes: list[Lane], slack: float, walked: int
) -> None:
    # K01: what commits late is looked for so far behind the clock, and no further.
    lows = {lane.queue: lane for lane in lanes}
    consume(lows)  # the last of an hour ago
    publish(lows, AT_ONCE + LIMIT)
    consume(lows)  # of a moment ago, and each is there twice: as it was, and as it was claimed

    with transaction.atomic():
        plan = explain_claim(list(lows.values()), slack=slack)

    assert plan["Actual Rows"] == LIMIT
    assert_goes_along_the_claim_index(plan)
    assert rows_read(plan) == LIMIT
    assert walked / 100 <= pages_of_scans(plan) <= walked + MOST_PAGES < COMPLETED


@committed
def test_a_sweep_does(lanes: list[Lane]) -> None:
    with transaction.atomic():
        plan = explain_claim([Lane(lane.queue, 60.0) for lane in lanes])

    assert plan["Actual Rows"] == LIMIT
    assert pages_of_scans(plan) > COMPLETED / 100
