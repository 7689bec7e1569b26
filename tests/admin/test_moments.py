"""Moments on the pages, in any time zone and without any."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_outbox import outbox
from django_outbox.admin import details
from django_outbox.models import DeadLetter, OutboxMessage

pytestmark = pytest.mark.django_db

ADMIN = "admin:django_outbox_"


@pytest.mark.parametrize(
    ("moment", "in_words"),
    [
        ("infinity", "never"),
        ("9999-12-31 23:59:59Z", "never"),
        ("-infinity", "before all time"),
        ("0001-01-01 00:00:00Z", "before all time"),
        ("2100-06-01 06:00:00Z", "2100-06-01"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/New_York"])
@pytest.mark.parametrize("use_tz", [True, False])
def test_any_moment_shows_in_any_time_zone(
    superuser: Client,
    make_letter: Callable[..., DeadLetter],
    settings: LazySettings,
    *,
    moment: str,
    in_words: str,
    zone: str,
    use_tz: bool,
) -> None:
    settings.TIME_ZONE = zone
    settings.USE_TZ = use_tz
    letter, message = make_letter(), outbox.publish({}, queue="orders")
    with connection.cursor() as cursor:
        for table, column in (("dead_letter", "failed_at"), ("message", "next_attempt_at")):
            cursor.execute(f"UPDATE django_outbox_{table} SET {column} = %s", [moment])
    assert DeadLetter.objects.count() == OutboxMessage.objects.count() == 1

    for url in (
        reverse(f"{ADMIN}deadletter_changelist"),
        reverse(f"{ADMIN}deadletter_failing"),
        reverse(f"{ADMIN}deadletter_change", args=[letter.pk]),
        reverse(f"{ADMIN}outboxmessage_changelist"),
        reverse(f"{ADMIN}outboxmessage_change", args=[message]),
    ):
        response = superuser.get(url)
        assert response.status_code == 200
        assert in_words in response.content.decode()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (59.6, "1 min"),
        (100, "1 min 40 s"),
        (7_200, "2 h"),
        (90_061, "1 d 1 h"),
        (86_405, "1 d 5 s"),
    ],
)
def test_a_precise_length_of_time_has_two_units(seconds: float, shown: str) -> None:
    assert details.precise(timedelta(seconds=seconds)) == shown
