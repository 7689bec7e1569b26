"""The claim index, for claims alone: docs/decisions/0007-rows-found-by-id.md."""

from __future__ import annotations

from django.db import migrations, models

from django_outbox.migration_operations import ConcurrentSQL

# The predicate holds for every row. A statement that says nothing of the queue, as all do that look
# for ids, cannot prove it and so goes along the primary key, whatever the planner thinks.
FORWARDS = (
    "DROP INDEX CONCURRENTLY IF EXISTS django_outbox_message_claim_new",  # of an interrupted run
    """
    CREATE INDEX CONCURRENTLY django_outbox_message_claim_new
        ON django_outbox_message (queue, next_attempt_at, id) WHERE queue IS NOT NULL
    """,
    "DROP INDEX CONCURRENTLY IF EXISTS django_outbox_message_claim",
    "ALTER INDEX django_outbox_message_claim_new RENAME TO django_outbox_message_claim",
)

BACKWARDS = (
    "DROP INDEX CONCURRENTLY IF EXISTS django_outbox_message_claim_new",
    """
    CREATE INDEX CONCURRENTLY django_outbox_message_claim_new
        ON django_outbox_message (queue, next_attempt_at, id)
    """,
    "DROP INDEX CONCURRENTLY IF EXISTS django_outbox_message_claim",
    "ALTER INDEX django_outbox_message_claim_new RENAME TO django_outbox_message_claim",
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_outbox", "0004_storage")]

    operations = [
        ConcurrentSQL(
            FORWARDS,
            BACKWARDS,
            state_operations=[
                migrations.RemoveIndex(
                    model_name="outboxmessage", name="django_outbox_message_claim"
                ),
                migrations.AddIndex(
                    model_name="outboxmessage",
                    index=models.Index(
                        fields=["queue", "next_attempt_at", "id"],
                        condition=models.Q(queue__isnull=False),
                        name="django_outbox_message_claim",
                    ),
                ),
            ],
            hints={"model_name": "outboxmessage"},
        ),
    ]
