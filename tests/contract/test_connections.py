"""It works whatever the project's connection and time zone settings are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import IsolationLevel

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage

from .helpers import committed, stored_payload

pytestmark = committed

FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(
    params=[
        {"server_side_binding": True},
        {"prepare_threshold": 1},
        {"server_side_binding": True, "prepare_threshold": 1},
        {"isolation_level": IsolationLevel.REPEATABLE_READ},
        {"isolation_level": IsolationLevel.SERIALIZABLE},
        {"options": "-c jit_above_cost=0 -c enable_seqscan=off -c TimeZone=Asia/Tokyo"},
    ],
    ids=str,
)
def reconnected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have Django connect with these OPTIONS."""
    options = connection.settings_dict.get("OPTIONS", {})
    connection.close()
    connection.settings_dict["OPTIONS"] = {**options, **request.param}
    yield
    connection.close()
    connection.settings_dict["OPTIONS"] = options


@pytest.mark.usefixtures("reconnected")
def test_publishing_works_with_any_options_of_the_connection(
    make_letter: Callable[..., DeadLetter],
) -> None:
    for n in range(7):  # more than a statement is run before it is prepared
        with transaction.atomic():
            id_ = outbox.publish(n, queue="orders", max_attempts=3, expires_in=60)
            assert stored_payload(id_) == n
            outbox.publish_many([n, None], queue="orders", activate_in=timedelta(hours=1))
            timer = outbox.publish(n, queue="timers", timer_id="t", activate_at=FUTURE)
            assert outbox.publish(n, queue="timers", timer_id="t") is None
            for conflict in ("extend", "replace"):
                moved = outbox.publish(
                    n, queue="timers", timer_id="t", timer_conflict=conflict, activate_in=60
                )
                assert moved == timer
            assert outbox.cancel_timer(queue="timers", timer_id="t") is True
    make_letter()
    make_letter()

    assert OutboxMessage.objects.count() == 21
    assert DeadLetter.objects.filter(id__gt=0).replay(per_second=5).replayed == 2
    assert DeadLetter.objects.all().discard() == 0
    assert OutboxMessage.objects.count() == 23


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_moments_are_right_in_any_time_zone(
    settings: LazySettings, *, use_tz: bool, zone: str
) -> None:
    settings.USE_TZ = use_tz
    settings.TIME_ZONE = zone
    at = datetime(2100, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    with transaction.atomic():
        id_ = outbox.publish({}, queue="orders", activate_at=at, expires_in=60)

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM next_attempt_at)::float8,"
            " extract(epoch FROM expires_at)::float8,"
            " abs(extract(epoch FROM created_at - clock_timestamp())) < 60"
            " FROM django_outbox_message WHERE id = %s",
            [id_],
        )
        stored: tuple[Any, ...] = cursor.fetchone()
    assert stored == (FUTURE.timestamp(), FUTURE.timestamp() + 60, True)
