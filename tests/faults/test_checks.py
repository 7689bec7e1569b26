"""Each check of the fault suite finds what it is there to find, and nothing in a sound ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.faults import checks
from tests.faults.checks import balance, judge
from tests.faults.ledger import (
    Breach,
    Delivery,
    Ledger,
    Letter,
    Publication,
    Removed,
    Rhythm,
    Stored,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def sound() -> Ledger:
    """Return a ledger in which every promise was kept.

    1 is plain and delivered twice, 2 atomic, 3 failing and buried, 4 a cancelled timer, 5 a relay
    and 6 its answer, 7 and 8 boundaries, 9 a timer that was extended before it was delivered.
    """
    return Ledger(
        publications=[
            Publication("a", "plain", 1, NOON),
            Publication("b", "atomic", 2, NOON),
            Publication("c", "failing", 3, NOON),
            Publication("d", "timer", 4, NOON + 3 * SECOND),
            Publication("e", "relay", 5, NOON),
            Publication("f", "timer", None, NOON),
            Publication("g", "timer", 9, NOON + 3 * SECOND),
            Publication("h", "timer", 9, NOON + 4 * SECOND),
        ],
        cancelled=[4],
        deliveries=[
            delivery("a", 1, "plain"),
            delivery("a", 1, "plain"),
            delivery("b", 2, "atomic"),
            delivery("c", 3, "failing", done=False),
            delivery("e", 5, "relay"),
            delivery("e/relayed", 6, "relayed"),
            delivery("second 1", 7, "scheduled"),
            delivery("second 2", 8, "scheduled"),
            delivery("h", 9, "timer", at=NOON + 4 * SECOND),
        ],
        stored=[
            Stored(1, "plain", "a", None, None),
            Stored(2, "atomic", "b", None, None),
            Stored(3, "failing", "c", None, None),
            Stored(4, "timer", "d", None, None),
            Stored(5, "relay", "e", None, None),
            Stored(6, "relayed", "e/relayed", None, None),
            Stored(7, "scheduled", None, "second", NOON),
            Stored(8, "scheduled", None, "second", NOON + SECOND),
            Stored(9, "timer", "g", None, None),
            Stored(9, "timer", "h", None, None),
        ],
        removed=[
            *(Removed(id_, had_lease=True) for id_ in (1, 2, 3, 5, 6, 7, 8, 9)),
            Removed(4, had_lease=False),
        ],
        letters=[Letter(3, "retry_terminal", 3)],
        rhythms=[Rhythm("second", NOON + 2 * SECOND, 0)],
        first_boundaries={"second": NOON},
        acknowledged={"a", "b", "c", "d", "e", "f", "g"},
        rolled_back={"z"},
    )


def delivery(
    key: str, id_: int, queue: str, *, done: bool = True, intact: bool = True, at: datetime = NOON
) -> Delivery:
    return Delivery(key, id_, queue, done, intact, at)


def found(ledger: Ledger, check: checks.Check) -> list[str]:
    return list(check(ledger))


def test_a_sound_ledger_passes_every_check() -> None:
    findings = judge(sound())

    assert len(findings) == 13
    assert [finding.violations for finding in findings] == [[]] * 13


def test_the_balance_counts_every_message_once() -> None:
    assert balance(sound()) == {
        "published": 9,
        "delivered": 7,
        "dead": 1,
        "pending": 0,
        "cancelled": 1,
    }


def forget_an_acknowledged_commit(ledger: Ledger) -> None:
    ledger.acknowledged.add("lost")


def keep_what_was_rolled_back(ledger: Ledger) -> None:
    ledger.rolled_back.add("a")


def lose_the_message_of_a_row(ledger: Ledger) -> None:
    ledger.stored = [stored for stored in ledger.stored if stored.key != "a"]


def store_a_message_without_its_row(ledger: Ledger) -> None:
    ledger.stored.append(Stored(10, "plain", "phantom", None, None))


def deliver_what_was_never_committed(ledger: Ledger) -> None:
    ledger.deliveries.append(delivery("z", 10, "plain"))


def deliver_a_message_never(ledger: Ledger) -> None:
    ledger.deliveries = [one for one in ledger.deliveries if one.key != "a"]


def deliver_a_schedules_message_never(ledger: Ledger) -> None:
    ledger.deliveries = [one for one in ledger.deliveries if one.message_id != 7]


def deliver_a_timer_with_its_old_content_only(ledger: Ledger) -> None:
    ledger.deliveries = [
        one._replace(key="g") if one.key == "h" else one for one in ledger.deliveries
    ]


def repeat_an_atomic_effect(ledger: Ledger) -> None:
    ledger.deliveries.append(delivery("b", 2, "atomic"))


def miss_an_atomic_effect(ledger: Ledger) -> None:
    ledger.deliveries = [one for one in ledger.deliveries if one.key != "b"]


def keep_the_effect_of_a_message_still_there(ledger: Ledger) -> None:
    ledger.live.append(2)


def answer_twice(ledger: Ledger) -> None:
    ledger.stored.append(Stored(10, "relayed", "e/relayed", None, None))


def lease_twice(ledger: Ledger) -> None:
    ledger.breaches.append(Breach(1, "leased while another lease stood", NOON))


def lease_early(ledger: Ledger) -> None:
    ledger.breaches.append(Breach(1, "leased before it was due", NOON))


def charge_for_an_outage(ledger: Ledger) -> None:
    ledger.breaches.append(Breach(1, "charged an attempt", NOON))


def bury_for_another_reason(ledger: Ledger) -> None:
    ledger.letters = [Letter(3, "max_deliveries", 3)]


def deliver_too_early(ledger: Ledger) -> None:
    ledger.deliveries = [
        one._replace(at=NOON + 3 * SECOND) if one.key == "h" else one for one in ledger.deliveries
    ]


def miss_a_boundary(ledger: Ledger) -> None:
    ledger.stored = [one for one in ledger.stored if one.boundary != NOON]


def fire_a_boundary_twice(ledger: Ledger) -> None:
    ledger.stored.append(Stored(10, "scheduled", None, "second", NOON))


def fire_between_boundaries(ledger: Ledger) -> None:
    ledger.stored.append(Stored(10, "scheduled", None, "second", NOON + SECOND / 2))


def fire_for_nobody(ledger: Ledger) -> None:
    ledger.stored.append(Stored(10, "scheduled", None, "unknown", NOON))


def bury_what_should_be_delivered(ledger: Ledger) -> None:
    ledger.letters.append(Letter(1, "max_deliveries", 0))


def bury_too_soon(ledger: Ledger) -> None:
    ledger.letters = [Letter(3, "retry_terminal", 2)]


def bury_twice(ledger: Ledger) -> None:
    ledger.letters *= 2


def lose_a_letter(ledger: Ledger) -> None:
    ledger.letters.clear()


def lose_a_message(ledger: Ledger) -> None:
    ledger.removed = [one for one in ledger.removed if one.message_id != 1]


def remove_a_message_twice(ledger: Ledger) -> None:
    ledger.removed.append(Removed(1, had_lease=True))


def remove_a_message_that_waits(ledger: Ledger) -> None:
    ledger.removed = [replace_lease(one) if one.message_id == 1 else one for one in ledger.removed]


def replace_lease(removed: Removed) -> Removed:
    return removed._replace(had_lease=False)


def forget_a_cancellation(ledger: Ledger) -> None:
    ledger.cancelled.clear()


def spoil_a_payload(ledger: Ledger) -> None:
    ledger.deliveries[0] = delivery("a", 1, "plain", intact=False)


def leave_a_message(ledger: Ledger) -> None:
    ledger.live.append(1)


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        (forget_an_acknowledged_commit, checks.acknowledged),
        (keep_what_was_rolled_back, checks.acknowledged),
        (lose_the_message_of_a_row, checks.with_the_transaction),
        (store_a_message_without_its_row, checks.with_the_transaction),
        (deliver_what_was_never_committed, checks.nothing_uncommitted),
        (deliver_a_message_never, checks.at_least_once),
        (deliver_a_schedules_message_never, checks.at_least_once),
        (deliver_a_timer_with_its_old_content_only, checks.at_least_once),
        (repeat_an_atomic_effect, checks.exactly_once),
        (miss_an_atomic_effect, checks.exactly_once),
        (keep_the_effect_of_a_message_still_there, checks.exactly_once),
        (answer_twice, checks.exactly_once),
        (lease_twice, checks.leases),
        (lease_early, checks.leases),
        (charge_for_an_outage, checks.nobody_charged),
        (deliver_too_early, checks.never_early),
        (miss_a_boundary, checks.boundaries),
        (fire_a_boundary_twice, checks.boundaries),
        (fire_between_boundaries, checks.boundaries),
        (fire_for_nobody, checks.boundaries),
        (bury_what_should_be_delivered, checks.dead_letters),
        (bury_for_another_reason, checks.dead_letters),
        (bury_too_soon, checks.dead_letters),
        (bury_twice, checks.dead_letters),
        (lose_a_letter, checks.dead_letters),
        (lose_a_message, checks.conservation),
        (remove_a_message_twice, checks.conservation),
        (remove_a_message_that_waits, checks.conservation),
        (forget_a_cancellation, checks.conservation),
        (spoil_a_payload, checks.unchanged),
        (leave_a_message, checks.drained),
    ],
)
def test_a_check_finds_its_violation(spoil: Callable[[Ledger], None], check: checks.Check) -> None:
    ledger = sound()
    assert found(ledger, check) == []

    spoil(ledger)

    assert found(ledger, check) != []


def test_boundaries_that_were_counted_as_passed_over_are_not_missing() -> None:
    ledger = sound()
    miss_a_boundary(ledger)
    ledger.rhythms = [ledger.rhythms[0]._replace(skipped=1)]

    assert found(ledger, checks.boundaries) == []


def test_a_commit_whose_answer_was_lost_is_judged_by_its_row() -> None:
    ledger = replace(sound(), acknowledged=set())
    assert all(not finding.violations for finding in judge(ledger))

    deliver_a_message_never(ledger)

    assert found(ledger, checks.at_least_once) == ["a was never delivered as 1"]
