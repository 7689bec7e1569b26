"""Publishing one message: what is stored, and that it is one statement."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_outbox import outbox
from django_outbox.models import OutboxMessage

from .helpers import claim, complete, database_clock, fail, row, stored_payload

pytestmark = pytest.mark.django_db


def test_a_message_is_stored_with_its_payload_and_queue() -> None:
    id_ = outbox.publish({"order_id": 7}, queue="orders")

    stored = OutboxMessage.objects.get()
    assert stored.pk == id_
    assert stored.queue == "orders"
    assert stored_payload(id_) == {"order_id": 7}


def test_a_new_message_is_pending_and_has_never_been_tried() -> None:
    stored = row(outbox.publish({}, queue="orders"))

    assert (stored.attempts_count, stored.deliveries_count) == (0, 0)
    assert stored.lease_token is None
    assert stored.lease_expires_at is None
    assert stored.leased_by is None
    assert stored.first_attempt_at is None
    assert stored.last_attempt_at is None
    assert stored.last_error is None
    assert stored.timer_id is None
    assert stored.expires_at is None
    assert stored.max_attempts is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activate_in": 5},
        {"max_attempts": 3, "headers": {"tenant": "acme"}},
        {"expires_in": 60, "max_attempts": 3, "headers": {"tenant": "acme"}},
        {"timer_id": "t"},
        {"timer_id": "t", "timer_conflict": "extend"},
        {"timer_id": "t", "timer_conflict": "replace"},
    ],
)
def test_publishing_is_exactly_one_statement(options: dict[str, object]) -> None:
    with CaptureQueriesContext(connection) as queries:
        outbox.publish({}, queue="orders", **options)  # type: ignore[arg-type]
    assert len(queries) == 1

    with CaptureQueriesContext(connection) as queries:
        outbox.publish({}, queue="orders", **options)  # type: ignore[arg-type]
    assert len(queries) == 1


def test_publishing_registers_nothing_to_run_on_commit() -> None:
    with transaction.atomic():
        outbox.publish({}, queue="orders")
        outbox.publish_many([{}, {}], queue="orders")
        assert connection.run_on_commit == []


def test_each_message_gets_a_message_id_of_its_own() -> None:
    first = row(outbox.publish({}, queue="orders")).message_id
    second = row(outbox.publish({}, queue="orders")).message_id

    assert isinstance(first, UUID)
    assert first != second


def test_no_id_is_given_twice_after_a_message_is_gone() -> None:
    first = outbox.publish({}, queue="orders")
    OutboxMessage.objects.all().delete()
    second = outbox.publish({}, queue="orders")

    assert first is not None
    assert second is not None
    assert second > first


def test_a_message_keeps_its_ids_through_retries() -> None:
    id_ = outbox.publish({}, queue="orders")
    before = row(id_)
    (claimed,) = claim("orders")
    fail(claimed, delay=0)
    (again,) = claim("orders")

    assert (again.id, again.message_id) == (id_, before.message_id)
    complete(again)
    assert not OutboxMessage.objects.exists()


def test_options_are_stored() -> None:
    before = database_clock()
    stored = row(
        outbox.publish(
            {},
            queue="orders",
            headers={"tenant": "acme"},
            correlation_id="checkout-7",
            expires_in=60,
            max_attempts=3,
        )
    )
    after = database_clock()

    assert stored.headers == {"tenant": "acme", "content-type": "application/json"}
    assert stored.correlation_id == "checkout-7"
    assert stored.max_attempts == 3
    assert stored.expires_at is not None
    assert (stored.expires_at - stored.next_attempt_at).total_seconds() == 60
    assert before <= stored.created_at <= after


def test_the_callers_headers_are_not_changed() -> None:
    headers = {"tenant": "acme"}
    outbox.publish({}, queue="orders", headers=headers)
    outbox.publisher("orders", headers=headers).publish({}, headers={"trace": "1"})

    assert headers == {"tenant": "acme"}


@pytest.mark.parametrize("max_attempts", [1, 1_000_000])
def test_the_extreme_limits_of_attempts_are_accepted(max_attempts: int) -> None:
    assert row(outbox.publish({}, queue="q", max_attempts=max_attempts)).max_attempts == (
        max_attempts
    )


@pytest.mark.parametrize(
    "name", ["q", "_single", "-", " ", "q" * 255, "ü" * 255, "😀" * 255, "a\nb"]
)
def test_any_other_text_up_to_255_characters_names_a_queue_and_a_timer(name: str) -> None:
    stored = row(outbox.publish({}, queue=name, timer_id=name))

    assert (stored.queue, stored.timer_id) == (name, name)


def test_a_misspelt_option_is_a_type_error() -> None:
    # D13
    with pytest.raises(TypeError, match="activate_inn"):
        outbox.publish({}, queue="orders", activate_inn=5)  # type: ignore[call-arg]
