"""The awaitable twins work where a transaction is open, and elsewhere say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import LazySettings
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .helpers import committed, row, stored_payload

pytestmark = committed


def test_under_async_to_sync_they_are_part_of_the_open_transaction() -> None:
    async def work() -> tuple[int | None, list[int], bool]:
        id_ = await outbox.apublish(1, queue="orders")
        ids = await outbox.apublish_many([2, 3], queue="orders")
        await outbox.apublish(4, queue="orders", timer_id="t")
        return id_, ids, await outbox.acancel_timer(queue="orders", timer_id="t")

    with transaction.atomic():
        id_, ids, cancelled = async_to_sync(work)()
        assert [stored_payload(i) for i in (id_, *ids)] == [1, 2, 3]
        assert cancelled is True
        transaction.set_rollback(True)

    assert not OutboxMessage.objects.exists()


def test_they_commit_with_the_open_transaction() -> None:
    with transaction.atomic():
        id_ = async_to_sync(outbox.apublish)({"n": 1}, queue="orders")

    assert stored_payload(id_) == {"n": 1}


def test_a_publisher_has_them_too() -> None:
    orders = outbox.publisher("orders", headers={"tenant": "acme"})

    async def work() -> tuple[int | None, list[int], bool]:
        id_ = await orders.apublish(1, timer_id="t")
        return id_, await orders.apublish_many([2]), await orders.acancel_timer(timer_id="t")

    with transaction.atomic():
        id_, (many,), cancelled = async_to_sync(work)()

    assert id_ is not None
    assert cancelled is True
    assert row(many).headers["tenant"] == "acme"


Twin = Callable[[], Awaitable[Any]]
TWINS: list[Twin] = [
    lambda: outbox.apublish({}, queue="orders"),
    lambda: outbox.apublish_many([{}], queue="orders"),
    lambda: outbox.apublish_many([], queue="orders"),
    lambda: outbox.publisher("orders").apublish({}),
    lambda: outbox.publisher("orders").apublish_many([{}]),
]


async def awaited(twin: Twin) -> Any:
    return await twin()


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("run", [lambda twin: asyncio.run(awaited(twin)), async_to_sync(awaited)])
def test_outside_a_transaction_the_error_shows_the_way(
    twin: Twin, run: Callable[[Twin], Any]
) -> None:
    with pytest.raises(TransactionManagementError) as caught:
        run(twin)

    assert "sync_to_async" in str(caught.value)
    assert "transaction.atomic()" in str(caught.value)
    assert not OutboxMessage.objects.exists()


def test_the_way_that_the_error_shows_works() -> None:
    def place_order() -> int | None:
        try:
            with transaction.atomic():
                return outbox.publish({}, queue="orders")
        finally:
            connections.close_all()

    async def view() -> int | None:
        return await sync_to_async(place_order)()

    assert asyncio.run(view()) == OutboxMessage.objects.get().pk


def test_without_require_atomic_they_work_anywhere(settings: LazySettings) -> None:
    settings.OUTBOX = {"REQUIRE_ATOMIC": False}

    async def view() -> list[int | None]:
        try:
            id_ = await outbox.apublish(1, queue="orders")
            return [id_, *await outbox.apublish_many([2, 3], queue="orders")]
        finally:
            await sync_to_async(connections.close_all)()

    ids = asyncio.run(view())
    assert [stored_payload(id_) for id_ in ids] == [1, 2, 3]


def test_cancelling_needs_no_transaction() -> None:
    with transaction.atomic():
        outbox.publish({}, queue="orders", timer_id="t")

    async def view() -> bool:
        try:
            return await outbox.acancel_timer(queue="orders", timer_id="t")
        finally:
            await sync_to_async(connections.close_all)()

    assert asyncio.run(view()) is True
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize("queue", ["", "__x"])
def test_their_arguments_are_checked_alike(queue: str) -> None:
    with transaction.atomic(), pytest.raises(ValueError, match="queue"):
        async_to_sync(outbox.apublish)({}, queue=queue)
