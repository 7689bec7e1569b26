"""Schedulers need no direct connection: their lease and its lock hold within transactions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from django.db import connections

from django_outbox import outbox
from django_outbox.errors import LeadershipLost
from django_outbox.models import Lease, OutboxMessage
from tests.pooler.bouncer import CLEAN
from tests.pooler.site import ALIAS, Site, kill, reconnect, restart
from tests.scheduling.helpers import boundaries_fired, make_due
from tests.support import committed, session, wait_until

pytestmark = [committed, pytest.mark.parametrize("bouncer", [{"sessions": 2}], indirect=True)]


def schedule(spec: str = "@every 1s") -> None:
    outbox.schedule("report", spec, queue="orders", using=ALIAS)


def assert_each_second_once(fired: list[datetime]) -> None:
    assert {later - earlier for earlier, later in pairwise(fired)} == {timedelta(seconds=1)}


def advisory_locks() -> int:
    with session() as direct:
        row = direct.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_of_two_schedulers_one_leads_and_each_boundary_is_fired_once(site: Site) -> None:
    # E25
    schedule()
    owners: set[str] = set()
    with site.scheduler(), site.scheduler():
        for boundaries in range(1, 5):
            wait_until(lambda n=boundaries: OutboxMessage.objects.count() >= n)  # type: ignore[misc]
            owners |= set(Lease.objects.values_list("owner", flat=True))

    assert len(owners) == 1
    assert_each_second_once(boundaries_fired())
    assert not Lease.objects.exists()
    assert advisory_locks() == 0
    assert site.states(2) == [CLEAN, CLEAN]


def test_one_that_stands_by_takes_over_when_the_leader_stops(site: Site) -> None:
    schedule()
    with ExitStack() as first, site.scheduler():
        first.enter_context(site.scheduler())
        wait_until(OutboxMessage.objects.exists)
        first.close()
        fired = OutboxMessage.objects.count()
        wait_until(lambda: OutboxMessage.objects.count() > fired + 1)

    assert_each_second_once(boundaries_fired())


def test_a_second_one_is_refused_the_lead(site: Site) -> None:
    schedule()
    with site.scheduler():
        wait_until(Lease.objects.exists)
        with pytest.raises(LeadershipLost, match="Another scheduler leads"):
            outbox.run_schedules(outbox.StopToken(), using=ALIAS)


@pytest.mark.parametrize("move", [reconnect, kill, restart])
def test_a_leader_whose_sessions_go_leads_on(site: Site, move: Callable[[Site], None]) -> None:
    schedule("@every 1d")
    with site.scheduler():
        for fired in range(3):
            make_due("report")
            wait_until(lambda n=fired: OutboxMessage.objects.count() == n + 1)  # type: ignore[misc]
            connections[ALIAS].close()
            move(site)

    assert len(set(boundaries_fired())) == 3
    assert advisory_locks() == 0
