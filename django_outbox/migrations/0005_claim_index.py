"""The claim index, for claims alone: docs/decisions/0007-rows-found-by-id.md."""

from __future__ import annotations

from django.db import migrations, models

from django_outbox.migration_operations import ReplaceIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_outbox", "0004_storage")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                # The predicate holds for every row. A statement that says nothing of the queue, as
                # all do that look for ids, cannot prove it and so goes along the primary key,
                # whatever the planner thinks.
                ReplaceIndex(
                    "outboxmessage",
                    "django_outbox_message",
                    "django_outbox_message_claim",
                    before="btree (queue, next_attempt_at, id)",
                    after="btree (queue, next_attempt_at, id) WHERE (queue IS NOT NULL)",
                ),
            ],
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
        ),
    ]
