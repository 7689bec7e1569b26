"""Storage options as measured: docs/decisions/0006-storage-options.md."""

from __future__ import annotations

from django.db import migrations

from django_outbox.migration_operations import PostgresSQL

# A claimed row is longer than a waiting one, by its lease, so well under half of a page may be
# filled if all its rows are to find room beside them. It holds for pages that are filled from now
# on, and takes a lock that neither readers nor writers wait for.
FILLFACTOR = """
ALTER TABLE django_outbox_message SET (fillfactor = 40);
"""

FILLFACTOR_BEFORE = """
ALTER TABLE django_outbox_message SET (fillfactor = 50);
"""


class Migration(migrations.Migration):
    dependencies = [("django_outbox", "0003_operations")]

    operations = [
        PostgresSQL(FILLFACTOR, FILLFACTOR_BEFORE, hints={"model_name": "outboxmessage"}),
    ]
