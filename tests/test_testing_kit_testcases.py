"""The testing kit in Django's own test cases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest.mock import patch

from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from django_outbox import handlers, outbox
from django_outbox.models import DeadLetter, OutboxMessage
from django_outbox.testing import FakeOutbox, assert_published, drain, published
from tests.testapp.models import Order


class WithHandlers(SimpleTestCase):
    """Handlers of its own, which go with each test."""

    def setUp(self) -> None:
        patched = patch.dict(handlers.registry._by_queue, clear=True)
        patched.start()
        self.addCleanup(patched.stop)
        self.got: list[Any] = []

        @outbox.handler("orders", retry=outbox.ConstantRetry(3600))
        def handle(message: outbox.Message[Any]) -> None:
            self.got.append(message.payload)
            if message.payload == "again":
                raise ValueError("no stock")
            if message.payload == "never":
                raise outbox.Reject("not ours")
            Order.objects.create(name=message.payload)

        @outbox.handler("atomic", atomic=True, retry=outbox.ConstantRetry(3600))
        def handle_atomically(message: outbox.Message[Any]) -> None:
            Order.objects.create(name=message.payload)
            outbox.publish(message.payload, queue="labels")
            if message.payload == "again":
                raise ValueError("no stock")

        @outbox.handler("acked")
        def ack(message: outbox.Message[Any]) -> None:
            with transaction.atomic():
                Order.objects.create(name=message.payload)
                message.ack()
            raise ValueError("too late")

        @outbox.handler("broken", retry=outbox.ConstantRetry(3600))
        def fail_in_the_database(message: outbox.Message[Any]) -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")

        @outbox.handler("async")
        async def handle_later(message: outbox.Message[Any]) -> None:
            await Order.objects.acreate(name=message.payload)


class Behaviour(WithHandlers):
    """What holds in a `TestCase` and in a `TransactionTestCase`."""

    def publish(self, payload: Any, queue: str = "orders", **options: Any) -> None:
        with transaction.atomic():
            outbox.publish(payload, queue=queue, **options)

    def deliver_and_leave_something_of_everything(self) -> None:
        assert Order.objects.count() == 0
        assert published() == []
        assert DeadLetter.objects.count() == 0
        for payload in ("sold", "again", "never"):
            self.publish(payload)
        self.publish("later", activate_in=timedelta(hours=2))

        assert drain() == 3
        assert self.got == ["sold", "again", "never"]
        assert Order.objects.get().name == "sold"
        assert [message.payload for message in published()] == ["again", "later"]
        assert DeadLetter.objects.get().failure_reason == "rejected"
        assert drain() == 0

    def deliver_in_every_way(self) -> None:
        for queue in ("atomic", "acked", "broken", "async"):
            self.publish(queue, queue=queue)
        self.publish("again", queue="atomic")

        assert drain() == 5
        assert sorted(Order.objects.values_list("name", flat=True)) == ["acked", "async", "atomic"]
        assert_published("atomic", payload="again")
        assert_published("broken")
        assert_published("labels", payload="atomic")
        assert OutboxMessage.objects.count() == 3


class DrainInTestCase(Behaviour, TestCase):
    # J01

    def test_handlers_run_once_without_a_worker(self) -> None:
        self.deliver_and_leave_something_of_everything()

    def test_nothing_leaks_to_the_next_test(self) -> None:
        self.deliver_and_leave_something_of_everything()

    def test_atomic_acking_failing_and_async_handlers(self) -> None:
        self.deliver_in_every_way()

    def test_a_commit_hook_of_a_handler_is_captured_and_no_other(self) -> None:
        @outbox.handler("hooked", atomic=True)
        def handle(message: outbox.Message[Any]) -> None:
            transaction.on_commit(lambda: ran.append(message.payload))

        ran: list[Any] = []
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            self.publish("hook", queue="hooked")
            self.publish("acked", queue="acked")
            assert drain() == 2

        assert ran == ["hook"]
        assert len(callbacks) == 1


class DrainWithTestData(Behaviour, TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        outbox.publish("from the class", queue="orders")

    def take_what_the_class_has_published(self) -> None:
        assert drain() == 1
        assert self.got == ["from the class"]
        assert published() == []

    def test_what_the_class_has_published_is_delivered(self) -> None:
        self.take_what_the_class_has_published()

    def test_what_the_class_has_published_is_there_for_each_test(self) -> None:
        self.take_what_the_class_has_published()


class DrainInTransactionTestCase(Behaviour, TransactionTestCase):
    # J01
    available_apps = ["django_outbox", "tests.testapp"]

    def test_handlers_run_once_without_a_worker(self) -> None:
        self.deliver_and_leave_something_of_everything()

    def test_nothing_leaks_to_the_next_test(self) -> None:
        self.deliver_and_leave_something_of_everything()

    def test_atomic_acking_failing_and_async_handlers(self) -> None:
        self.deliver_in_every_way()

    def test_a_commit_hook_of_a_handler_runs(self) -> None:
        @outbox.handler("hooked", atomic=True)
        def handle(message: outbox.Message[Any]) -> None:
            transaction.on_commit(lambda: ran.append(message.payload))

        ran: list[Any] = []
        self.publish("hook", queue="hooked")

        assert drain() == 1
        assert ran == ["hook"]

    def test_a_transaction_left_open_is_a_failed_attempt_and_is_rolled_back(self) -> None:
        # J07
        @outbox.handler("open", retry=outbox.ConstantRetry(3600))
        def handle(message: outbox.Message[Any]) -> None:
            transaction.atomic().__enter__()
            Order.objects.create(name="lost")

        self.publish("open", queue="open")
        self.publish("sold", queue="orders")

        assert drain() == 2
        assert not connection.in_atomic_block
        assert Order.objects.get().name == "sold"
        assert [message.attempt for message in published()] == [2]


class FakeInSimpleTestCase(WithHandlers):
    """A test case that lets nothing through to the database."""

    def test_the_fake_needs_no_database(self) -> None:
        with FakeOutbox() as fake:
            outbox.publish("never", queue="orders")
            assert fake.drain() == 1

        assert [letter.failure_reason for letter in fake.dead_letters] == ["rejected"]
