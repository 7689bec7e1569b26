"""Dead letters partitioned as the how-to says are buried, replayed, pruned and shown as before."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from django_outbox import handlers, outbox
from django_outbox.messages import ReplayResult
from django_outbox.models import DeadLetter, OutboxMessage
from django_outbox.testing import drain
from tests.contract.helpers import database_clock

pytestmark = pytest.mark.django_db

MakeLetter = Callable[..., DeadLetter]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "partition-dead-letters.md"
FORWARD, MONTHS, DROP, BACK = re.findall(r"(?ms)^```postgresql\n(.*?)^```$", PAGE.read_text())
TABLE = "django_outbox_dead_letter"
LETTERS = "/admin/django_outbox/deadletter/"


def run(*scripts: str) -> None:
    with connection.cursor() as cursor:
        for script in scripts:
            cursor.execute(script)


def partitions() -> dict[str, int]:
    """Return how many letters each partition has."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            f" WHERE inhparent = '{TABLE}'::regclass ORDER BY 1"
        )
        found = [name for (name,) in cursor.fetchall()]
        counts = {}
        for name in found:
            cursor.execute(f"SELECT count(*) FROM {name}")
            counts[name.removeprefix(f"{TABLE}_")] = cursor.fetchone()[0]
    return counts


@pytest.fixture
def letter(make_letter: MakeLetter) -> DeadLetter:
    """Have the table partitioned when there is a letter already."""
    kept = make_letter(queue="orders")
    run(FORWARD, MONTHS)
    return kept


def in_months(months: int) -> str:
    """Return the year and the month so many months from now, as partitions are named."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC'"
            " + %s * interval '1 month', 'YYYY_MM')",
            [months],
        )
        name: str = cursor.fetchone()[0]
    return name


def test_letters_stay_and_months_are_made_once(letter: DeadLetter) -> None:
    run(MONTHS)

    assert partitions() == {"first": 1, "rest": 0, **{in_months(n): 0 for n in (1, 2, 3)}}
    assert DeadLetter.objects.get() == letter


def test_messages_are_buried_and_replayed(letter: DeadLetter, registry: handlers.Registry) -> None:
    @outbox.handler("orders")
    def reject(payload: object) -> None:
        raise outbox.Reject("no")

    outbox.publish(1, queue="orders")
    drain("orders")

    buried = DeadLetter.objects.exclude(pk=letter.pk).get()
    assert buried.pk > letter.pk
    assert partitions()["first"] == 2
    assert DeadLetter.objects.filter(pk=buried.pk).replay() == ReplayResult(replayed=1)
    assert DeadLetter.objects.get() == letter
    assert OutboxMessage.objects.get().message_id == buried.message_id


def test_old_letters_are_pruned_and_months_dropped(letter: DeadLetter) -> None:
    failed_at = database_clock() - timedelta(days=90)
    DeadLetter.objects.filter(pk=letter.pk).update(failed_at=failed_at)
    said = io.StringIO()

    call_command("outbox_prune", "--dead-older-than", "30d", stdout=said)
    run(DROP.replace("2026_01", in_months(1)))

    assert "Deleted 1 dead letter(s).\n" in said.getvalue()
    assert not DeadLetter.objects.exists()
    assert sorted(partitions()) == sorted(["first", "rest", in_months(2), in_months(3)])


def test_the_admin_shows_them(letter: DeadLetter, superuser: Client) -> None:
    for page in ("", "failing/", f"{letter.pk}/change/", "?q=orders"):
        response = superuser.get(LETTERS + page)
        assert response.status_code == 200, page
        assert b"orders" in response.content
    assert superuser.get("/admin/django_outbox/").status_code == 200


def test_the_check_finds_nothing_wrong_with_the_wider_primary_key(letter: DeadLetter) -> None:
    outbox.validate_schema()


def test_the_way_back_leaves_the_table_as_it_was(letter: DeadLetter) -> None:
    run(BACK)

    outbox.validate_schema()
    assert DeadLetter.objects.get() == letter
    assert partitions() == {}
    assert (
        DeadLetter.objects.create(
            original_id=1,
            message_id=letter.message_id,
            queue="orders",
            payload=b"",
            correlation_id="",
            created_at=letter.created_at,
            failure_reason="rejected",
        ).pk
        > letter.pk
    )
