"""What a handler publishes carries on its message's correlation id and trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .conftest import Drain
from .helpers import committed, row

pytestmark = committed

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER_TRACE = "00-11111111111111111111111111111111-2222222222222222-01"


def publish(**options: Any) -> OutboxMessage:
    with transaction.atomic():
        return row(outbox.publish({}, queue="orders", **options))


def followed_by(drain: Drain, follow: Callable[[], Any], **handler: Any) -> OutboxMessage:
    """Deliver what is in `orders` to a handler that does this, and return what it published."""

    @outbox.handler("orders", **handler)
    def handle(message: outbox.Message[Any]) -> Any:
        with transaction.atomic():
            result = follow()
        return result if isinstance(result, outbox.OutboxResponse) else None

    drain()
    return OutboxMessage.objects.get()


FOLLOW: list[Callable[..., Any]] = [
    lambda **options: outbox.publish({}, queue="mails", **options),
    lambda **options: outbox.publish({}, queue="mails", timer_id="t", **options),
    lambda **options: outbox.publisher("mails").publish({}, **options),
    lambda **options: outbox.OutboxResponse({}, queue="mails", **options),
]


def publish_many() -> list[int]:
    return outbox.publish_many([{}], queue="mails")


def test_a_correlation_id_is_generated_for_each_message() -> None:
    first, second = publish().correlation_id, publish().correlation_id

    assert first
    assert second
    assert first != second


@pytest.mark.parametrize("follow", [*FOLLOW, publish_many])
@pytest.mark.parametrize("atomic", [False, True])
def test_what_a_handler_publishes_inherits_correlation_id_and_trace(
    drain: Drain, follow: Callable[[], Any], *, atomic: bool
) -> None:
    publish(correlation_id="checkout-7", headers={"traceparent": TRACE, "tenant": "acme"})

    follower = followed_by(drain, follow, atomic=atomic)
    assert follower.correlation_id == "checkout-7"
    assert follower.headers == {"traceparent": TRACE, "content-type": "application/json"}


def test_a_generated_correlation_id_is_inherited_too(drain: Drain) -> None:
    first = publish()

    assert followed_by(drain, FOLLOW[0]).correlation_id == first.correlation_id


@pytest.mark.parametrize("follow", FOLLOW)
def test_what_the_handler_says_itself_is_not_inherited(
    drain: Drain, follow: Callable[..., Any]
) -> None:
    publish(correlation_id="checkout-7", headers={"traceparent": TRACE})

    follower = followed_by(
        drain,
        lambda: follow(correlation_id="mine", headers={"traceparent": OTHER_TRACE}),
    )
    assert follower.correlation_id == "mine"
    assert follower.headers["traceparent"] == OTHER_TRACE


def test_an_async_handler_passes_them_on_too(drain: Drain) -> None:
    publish(correlation_id="checkout-7", headers={"traceparent": TRACE})

    @outbox.handler("orders", atomic=True)
    async def handle(message: outbox.Message[Any]) -> None:
        await outbox.apublish({}, queue="mails")

    drain()
    follower = OutboxMessage.objects.get()
    assert follower.correlation_id == "checkout-7"
    assert follower.headers["traceparent"] == TRACE


def test_nothing_is_inherited_after_the_handler_has_ended(drain: Drain) -> None:
    outbox.handler("orders")(lambda message: None)
    publish(correlation_id="checkout-7", headers={"traceparent": TRACE})
    drain()

    stored = publish()
    assert stored.correlation_id != "checkout-7"
    assert "traceparent" not in stored.headers
