"""The tables as Django sees them: messages, dead letters, schedules, and who works on them.

Migrations create them in raw SQL, with storage options that Django has no words for;
`makemigrations --check` keeps the two in step. There is no status column: a message without a
lease is pending, and one that was delivered has no row.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Self

from django.db import models, transaction
from django.db.models.functions import Cast

from .functions import ClockTimestamp, RandomUUID
from .querysets import DeadLetterQuerySet


class OutboxMessage(models.Model):
    """A message that waits to be delivered, or is being delivered."""

    id = models.BigAutoField(primary_key=True)
    message_id = models.UUIDField(db_default=RandomUUID(), editable=False)
    queue = models.CharField(max_length=255)
    payload = models.BinaryField()
    headers = models.JSONField(db_default={})
    correlation_id = models.CharField(
        max_length=255, db_default=Cast(RandomUUID(), models.CharField(max_length=255))
    )
    ref = models.CharField(max_length=512, null=True, blank=True, editable=False)
    timer_id = models.CharField(max_length=255, null=True, blank=True)
    created_at = models.DateTimeField(db_default=ClockTimestamp(), editable=False)
    next_attempt_at = models.DateTimeField(db_default=ClockTimestamp())
    expires_at = models.DateTimeField(null=True, blank=True)
    max_attempts = models.IntegerField(null=True, blank=True)
    attempts_count = models.IntegerField(db_default=0)
    deliveries_count = models.IntegerField(db_default=0)
    first_attempt_at = models.DateTimeField(null=True, blank=True)
    last_attempt_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(null=True, blank=True)
    lease_token = models.UUIDField(null=True, blank=True, editable=False)
    lease_expires_at = models.DateTimeField(null=True, blank=True, editable=False)
    leased_by = models.CharField(max_length=255, null=True, blank=True, editable=False)

    class Meta:
        db_table = "django_outbox_message"
        verbose_name = "message"
        indexes: ClassVar = [
            # The one claim index. Neither its columns nor a predicate mention the lease, so that
            # claims, renewals and releases are HOT updates. All rows are in it; the condition keeps
            # statements that look for ids from going along it.
            models.Index(
                fields=["queue", "next_attempt_at", "id"],
                condition=models.Q(queue__isnull=False),
                name="django_outbox_message_claim",
            ),
            models.Index(
                fields=["ref"],
                condition=models.Q(ref__isnull=False),
                name="django_outbox_message_ref",
            ),
        ]
        permissions: ClassVar = [
            ("cancel_outboxmessage", "Can cancel a message"),
            ("run_outboxmessage", "Can run a message now"),
            ("release_outboxmessage", "Can release a message from its lease"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["queue", "timer_id"],
                condition=models.Q(timer_id__isnull=False),
                name="django_outbox_message_timer",
            ),
            models.CheckConstraint(
                condition=models.Q(lease_token__isnull=True, lease_expires_at__isnull=True)
                | models.Q(lease_token__isnull=False, lease_expires_at__isnull=False),
                name="django_outbox_message_lease",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.queue} #{self.pk}"


class DeadLetter(models.Model):
    """A message that will not be tried again, with what is known of why."""

    class Reason(models.TextChoices):
        RETRY_TERMINAL = "retry_terminal", "retries exhausted"
        REJECTED = "rejected", "rejected by its handler"
        MAX_DELIVERIES = "max_deliveries", "delivered too often"
        EXPIRED = "expired", "expired"
        INVALID_PAYLOAD = "invalid_payload", "invalid payload"

    id = models.BigAutoField(primary_key=True)
    original_id = models.BigIntegerField()
    message_id = models.UUIDField()
    queue = models.CharField(max_length=255)
    payload = models.BinaryField()
    headers = models.JSONField(db_default={})
    correlation_id = models.CharField(max_length=255)
    ref = models.CharField(max_length=512, null=True, blank=True, editable=False)
    timer_id = models.CharField(max_length=255, null=True, blank=True)
    created_at = models.DateTimeField()
    first_attempt_at = models.DateTimeField(null=True, blank=True)
    last_attempt_at = models.DateTimeField(null=True, blank=True)
    attempts_count = models.IntegerField(db_default=0)
    deliveries_count = models.IntegerField(db_default=0)
    failed_at = models.DateTimeField(db_default=ClockTimestamp())
    failure_reason = models.CharField(max_length=32, choices=Reason)
    exception_class = models.CharField(max_length=255, null=True, blank=True)
    last_exception = models.TextField(null=True, blank=True)
    fingerprint = models.CharField(max_length=64, db_default="")

    objects = models.Manager.from_queryset(DeadLetterQuerySet)()

    class Meta:
        db_table = "django_outbox_dead_letter"
        verbose_name = "dead letter"
        indexes: ClassVar = [
            models.Index(fields=["queue", "failed_at"], name="django_outbox_dead_queue"),
            models.Index(fields=["fingerprint"], name="django_outbox_dead_print"),
            # What the admin sorts, filters, groups and searches by.
            models.Index(fields=["failed_at", "id"], name="django_outbox_dead_time"),
            models.Index(fields=["failure_reason", "failed_at"], name="django_outbox_dead_reason"),
            models.Index(fields=["exception_class", "failed_at"], name="django_outbox_dead_class"),
            models.Index(
                fields=["queue", "exception_class", "failed_at"], name="django_outbox_dead_error"
            ),
            models.Index(
                fields=["queue", "failure_reason", "fingerprint", "failed_at"],
                name="django_outbox_dead_group",
            ),
            models.Index(fields=["message_id"], name="django_outbox_dead_message"),
            models.Index(fields=["correlation_id"], name="django_outbox_dead_correl"),
            models.Index(
                fields=["timer_id"],
                condition=models.Q(timer_id__isnull=False),
                name="django_outbox_dead_timer",
            ),
            models.Index(
                fields=["ref"],
                condition=models.Q(ref__isnull=False),
                name="django_outbox_dead_ref",
            ),
        ]
        permissions: ClassVar = [
            ("replay_deadletter", "Can replay a dead letter"),
            ("discard_deadletter", "Can discard a dead letter"),
            ("edit_deadletter", "Can edit the payload of a dead letter"),
        ]

    def __str__(self) -> str:
        return f"{self.queue} #{self.original_id} ({self.get_failure_reason_display()})"


class Schedule(models.Model):
    """A message that is published at every boundary of a spec."""

    class CatchUp(models.TextChoices):
        ALL = "all", "the oldest 64"
        LATEST = "latest", "the newest one"
        SKIP = "skip", "none"

    class Source(models.TextChoices):
        CODE = "code", "declared in code"
        API = "api", "made by schedule()"
        ADMIN = "admin", "made in the admin"

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=255, unique=True)
    spec = models.CharField(max_length=255)
    timezone = models.CharField(max_length=64)
    queue = models.CharField(max_length=255)
    payload = models.BinaryField()
    headers = models.JSONField(db_default={})
    max_attempts = models.IntegerField(null=True, blank=True)
    expires_in = models.DurationField(null=True, blank=True)
    catch_up = models.CharField(max_length=8, choices=CatchUp, db_default="all")
    enabled = models.BooleanField(db_default=True)
    declared_enabled = models.BooleanField(null=True, blank=True, editable=False)
    source = models.CharField(max_length=8, choices=Source, db_default="admin")
    next_run_at = models.DateTimeField(null=True, blank=True, editable=False)
    planned_for = models.CharField(max_length=320, db_default="", editable=False)
    plan_from = models.DateTimeField(null=True, blank=True, editable=False)
    last_boundary_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_run_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_message_id = models.BigIntegerField(null=True, blank=True, editable=False)
    last_error = models.TextField(null=True, blank=True, editable=False)
    retry_at = models.DateTimeField(null=True, blank=True, editable=False)
    skipped_count = models.BigIntegerField(db_default=0, editable=False)
    withdrawn_at = models.DateTimeField(null=True, blank=True, editable=False)

    KEPT_BY_SCHEDULERS: ClassVar = (
        "next_run_at",
        "planned_for",
        "plan_from",
        "last_boundary_at",
        "last_run_at",
        "last_message_id",
        "last_error",
        "retry_at",
        "skipped_count",
        "declared_enabled",
        "withdrawn_at",
    )

    class Meta:
        db_table = "django_outbox_schedule"
        verbose_name = "schedule"
        permissions: ClassVar = [("run_schedule", "Can run a schedule now")]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write the row, but of what schedulers keep only what was changed here.

        A tick may have moved the boundary on since the row was loaded; to write the old one back
        would fire it once more.
        """
        is_same_row = (
            not self._state.adding
            and self.pk is not None  # type: ignore[redundant-expr]
            and kwargs.get("using") in (None, self._state.db)
        )
        if is_same_row and kwargs.get("update_fields") is None and not kwargs.get("force_insert"):
            kwargs["update_fields"] = self._fields_to_write()
        super().save(*args, **kwargs)
        names = kwargs.get("update_fields")
        transaction.on_commit(partial(self._remember, names), using=self._state.db)

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        super().refresh_from_db(*args, **kwargs)
        self._remember(args[1] if len(args) > 1 else kwargs.get("fields"))

    @classmethod
    def from_db(cls, *args: Any, **kwargs: Any) -> Self:
        loaded = super().from_db(*args, **kwargs)
        loaded._remember()  # noqa: SLF001 - its own
        return loaded

    def _fields_to_write(self) -> list[str]:
        written = self.__dict__.get("_written", {})
        values = {
            field.attname: self.__dict__[field.attname]
            for field in self._meta.concrete_fields
            if not field.primary_key and field.attname in self.__dict__  # else it is deferred
        }
        return [
            name
            for name, value in values.items()
            if not (name in written and written[name] == value)
        ]

    def _remember(self, names: Iterable[str] | None = None) -> None:
        """Keep what the row was seen to hold of these columns, or of all that schedulers keep."""
        seen = self.KEPT_BY_SCHEDULERS if names is None else names
        self._written = self.__dict__.get("_written", {}) | {
            name: self.__dict__[name]
            for name in seen
            if name in self.KEPT_BY_SCHEDULERS and name in self.__dict__
        }


class Lease(models.Model):
    """Who leads the schedulers, and until when."""

    name = models.CharField(max_length=255, primary_key=True)
    owner = models.CharField(max_length=255)
    acquired_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "django_outbox_lease"
        verbose_name = "lease"

    def __str__(self) -> str:
        return f"{self.name} held by {self.owner}"


class Worker(models.Model):
    """A worker or scheduler that runs, or has vanished without a word."""

    class Kind(models.TextChoices):
        WORKER = "worker", "worker"
        SCHEDULER = "scheduler", "scheduler"

    id = models.UUIDField(primary_key=True)
    worker_id = models.CharField(max_length=255)
    kind = models.CharField(max_length=16, choices=Kind)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    queues = models.JSONField(db_default=[])
    concurrency = models.IntegerField(db_default=0)
    running = models.IntegerField(db_default=0)
    started_at = models.DateTimeField(db_default=ClockTimestamp())
    last_seen_at = models.DateTimeField(db_default=ClockTimestamp())

    class Meta:
        db_table = "django_outbox_worker"
        verbose_name = "worker"
        indexes: ClassVar = [models.Index(fields=["worker_id"], name="django_outbox_worker_name")]

    def __str__(self) -> str:
        return self.worker_id


class Counter(models.Model):
    """How the deliveries of one queue ended in one minute."""

    id = models.BigAutoField(primary_key=True)
    minute = models.DateTimeField()
    queue = models.CharField(max_length=255)
    completed = models.BigIntegerField(db_default=0)
    retried = models.BigIntegerField(db_default=0)
    buried = models.BigIntegerField(db_default=0)

    class Meta:
        db_table = "django_outbox_counter"
        verbose_name = "counter"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["minute", "queue"], name="django_outbox_counter_minute")
        ]

    def __str__(self) -> str:
        return f"{self.queue} at {self.minute}"
