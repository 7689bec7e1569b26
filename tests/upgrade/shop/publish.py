"""Publish orders of these numbers, and one message of each other kind; say by which package."""

from __future__ import annotations

import sys
from datetime import timedelta

import django
from django.db import transaction


def main(first: int, last: int) -> None:
    import django_outbox
    from django_outbox import outbox

    sys.stdout.write(str(django_outbox.__file__))
    for number in range(first, last):
        with transaction.atomic():
            outbox.publish(f"order {number:04}", queue="orders")
    with transaction.atomic():
        outbox.publish(
            "single",
            queue="checked",
            headers={"kind": "x"},
            correlation_id="c1",
            expires_in=timedelta(hours=1),
            max_attempts=3,
        )
        outbox.publish("waits", queue="checked", timer_id="t1", activate_in=timedelta(hours=1))
        outbox.publish(
            "moved", queue="checked", timer_id="t1", timer_conflict="replace", correlation_id="c2"
        )
        outbox.publish_many(["many"] * 2, queue="refused")


if __name__ == "__main__":
    django.setup()
    main(*map(int, sys.argv[1:]))
