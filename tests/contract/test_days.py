"""A day is 24 hours, whatever the clocks of the session's time zone do in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connections, transaction

from django_outbox import outbox

from .helpers import PATIENCE, committed

pytestmark = committed

DAY = 24 * 60 * 60
DAYS_OF_A_YEAR = range(30, 361, 30)
"""Whatever today is, some of these end on the other side of a change of the clocks."""


@pytest.fixture(params=["the database's zone", "the project's zone"])
def new_york(
    request: pytest.FixtureRequest, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Have the session's clocks change as in New York, by either setting that does it."""
    wrapper = connections["default"]

    def reconnect() -> None:
        wrapper.close()
        for name in ("timezone", "timezone_name"):
            vars(wrapper).pop(name, None)

    if request.param == "the project's zone":
        settings.USE_TZ = False
        settings.TIME_ZONE = "America/New_York"
    else:
        monkeypatch.setitem(wrapper.settings_dict, "TIME_ZONE", "America/New_York")
    reconnect()
    with wrapper.cursor() as cursor:
        cursor.execute("SHOW TimeZone")
        assert cursor.fetchone() == ("America/New_York",)
    yield
    monkeypatch.undo()
    reconnect()


def publish(**options: Any) -> None:
    outbox.publish({}, queue="orders", **options)


def publish_many(**options: Any) -> None:
    outbox.publish_many([{}], queue="orders", **options)


def extend(**options: Any) -> None:
    publish(timer_id="t")
    publish(timer_id="t", timer_conflict="extend", **options)


def replace(**options: Any) -> None:
    publish(timer_id="t", activate_in=timedelta(days=1))
    publish(timer_id="t", timer_conflict="replace", **options)


def stored() -> tuple[float, float]:
    """Return the seconds from now to the deadline, and from there to the expiry."""
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM next_attempt_at)::float8"
            " - extract(epoch FROM clock_timestamp())::float8,"
            " extract(epoch FROM expires_at)::float8"
            " - extract(epoch FROM next_attempt_at)::float8"
            " FROM django_outbox_message"
        )
        row: tuple[float, float] = cursor.fetchone()
        return row


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize("way", [publish, publish_many, extend, replace])
def test_days_of_delay_and_of_life_are_days_of_24_hours(way: Callable[..., None]) -> None:
    for days in DAYS_OF_A_YEAR:
        with transaction.atomic():
            way(activate_in=timedelta(days=days), expires_in=timedelta(days=days))
            until_due, life = stored()
            transaction.set_rollback(True)

        assert days * DAY - PATIENCE < until_due <= days * DAY
        assert life == pytest.approx(days * DAY, abs=0.001)
