"""`outbox_worker`: its options, and what it refuses before it starts."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_outbox import handlers, outbox
from django_outbox.management.commands import outbox_worker
from django_outbox.models import OutboxMessage
from tests.support import committed, publish, publish_many

pytestmark = [committed, pytest.mark.usefixtures("served")]


@pytest.fixture
def served(registry: handlers.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command see the handlers of the test only."""
    monkeypatch.setattr(outbox_worker, "registry", registry)


@pytest.fixture
def handled() -> list[tuple[str, Any]]:
    """What the handler of three queues has got so far."""
    handled: list[tuple[str, Any]] = []

    @outbox.handler("urgent", "normal", "bulk")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append((message.queue, message.payload))

    return handled


def run(*arguments: str) -> int:
    """Run the command and return its exit code."""
    try:
        call_command("outbox_worker", "--drain", "--verbosity", "0", *arguments)
    except SystemExit as ended:
        return int(str(ended.code))
    return 0


def test_draining_serves_every_queue_that_has_a_handler_and_exits_0(
    handled: list[tuple[str, Any]],
) -> None:
    for queue in ("bulk", "normal", "urgent"):
        publish(1, queue=queue)

    assert run() == 0

    assert sorted(handled) == [("bulk", 1), ("normal", 1), ("urgent", 1)]


def test_queue_serves_only_the_named_ones_in_strict_priority(
    handled: list[tuple[str, Any]],
) -> None:
    for queue in ("bulk", "normal", "urgent"):
        publish_many([1, 2], queue=queue)

    assert run("--queue", "urgent", "--queue", "bulk", "--concurrency", "1") == 0

    assert handled == [("urgent", 1), ("urgent", 2), ("bulk", 1), ("bulk", 2)]
    assert OutboxMessage.objects.filter(queue="normal").count() == 2


def test_max_messages_ends_the_command_after_so_many(handled: list[tuple[str, Any]]) -> None:
    publish_many(list(range(10)), queue="normal")

    assert run("--max-messages", "4") == 0

    assert len(handled) == 4
    assert OutboxMessage.objects.count() == 6


def test_worker_id_is_what_the_lease_says() -> None:
    leased_by: list[str | None] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        leased_by.append(OutboxMessage.objects.get(pk=message.id).leased_by)

    publish()
    assert run("--worker-id", "worker-7") == 0

    assert leased_by == ["worker-7"]


def test_without_worker_id_two_runs_have_different_ones() -> None:
    leased_by: set[str | None] = set()

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        leased_by.add(OutboxMessage.objects.get(pk=message.id).leased_by)

    for _ in range(2):
        publish()
        assert run() == 0

    assert len(leased_by) == 2
    assert None not in leased_by


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency", "0"],
        ["--concurrency", "-1"],
        ["--concurrency", "many"],
        ["--concurrency", "1.5"],
        ["--batch-size", "0"],
        ["--max-messages", "0"],
        ["--shutdown-timeout", "-1"],
        ["--shutdown-timeout", "nan"],
        ["--shutdown-timeout", "inf"],
        ["--shutdown-timeout", "soon"],
    ],
    ids=" ".join,
)
def test_a_number_out_of_range_is_refused(
    arguments: list[str], handled: list[tuple[str, Any]]
) -> None:
    with pytest.raises(CommandError, match=arguments[0]):
        call_command("outbox_worker", *arguments)


def test_an_unknown_queue_is_refused_with_those_there_are(handled: list[tuple[str, Any]]) -> None:
    with pytest.raises(CommandError, match="'orders'") as refusal:
        call_command("outbox_worker", "--queue", "orders")
    assert "urgent, normal, bulk" in str(refusal.value)


def test_no_handler_at_all_is_refused() -> None:
    with pytest.raises(CommandError, match="No handler is registered"):
        call_command("outbox_worker")


def test_a_database_that_is_not_postgresql_is_refused(
    sqlite: str, handled: list[tuple[str, Any]]
) -> None:
    with pytest.raises(CommandError, match="PostgreSQL"):
        call_command("outbox_worker", "--database", sqlite)


def test_a_database_that_is_not_there_is_refused(handled: list[tuple[str, Any]]) -> None:
    with pytest.raises(CommandError, match="nowhere"):
        call_command("outbox_worker", "--database", "nowhere")
