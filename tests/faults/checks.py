"""The checks: each is one promise, and gives what breaks it. None of them knows of a database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from tests.faults.ledger import Ledger, Rhythm
from tests.faults.queues import ATTEMPTS, BURIALS, EXACTLY_ONCE, RELAYED

Check = Callable[[Ledger], Iterator[str]]

STEPS = {
    "second": timedelta(seconds=1),
    "five seconds": timedelta(seconds=5),
    "minute": timedelta(minutes=1),
}

TWO_LEASES = "leased while another lease stood"
EARLY_LEASE = "leased before it was due"
CHARGED = "charged an attempt"
"""What the triggers of the ledger call a breach."""


class Finding(NamedTuple):
    """A promise with all that breaks it."""

    promise: str
    violations: list[str]


CHECKS: dict[str, Check] = {}


def check(promise: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        CHECKS[promise] = function
        return function

    return register


def judge(ledger: Ledger) -> list[Finding]:
    """Return what each check says."""
    return [Finding(promise, list(found(ledger))) for promise, found in CHECKS.items()]


@check("What the server acknowledged is stored, and what was rolled back is not")
def acknowledged(ledger: Ledger) -> Iterator[str]:
    stored = {publication.key for publication in ledger.publications}
    for key in sorted(ledger.acknowledged - stored):
        yield f"{key} was acknowledged and is gone"
    for key in sorted(ledger.rolled_back & stored):
        yield f"{key} was rolled back and is there"


@check("A message exists if and only if its business row does")
def with_the_transaction(ledger: Ledger) -> Iterator[str]:
    contents = {stored.key: stored.message_id for stored in ledger.stored}
    messages = {stored.message_id for stored in ledger.stored}
    published = {publication.key for publication in ledger.publications}
    for one in ledger.publications:
        # A timer that is extended to no later moment keeps its content.
        is_kept = one.kind == "timer" and one.message_id in messages
        if one.message_id is not None and one.message_id != contents.get(one.key) and not is_kept:
            yield f"{one.key} was committed without its message {one.message_id}"
    for key in _keys_of_publishers(stored.key for stored in ledger.stored):
        if key not in published:
            yield f"{key} is a message whose business row was not committed"


@check("Nothing of a transaction that rolled back is ever delivered")
def nothing_uncommitted(ledger: Ledger) -> Iterator[str]:
    stored = {(one.message_id, one.key) for one in ledger.stored}
    for delivery in ledger.deliveries:
        key = None if delivery.queue == "scheduled" else delivery.key
        if (delivery.message_id, key) not in stored:
            yield f"{delivery.key} was delivered as {delivery.message_id}, and was never committed"


@check("Every committed message is delivered at least once")
def at_least_once(ledger: Ledger) -> Iterator[str]:
    excused = {*ledger.cancelled, *ledger.live, *(letter.message_id for letter in ledger.letters)}
    done = {(one.message_id, one.key) for one in ledger.deliveries if one.done}
    done_messages = {message_id for message_id, _ in done}
    for message_id, stored in _last_contents(ledger).items():
        if message_id in excused:
            continue
        if stored is None and message_id not in done_messages:
            yield f"message {message_id} of a schedule was never delivered"
        elif stored is not None and (message_id, stored) not in done:
            yield f"{stored} was never delivered as {message_id}"


@check("Atomic effects happen exactly once")
def exactly_once(ledger: Ledger) -> Iterator[str]:
    effects = Counter(one.key for one in ledger.deliveries if one.queue in EXACTLY_ONCE)
    excused = {*ledger.live, *(letter.message_id for letter in ledger.letters)}
    stored = {one.key: one.message_id for one in ledger.stored if one.queue in EXACTLY_ONCE}
    for key, message_id in stored.items():
        wanted = 0 if message_id in excused else 1
        if effects[key or ""] != wanted:
            yield f"{key} has taken effect {effects[key or '']} times instead of {wanted}"
    relayed = Counter(one.key for one in ledger.stored if one.queue == "relayed")
    for one in ledger.stored:
        if one.queue == "relay" and relayed[f"{one.key}{RELAYED}"] != effects[one.key or ""]:
            yield f"{one.key} was answered {relayed[f'{one.key}{RELAYED}']} times"


@check("No message has two live leases, and none is leased before it is due")
def leases(ledger: Ledger) -> Iterator[str]:
    yield from _breaches(ledger, TWO_LEASES, EARLY_LEASE)


@check("No attempt is charged for what a fault did")
def nobody_charged(ledger: Ledger) -> Iterator[str]:
    yield from _breaches(ledger, CHARGED)


@check("No message is delivered before its time")
def never_early(ledger: Ledger) -> Iterator[str]:
    due = {publication.key: publication.due_at for publication in ledger.publications}
    for delivery in ledger.deliveries:
        due_at = due.get(delivery.key)
        if due_at is not None and delivery.at < due_at:
            early = (due_at - delivery.at).total_seconds()
            yield f"{delivery.key} was delivered {early:.3f} s early"


@check("Every boundary of a schedule is fired exactly once")
def boundaries(ledger: Ledger) -> Iterator[str]:
    fired: dict[str, list[datetime]] = defaultdict(list)
    for stored in ledger.stored:
        if stored.schedule is not None and stored.boundary is not None:
            fired[stored.schedule].append(stored.boundary)
    for rhythm in ledger.rhythms:
        expected = _until(rhythm.next_run_at, ledger.first_boundaries[rhythm.schedule], rhythm)
        counts = Counter(fired.pop(rhythm.schedule, []))
        missing = [moment for moment in expected if moment not in counts]
        if len(missing) != rhythm.skipped:
            yield f"{rhythm.schedule!r} missed {len(missing)} boundaries, counted {rhythm.skipped}"
        for moment, count in counts.items():
            if count != 1:
                yield f"{rhythm.schedule!r} fired {moment:%H:%M:%S} {count} times"
            if moment not in expected:
                yield f"{rhythm.schedule!r} fired {moment:%H:%M:%S.%f}, which is no boundary"
    for schedule in fired:
        yield f"{schedule!r} fired and is no schedule"


@check("Dead letters are those that must be, for the right reason, after the right attempts")
def dead_letters(ledger: Ledger) -> Iterator[str]:
    queues = {stored.message_id: stored.queue for stored in ledger.stored}
    letters = {letter.message_id: letter for letter in ledger.letters}
    for message_id, count in Counter(one.message_id for one in ledger.letters).items():
        if count > 1:
            yield f"message {message_id} has {count} dead letters"
    for message_id, queue in queues.items():
        letter = letters.get(message_id)
        if queue in BURIALS and message_id not in ledger.live:
            if letter is None or letter.reason != BURIALS[queue]:
                yield f"message {message_id} of {queue!r} ended as {letter}"
            elif queue == "failing" and letter.attempts != ATTEMPTS:
                yield f"message {message_id} was buried after {letter.attempts} attempts"
        elif letter is not None and (queue, letter.reason) != ("expiring", "expired"):
            yield f"message {message_id} of {queue!r} was buried as {letter.reason}"


@check("Conservation: published = delivered + dead + pending + cancelled")
def conservation(ledger: Ledger) -> Iterator[str]:
    ways = {
        "live": Counter(ledger.live),
        "removed": Counter(one.message_id for one in ledger.removed),
    }
    stored = {one.message_id for one in ledger.stored}
    for message_id in sorted(stored | set(ways["live"]) | set(ways["removed"])):
        found = {way: counts[message_id] for way, counts in ways.items() if counts[message_id]}
        if sum(found.values()) != 1 or message_id not in stored:
            yield f"message {message_id} is accounted for by {found or 'nothing'}"
    cancelled, unleased = (
        Counter(ledger.cancelled),
        {one.message_id for one in ledger.removed if not one.had_lease},
    )
    for message_id in sorted({*cancelled} ^ unleased):
        yield f"message {message_id} was cancelled in one book only"
    counts = balance(ledger)
    if counts["published"] != sum(n for name, n in counts.items() if name != "published"):
        yield f"the sums differ: {counts}"


@check("What was published is what arrives")
def unchanged(ledger: Ledger) -> Iterator[str]:
    for delivery in ledger.deliveries:
        if not delivery.intact:
            yield f"{delivery.key} did not arrive as it was sent"


@check("At the end nothing is left")
def drained(ledger: Ledger) -> Iterator[str]:
    for message_id in ledger.live:
        yield f"message {message_id} is still in the outbox"


def balance(ledger: Ledger) -> dict[str, int]:
    """Return how many messages were published, and what became of them, each counted once."""
    done = {delivery.message_id for delivery in ledger.deliveries if delivery.done}
    dead = {letter.message_id for letter in ledger.letters}
    cancelled, live = set(ledger.cancelled), set(ledger.live)
    return {
        "published": len({stored.message_id for stored in ledger.stored}),
        "delivered": len(done - dead - cancelled - live),
        "dead": len(dead),
        "pending": len(live),
        "cancelled": len(cancelled),
    }


def _breaches(ledger: Ledger, *kinds: str) -> Iterator[str]:
    for breach in ledger.breaches:
        if breach.what in kinds:
            yield f"message {breach.message_id} was {breach.what}, at {breach.at:%H:%M:%S.%f}"


def _keys_of_publishers(keys: Iterable[str | None]) -> Iterator[str]:
    """Yield the keys that publishers have given, and the parents of those that handlers have."""
    for key in keys:
        if key is not None:
            yield key.removesuffix(RELAYED)


def _last_contents(ledger: Ledger) -> dict[int, str | None]:
    """Return what each message held at last; a schedule's holds nothing."""
    return {stored.message_id: stored.key for stored in ledger.stored}


def _until(end: datetime, first: datetime, rhythm: Rhythm) -> set[datetime]:
    """Return the boundaries before `end`."""
    step = STEPS[rhythm.schedule]
    count = max(0, -((first - end) // step))
    return {first + n * step for n in range(count)}
