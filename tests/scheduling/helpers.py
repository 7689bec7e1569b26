"""What the tests of schedules do to a real database."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections

from django_outbox import outbox
from django_outbox.models import Lease, OutboxMessage, Schedule
from tests.support import PATIENCE, session

SIX = datetime(2026, 6, 1, 6, 0, tzinfo=UTC)

committed = pytest.mark.django_db(
    transaction=True, available_apps=["django_outbox", "tests.testapp"]
)
"""For tests whose rows must be committed."""


def now() -> datetime:
    """Return the database's clock."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
        return moment


def schedule(name: str = "report", spec: str = "@every 1h", **options: Any) -> Schedule:
    """Register a schedule for the queue `orders`, unless another is given."""
    return outbox.schedule(name, spec, **{"queue": "orders", **options})


def stored(name: str = "report") -> Schedule:
    """Return the schedule as it is stored now."""
    return Schedule.objects.get(name=name)


def put_boundary(name: str, moment: datetime) -> datetime:
    """Let the schedule's next boundary be this one."""
    assert Schedule.objects.filter(name=name).update(next_run_at=moment) == 1
    return moment


def make_due(name: str = "report", *, ago: float = 1.0) -> datetime:
    """Let the schedule's next boundary have come so many seconds ago, and return it."""
    return put_boundary(name, now() - timedelta(seconds=ago))


def break_row(name: str, **columns: Any) -> None:
    """Edit the row by hand, as somebody with a console does."""
    assert Schedule.objects.filter(name=name).update(**columns) == 1


def messages(queue: str | None = None) -> list[OutboxMessage]:
    """Return what has been published, in its order."""
    found = OutboxMessage.objects.order_by("id")
    return list(found if queue is None else found.filter(queue=queue))


def boundaries_fired(name: str = "report") -> list[datetime]:
    """Return the boundaries that messages of the schedule carry, in the order of publishing."""
    return [
        datetime.fromisoformat(message.headers["boundary"])
        for message in messages()
        if message.headers.get("schedule") == name
    ]


def payload_of(message: OutboxMessage) -> Any:
    return json.loads(bytes(message.payload))


def lease() -> Lease | None:
    """Return the leader's lease as it is stored now."""
    return Lease.objects.filter(name="__scheduler").first()


def hold_lease(owner: str = "another", *, ttl: float = 60.0) -> None:
    """Let somebody else lead for so many seconds from now; a negative `ttl` has run out."""
    with session() as other:
        other.execute(
            "INSERT INTO django_outbox_lease (name, owner, acquired_at, expires_at)"
            " VALUES ('__scheduler', %(owner)s, clock_timestamp(),"
            " clock_timestamp() + %(ttl)s * interval '1 second')"
            " ON CONFLICT (name) DO UPDATE SET owner = excluded.owner,"
            " expires_at = excluded.expires_at",
            {"owner": owner, "ttl": ttl},
        )


class Runner:
    """`outbox.run_schedules` in a thread, and what became of it."""

    def __init__(self, function: Callable[[outbox.StopToken], None]) -> None:
        self.stop = outbox.StopToken()
        self.error: BaseException | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> BaseException | None:
        """Wait for the end, and return what it raised."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "The runner did not end"
        return self.error

    def _run(self) -> None:
        try:
            self._function(self.stop)
        except BaseException as error:  # for the test to look at
            self.error = error
        finally:
            connections.close_all()


@contextmanager
def running(
    function: Callable[[outbox.StopToken], None] = outbox.run_schedules,
) -> Iterator[Runner]:
    """Run schedules in a thread for the block, and stop it in good order afterwards."""
    runner = Runner(function)
    try:
        yield runner
    finally:
        runner.stop.stop()
        error = runner.join()
    assert error is None or isinstance(error, outbox.LeadershipLost), error
