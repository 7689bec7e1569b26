"""The story of `manage.py demo`, one function for each act, in the order in which they are played.

What a worker does between two acts is waited for at the database: how many messages there are, how
many orders have been shipped. A step that takes longer than `PATIENCE` is a failure.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from django.core.management import call_command

from django_outbox.models import DeadLetter, OutboxMessage
from example_project.shop import services
from example_project.shop.carts import ABANDONED_AFTER
from example_project.shop.demo import carts, figures
from example_project.shop.demo.checks import Check, checks
from example_project.shop.demo.database import server_version
from example_project.shop.demo.processes import Processes
from example_project.shop.demo.screen import Screen
from example_project.shop.demo.selling import Sales, open_shop
from example_project.shop.models import Payment, Shipment
from example_project.shop.outbox_handlers import LEASE_TTL

WEBHOOKS = Path(__file__).parent.parent / "data" / "github-webhooks.jsonl"
ORDERS = 500
BURST = 2000
PINGS = 120
PATIENCE = 60.0
FIRST, SECOND = "first", "second"


class TooSlow(Exception):
    """A step has not come to its end in time."""


@dataclass
class Story:
    """What the acts hand on to each other."""

    screen: Screen
    processes: Processes
    began: float
    sales: Sales = field(init=False)
    worker: subprocess.Popen[bytes] = field(init=False)
    checks: list[Check] = field(default_factory=list)

    def wait_until(self, condition: Callable[[], bool], progress: Callable[[], str]) -> None:
        """Wait for what the worker does; notice if it ends."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.processes.check()
            if time.monotonic() > deadline:
                self.processes.keep_log()
                raise TooSlow(
                    f"{progress()}, and no more in {PATIENCE:g} s; see {self.processes.log}"
                )
            self.screen.progress(progress())
            time.sleep(0.01)

    def start_worker(self, worker_id: str) -> None:
        self.worker = self.processes.start("outbox_worker", "--no-reload", "--worker-id", worker_id)


def play(story: Story) -> bool:
    """Play all acts, and tell whether every check has passed."""
    create_the_tables(story)
    sell_with_a_worker(story)
    kill_the_worker(story)
    sell_without_a_worker(story)
    start_another(story)
    bury_the_poisoned(story)
    repair_and_replay(story)
    leave_a_cart(story)
    measure(story)
    return check_the_books(story)


def create_the_tables(story: Story) -> None:
    story.screen.title("A database of its own")
    took = time.perf_counter() - story.began
    call_command("migrate", verbosity=0)
    story.sales = open_shop()
    migrated = time.perf_counter() - story.began - took
    story.screen.say(
        f"PostgreSQL {server_version()} is up after {took:.1f} s, migrated in {migrated:.1f} s"
    )


def sell_with_a_worker(story: Story) -> None:
    story.screen.title("A shop and its worker")
    story.start_worker(FIRST)
    story.screen.say(f"outbox_worker runs as process {story.worker.pid}")
    _sell(story, ORDERS // 2)


def kill_the_worker(story: Story) -> None:
    story.screen.title("SIGKILL, in the middle of it")
    held = OutboxMessage.objects.filter(leased_by=FIRST)
    # Something is shipped, and something is in its hands.
    story.wait_until(
        lambda: Shipment.objects.count() > ORDERS // 20 and held.exists(),
        lambda: f"{Shipment.objects.count()} orders shipped",
    )
    story.processes.kill(story.worker)
    story.screen.say(
        f"process {story.worker.pid} is gone; it had shipped {Shipment.objects.count()} orders "
        f"and held {_of(held.count(), 'message')}"
    )


def sell_without_a_worker(story: Story) -> None:
    story.screen.title("The shop goes on without one")
    _sell(story, ORDERS - ORDERS // 2)
    output = StringIO()
    call_command("outbox_publish", str(WEBHOOKS), stdout=output, stderr=output)
    story.screen.say(f"outbox_publish {WEBHOOKS.name}: {output.getvalue().strip()}")


def start_another(story: Story) -> None:
    story.screen.title("Another worker takes over")
    began = time.perf_counter()
    held = OutboxMessage.objects.count()
    story.start_worker(SECOND)
    story.wait_until(
        lambda: not OutboxMessage.objects.exists(),
        lambda: (
            f"{Shipment.objects.count()} of {ORDERS} orders shipped, "
            f"{OutboxMessage.objects.count()} messages left"
        ),
    )
    story.screen.say(
        f"process {story.worker.pid}: all {held} messages are worked off in "
        f"{time.perf_counter() - began:.1f} s, leases of {LEASE_TTL:g} s included"
    )
    declined = Payment.objects.filter(attempt__gt=1).count()
    story.screen.say(f"the bank declined {_of(declined, 'payment')} at first; retries got them")


def bury_the_poisoned(story: Story) -> None:
    story.screen.title("Dead letters")
    letters = list(DeadLetter.objects.order_by("pk"))
    for letter in letters:
        exception = (letter.last_exception or "").strip().splitlines()
        story.screen.say(
            f"{letter.correlation_id}: {letter.failure_reason} after "
            f"{letter.attempts_count} attempts: {exception[0] if exception else ''}"
        )
    buried = {letter.correlation_id for letter in letters}
    poisoned = {f"order-{pk}" for pk in story.sales.poisoned}
    story.checks.append(
        Check(buried == poisoned, f"the {len(poisoned)} poisoned orders were buried, no others")
    )


def repair_and_replay(story: Story) -> None:
    services.correct_quantities()
    replayed = services.replay_orders()
    story.wait_until(
        lambda: not OutboxMessage.objects.exists(), lambda: f"{replayed} orders replayed"
    )
    shipped = Shipment.objects.filter(order__in=story.sales.poisoned).count()
    story.screen.say(f"their quantities corrected, {replayed} replayed, {shipped} shipped")


def leave_a_cart(story: Story) -> None:
    story.screen.title("A timer that every touch puts off")
    carts.check_one_out(story.sales)
    touched_at = carts.abandon_one(story.sales, story.screen.progress)
    [cart] = story.sales.abandoned
    patience = ABANDONED_AFTER.total_seconds()
    story.wait_until(
        lambda: not OutboxMessage.objects.exists(), lambda: "the cart waits to be touched"
    )
    story.screen.say(
        f"a cart was touched {cart.pieces} times, "
        f"each time its reminder was put off by {patience:g} s"
    )
    story.screen.say(
        f"it came once, {carts.lateness(cart, touched_at):.0f} ms after the last deadline; "
        "a cart checked out got none"
    )


def measure(story: Story) -> None:
    story.screen.title(f"Figures, on {_of(os.cpu_count() or 1, 'processor')}")

    def until_empty() -> None:
        story.wait_until(
            lambda: not OutboxMessage.objects.exists(),
            lambda: f"{OutboxMessage.objects.count():,} of {BURST:,} left",
        )

    rate = figures.throughput(BURST, until_empty)
    story.screen.say(f"{BURST:,} messages at once, a row written for each: {rate:,.0f} a second")
    took = figures.latency(_counted(story, PINGS), until_empty)
    story.screen.say(
        f"one at a time, from COMMIT to handler: p50 {took.p50:.1f} ms, p99 {took.p99:.1f} ms "
        f"of {took.count}"
    )


def check_the_books(story: Story) -> bool:
    story.screen.title("The books")
    webhooks = sum(1 for _ in WEBHOOKS.open("rb"))
    story.checks += checks(story.sales, webhooks, BURST + PINGS)
    for check in story.checks:
        story.screen.verdict(good=check.good, text=check.text)
    failed = sum(not check.good for check in story.checks)
    verdict = f"{failed} of {len(story.checks)} failed" if failed else "All is well"
    seconds = time.perf_counter() - story.began
    story.screen.end(good=not failed, text=f"{verdict}, after {seconds:.0f} s")
    if not failed:
        story.screen.say(f"See it in a browser: {serve_command()}")
    return not failed


def serve_command() -> str:
    """Return what to type to open the shop: through tox where tox has the only environment."""
    if "TOX_ENV_NAME" in os.environ:
        return "python3 -m tox run -e demo -- --serve"
    return "python manage.py demo --serve"


def _sell(story: Story, count: int) -> None:
    rolled_back = len(story.sales.rolled_back)
    began = time.perf_counter()
    for placed in story.sales.sell(count):
        story.screen.progress(f"{placed} of {count} orders placed")
    took = time.perf_counter() - began
    story.screen.say(
        f"{count} orders placed in {took:.1f} s, "
        f"{len(story.sales.rolled_back) - rolled_back} more rolled back on purpose"
    )


def _counted(story: Story, count: int) -> Iterator[int]:
    for done in range(count):
        story.screen.progress(f"{done} of {count} sent to an idle worker")
        yield done


def _of(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
