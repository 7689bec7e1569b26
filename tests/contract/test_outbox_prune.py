"""`outbox_prune`: old dead letters and counters go, and nothing else."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from django_outbox import outbox
from django_outbox.models import Counter, DeadLetter, OutboxMessage, Worker
from tests.support import committed, session

from .helpers import database_clock

pytestmark = pytest.mark.django_db

MakeLetter = Callable[..., DeadLetter]


def prune(*arguments: str, verbosity: int = 1) -> str:
    said = io.StringIO()
    call_command("outbox_prune", *arguments, stdout=said, verbosity=verbosity)
    return said.getvalue()


@pytest.fixture
def letters(make_letter: MakeLetter) -> None:
    """Have letters that failed 1, 2 and 3 days ago, less a minute."""
    for days in (1, 2, 3):
        letter = make_letter(queue="orders")
        failed_at = database_clock() - timedelta(days=days) + timedelta(minutes=1)
        DeadLetter.objects.filter(pk=letter.pk).update(failed_at=failed_at)


@pytest.mark.parametrize(
    ("duration", "deleted"), [("1d", 2), ("48h", 1), ("4000m", 1), ("2w", 0), ("60s", 3)]
)
@pytest.mark.usefixtures("letters")
def test_letters_that_are_older_are_deleted(duration: str, deleted: int) -> None:
    assert prune("--dead-older-than", duration) == f"Deleted {deleted} dead letter(s).\n"

    assert DeadLetter.objects.count() == 3 - deleted


@pytest.mark.usefixtures("letters")
def test_a_dry_run_says_how_many_and_deletes_none() -> None:
    Counter.objects.create(minute=database_clock() - timedelta(days=9), queue="orders")

    said = prune("--dead-older-than", "1d", "--dry-run")

    assert said == "Would delete 2 dead letter(s).\n"
    assert (DeadLetter.objects.count(), Counter.objects.count()) == (3, 1)


@pytest.mark.usefixtures("letters")
def test_without_an_age_no_letter_is_touched() -> None:
    assert prune() == (
        "Deleted 0 old counter(s). Without --dead-older-than no dead letter is touched.\n"
    )
    assert DeadLetter.objects.count() == 3


@pytest.mark.usefixtures("letters")
def test_with_verbosity_0_it_says_nothing() -> None:
    assert prune("--dead-older-than", "1d", verbosity=0) == ""


def test_counters_and_silent_workers_of_more_than_a_day_ago_are_deleted() -> None:
    now = database_clock()
    for hours in (1, 23, 25, 1000):
        moment = now - timedelta(hours=hours)
        Counter.objects.create(minute=moment, queue="orders")
        Worker.objects.create(
            id=f"00000000-0000-0000-0000-{hours:012}",
            worker_id=f"w{hours}",
            kind="worker",
            host="h",
            pid=1,
            last_seen_at=moment,
        )

    prune()

    assert Counter.objects.count() == 2
    assert set(Worker.objects.values_list("worker_id", flat=True)) == {"w1", "w23"}


@committed
def test_what_another_is_deleting_at_that_moment_is_not_waited_for() -> None:
    # K09
    for hours in (48, 49):
        Counter.objects.create(minute=database_clock() - timedelta(hours=hours), queue="orders")
    with session() as other, other.transaction():
        other.execute("SET LOCAL idle_in_transaction_session_timeout = '5s'")
        other.execute(
            "DELETE FROM django_outbox_counter"
            " WHERE id = (SELECT min(id) FROM django_outbox_counter)"
        )

        prune()

        assert Counter.objects.count() == 1  # the one that the other has not deleted yet
    assert not Counter.objects.exists()


def test_messages_are_left_alone() -> None:
    outbox.publish({}, queue="orders", activate_at=database_clock() - timedelta(days=99))

    prune("--dead-older-than", "1d")

    assert OutboxMessage.objects.count() == 1


@pytest.mark.parametrize("text", ["1", "d", "1.5d", "-1d", "01d", "1 d", "1y", "1D"])
def test_what_is_no_duration_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(CommandError, match="is no duration; write a whole number"):
        prune(f"--dead-older-than={text}")


@pytest.mark.parametrize("text", ["0d", "1000000d", "99999999999w"])
def test_a_duration_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(CommandError, match=r"is out of range; .* from 1 to 999,999"):
        prune("--dead-older-than", text)
