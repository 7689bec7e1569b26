"""Mistakes that would do damage in silence are errors, or impossible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.db import transaction
from django.db.transaction import TransactionManagementError
from django.template import Context, Engine

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage

from .helpers import without_sql

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "payloads", ["text", b"bytes", bytearray(b"bytes"), {"order_id": 7}, "", b"", {}], ids=repr
)
@pytest.mark.parametrize("many", [outbox.publish_many, outbox.publisher("orders").publish_many])
def test_one_payload_where_many_belong_is_a_type_error(
    many: Callable[..., Any], payloads: Any
) -> None:
    options = {"queue": "orders"} if many is outbox.publish_many else {}
    with without_sql(), pytest.raises(TypeError, match="iterable of payloads"):
        many(payloads, **options)


@pytest.mark.parametrize("operation", ["replay", "discard", "replay_in_batches"])
def test_a_template_cannot_replay_or_discard(
    make_letter: Callable[..., DeadLetter], operation: str
) -> None:
    make_letter()
    template = Engine().from_string(
        f"{{{{ letters.{operation} }}}}{{{{ manager.{operation} }}}}"
        f"{{% for one in letters.{operation} %}}{{% endfor %}}"
    )

    template.render(Context({"letters": DeadLetter.objects.all(), "manager": DeadLetter.objects}))

    assert DeadLetter.objects.count() == 1
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize(
    "publish",
    [
        lambda: outbox.publish({}, queue="orders"),
        lambda: outbox.publish_many([{}], queue="orders"),
        lambda: outbox.publisher("orders").publish({}),
    ],
    ids=["publish", "publish_many", "a publisher"],
)
def test_publishing_in_an_event_loop_shows_the_way(publish: Callable[[], Any]) -> None:
    async def view() -> None:
        publish()

    with pytest.raises(TransactionManagementError) as caught:
        asyncio.run(view())

    assert "sync_to_async" in str(caught.value)
    assert "transaction.atomic()" in str(caught.value)


class Recorder:
    """A router that lets everything pass and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    def allow_migrate(
        self, db: str, app_label: str, model_name: str | None = None, **hints: Any
    ) -> None:
        if app_label == "django_outbox":
            self.asked.append(model_name)


def test_a_router_is_told_the_model_of_each_migration(settings: LazySettings) -> None:
    recorder = Recorder()
    settings.DATABASE_ROUTERS = [recorder]
    call_command("migrate", "django_outbox", "zero", verbosity=0)
    recorder.asked.clear()

    with transaction.atomic():
        call_command("migrate", "django_outbox", verbosity=0)

    assert set(recorder.asked) >= {"outboxmessage", "deadletter"}
    assert None not in recorder.asked
