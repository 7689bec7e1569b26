"""In Django's own TestCase a message is simply there, and gone with the test."""

from __future__ import annotations

from django.db import transaction
from django.test import TestCase, TransactionTestCase

from django_outbox import outbox
from django_outbox.models import OutboxMessage


class PublishingTests(TestCase):
    # J01

    def publish_the_only_one(self) -> None:
        with self.captureOnCommitCallbacks() as callbacks:
            id_ = outbox.publish({}, queue="orders")

        assert OutboxMessage.objects.get().pk == id_
        assert callbacks == []

    def test_a_message_is_visible_in_the_test(self) -> None:
        self.publish_the_only_one()

    def test_nothing_leaks_to_the_next_test(self) -> None:
        self.publish_the_only_one()


class CommittingTests(TransactionTestCase):
    # J01
    available_apps = ["django_outbox"]

    def publish_the_only_one(self) -> None:
        with transaction.atomic():
            id_ = outbox.publish({}, queue="orders")
        assert OutboxMessage.objects.get().pk == id_

    def test_a_message_is_visible_in_the_test(self) -> None:
        self.publish_the_only_one()

    def test_nothing_leaks_to_the_next_test(self) -> None:
        self.publish_the_only_one()
