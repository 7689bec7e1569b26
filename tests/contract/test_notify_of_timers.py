"""A timer that a publish leaves as it was is announced to nobody, however like it that is."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from django_outbox import outbox

from .helpers import Listener, committed, database_clock

pytestmark = committed


@pytest.mark.parametrize("payload", [{}, {"n": 1}])
@pytest.mark.parametrize("ago", [0, 1, 3600])
def test_extending_to_the_stored_moment_in_the_same_correlation_is_silent(
    listener: Listener, ago: int, payload: object
) -> None:
    moment = database_clock() - timedelta(seconds=ago)
    options = {"timer_id": "t", "correlation_id": "checkout-7", "activate_at": moment}
    with transaction.atomic():
        outbox.publish({}, queue="orders", **options)  # type: ignore[arg-type]
    assert listener.heard() == ["orders"]

    with transaction.atomic():
        outbox.publish(payload, queue="orders", timer_conflict="extend", **options)  # type: ignore[arg-type]

    assert listener.heard() == []


def test_ignoring_it_in_the_same_correlation_is_silent(listener: Listener) -> None:
    options = {"timer_id": "t", "correlation_id": "checkout-7", "activate_at": database_clock()}
    for _ in range(2):
        with transaction.atomic():
            outbox.publish({}, queue="orders", **options)  # type: ignore[arg-type]

    assert listener.heard() == ["orders"]
