"""Fixtures of the contract's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from django_outbox import handlers
from django_outbox.models import DeadLetter
from django_outbox.testing import FakeOutbox
from django_outbox.worker.loop import Options, Worker

from .box import Box, Fake, Tables
from .helpers import Listener, Together, database_clock

Drain = Callable[..., None]


@pytest.fixture(
    params=[pytest.param("tables", marks=pytest.mark.django_db), "fake"],
)
def box(request: pytest.FixtureRequest, registry: handlers.Registry) -> Iterator[Box]:
    """Give an outbox: first the one in PostgreSQL, then the one in memory."""
    if request.param == "tables":
        yield Tables()
    else:
        with FakeOutbox() as fake:
            yield Fake(fake)


@pytest.fixture
def drain(registry: handlers.Registry) -> Drain:
    """Deliver what is committed and due to the handlers registered so far, with a real worker."""

    def drain(using: str = "default") -> None:
        served = {queue: handler for queue in registry if (handler := registry.get(queue))}
        options = Options(using=using, worker_id="the test's", concurrency=2, drain=True)
        assert Worker(served, options).run() == 0

    return drain


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def together() -> Iterator[Together]:
    together = Together()
    yield together
    together.close()


@pytest.fixture
def make_letters() -> Callable[..., None]:
    """Give a function that stores so many dead letters, with these columns."""

    def make_letters(count: int, **columns: Any) -> None:
        now = database_clock()
        DeadLetter.objects.bulk_create(
            DeadLetter(
                **{
                    "original_id": 1,
                    "message_id": uuid4(),
                    "queue": "orders",
                    "payload": b'{"n": 1}',
                    "headers": {"content-type": "application/json", "tenant": "acme"},
                    "correlation_id": "checkout-7",
                    "created_at": now,
                    "first_attempt_at": now,
                    "last_attempt_at": now,
                    "attempts_count": 10,
                    "deliveries_count": 11,
                    "failure_reason": "retry_terminal",
                    "exception_class": "ValueError",
                    "last_exception": "ValueError: no stock",
                    **columns,
                }
            )
            for _ in range(count)
        )

    return make_letters


@pytest.fixture
def make_letter(make_letters: Callable[..., None]) -> Callable[..., DeadLetter]:
    """Give a function that stores one dead letter and returns it."""

    def make_letter(**columns: Any) -> DeadLetter:
        make_letters(1, **columns)
        return DeadLetter.objects.order_by("id").reverse()[0]

    return make_letter
