"""`validate_schema`: each kind of drift is named with what mends it, and mending it does."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.test.runner import DiscoverRunner

from django_outbox import outbox
from django_outbox.database_checks import check_schema
from django_outbox.schema.expected import EXPECTED

pytestmark = pytest.mark.django_db

MESSAGE, LETTER = "django_outbox_message", "django_outbox_dead_letter"


def run(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def drift() -> str:
    """Return what `validate_schema` says, which must be something."""
    with pytest.raises(outbox.SchemaError) as caught:
        outbox.validate_schema()
    return str(caught.value)


def mend() -> None:
    """Run what is proposed, but for what a test's transaction does not allow."""
    with pytest.raises(outbox.SchemaError) as caught:
        outbox.validate_schema()
    differences: list[Any] = caught.value.differences
    run(*(difference.mend.replace(" CONCURRENTLY", "") for difference in differences))


def test_what_the_migrations_make_is_as_it_should_be() -> None:
    outbox.validate_schema()


DRIFTS = {
    "a missing index": (
        "DROP INDEX django_outbox_message_claim",
        (
            "The index django_outbox_message_claim on django_outbox_message is missing. "
            "Mend it with: CREATE INDEX CONCURRENTLY django_outbox_message_claim "
            "ON django_outbox_message USING btree (queue, next_attempt_at, id) "
            "WHERE (queue IS NOT NULL);"
        ),
    ),
    "a unique index that is not unique": (
        (
            "DROP INDEX django_outbox_message_timer; CREATE INDEX django_outbox_message_timer"
            f" ON {MESSAGE} (queue, timer_id) WHERE timer_id IS NOT NULL"
        ),
        "is btree (queue, timer_id) WHERE (timer_id IS NOT NULL) instead of UNIQUE btree",
    ),
    "a unique index that is not partial": (
        (
            "DROP INDEX django_outbox_message_timer;"
            f" CREATE UNIQUE INDEX django_outbox_message_timer ON {MESSAGE} (queue, timer_id)"
        ),
        "is UNIQUE btree (queue, timer_id) instead of UNIQUE btree (queue, timer_id) WHERE",
    ),
    "another predicate": (
        (
            "DROP INDEX django_outbox_message_timer; "
            f"CREATE UNIQUE INDEX django_outbox_message_timer ON {MESSAGE} (queue, timer_id)"
            " WHERE timer_id <> ''"
        ),
        (
            "Mend it with: DROP INDEX CONCURRENTLY IF EXISTS django_outbox_message_timer_new;\n"
            "CREATE UNIQUE INDEX CONCURRENTLY django_outbox_message_timer_new "
            "ON django_outbox_message USING btree (queue, timer_id) WHERE (timer_id IS NOT NULL);\n"
            "DROP INDEX CONCURRENTLY django_outbox_message_timer;\n"
            "ALTER INDEX django_outbox_message_timer_new RENAME TO django_outbox_message_timer;"
        ),
    ),
    "another order of columns": (
        (
            "DROP INDEX django_outbox_message_claim; CREATE INDEX django_outbox_message_claim"
            f" ON {MESSAGE} (next_attempt_at, queue, id)"
        ),
        "is btree (next_attempt_at, queue, id) instead of btree (queue, next_attempt_at, id)",
    ),
    "a dropped CHECK": (
        f"ALTER TABLE {MESSAGE} DROP CONSTRAINT django_outbox_message_lease",
        "The constraint django_outbox_message_lease on django_outbox_message is missing",
    ),
    "another CHECK": (
        (
            f"ALTER TABLE {MESSAGE} DROP CONSTRAINT django_outbox_message_lease,"
            " ADD CONSTRAINT django_outbox_message_lease CHECK (true)"
        ),
        "The constraint django_outbox_message_lease on django_outbox_message is missing or another",
    ),
    "a missing column": (
        f"ALTER TABLE {LETTER} DROP COLUMN failed_at",
        (
            "ALTER TABLE django_outbox_dead_letter ADD COLUMN failed_at timestamp with time zone "
            "DEFAULT clock_timestamp() NOT NULL;"
        ),
    ),
    "a changed type": (
        f"ALTER TABLE {MESSAGE} ALTER COLUMN attempts_count TYPE bigint",
        (
            "The column django_outbox_message.attempts_count is of type bigint instead of integer. "
            "Mend it with: ALTER TABLE django_outbox_message "
            "ALTER COLUMN attempts_count TYPE integer;"
        ),
    ),
    "a missing default": (
        f"ALTER TABLE {MESSAGE} ALTER COLUMN message_id DROP DEFAULT",
        "has the default nothing instead of gen_random_uuid()",
    ),
    "another default": (
        f"ALTER TABLE {MESSAGE} ALTER COLUMN created_at SET DEFAULT now()",
        "has the default now() instead of clock_timestamp()",
    ),
    "a column that may be NULL": (
        f"ALTER TABLE {MESSAGE} ALTER COLUMN payload DROP NOT NULL",
        (
            "The column django_outbox_message.payload may be NULL. Mend it with: "
            "ALTER TABLE django_outbox_message ALTER COLUMN payload SET NOT NULL;"
        ),
    ),
    "another storage option": (
        f"ALTER TABLE {MESSAGE} SET (fillfactor = 100)",
        (
            "The storage option fillfactor of django_outbox_message is 100 instead of 40. Mend it "
            "with: ALTER TABLE django_outbox_message SET (fillfactor = 40);"
        ),
    ),
    "a storage option that is not set": (
        f"ALTER TABLE {MESSAGE} RESET (fillfactor)",
        "The storage option fillfactor of django_outbox_message is not set instead of 40.",
    ),
    "an index on a column of the lease": (
        f"CREATE INDEX theirs ON {MESSAGE} (leased_by)",
        (
            "The index theirs on django_outbox_message has to do with leased_by, which every claim "
            "writes: no claim can be a HOT update any more. Mend it with: "
            "DROP INDEX CONCURRENTLY theirs;"
        ),
    ),
    "an index whose predicate mentions the lease": (
        f"CREATE INDEX theirs ON {MESSAGE} (id) WHERE lease_token IS NULL",
        "has to do with lease_token",
    ),
    "an index on an expression of the lease": (
        f"CREATE INDEX theirs ON {MESSAGE} ((lease_expires_at IS NULL))",
        "has to do with lease_expires_at",
    ),
    "a disabled trigger": (
        "ALTER TABLE django_outbox_schedule DISABLE TRIGGER django_outbox_schedule_changed",
        "ENABLE TRIGGER django_outbox_schedule_changed;",
    ),
    "a trigger that fires on replicas only": (
        "ALTER TABLE django_outbox_schedule ENABLE REPLICA TRIGGER django_outbox_schedule_changed",
        "ENABLE TRIGGER django_outbox_schedule_changed;",
    ),
    "a missing trigger": (
        "DROP TRIGGER django_outbox_schedule_changed ON django_outbox_schedule",
        "The trigger django_outbox_schedule_changed on django_outbox_schedule is missing",
    ),
    "a primary key that is gone": (
        f"ALTER TABLE {LETTER} DROP CONSTRAINT django_outbox_dead_letter_pkey",
        "ALTER TABLE django_outbox_dead_letter ADD PRIMARY KEY (id);",
    ),
    "another primary key": (
        (
            f"ALTER TABLE {LETTER} DROP CONSTRAINT django_outbox_dead_letter_pkey,"
            " ADD PRIMARY KEY (id, failed_at)"
        ),
        (
            "ALTER TABLE django_outbox_dead_letter DROP CONSTRAINT django_outbox_dead_letter_pkey, "
            "ADD PRIMARY KEY (id);"
        ),
    ),
    "a missing table": ("DROP TABLE django_outbox_worker", "CREATE TABLE django_outbox_worker (id"),
    "a missing table with numbers": ("DROP TABLE django_outbox_schedule", "CREATE TABLE"),
    "a column that gives no numbers": (
        f"ALTER TABLE {LETTER} ALTER COLUMN id DROP IDENTITY",
        "The column django_outbox_dead_letter.id gives no numbers.",
    ),
}


@pytest.mark.parametrize(("statement", "says"), DRIFTS.values(), ids=list(DRIFTS))
def test_a_drift_is_named_with_what_mends_it_and_mending_it_does(statement: str, says: str) -> None:
    run(statement)

    assert says in drift()

    mend()
    outbox.validate_schema()


def test_that_there_are_no_tables_at_all_is_for_migrate_to_mend() -> None:
    run(f"DROP TABLE {', '.join(EXPECTED)}")

    assert drift().endswith(
        "There are no tables of django_outbox. Mend it with: manage.py migrate django_outbox"
    )


def test_numbers_that_were_lost_begin_beyond_all_that_have_been_given(
    make_letter: Callable[..., Any],
) -> None:
    outbox.publish(2, queue="orders")
    run(f"ALTER TABLE {MESSAGE} ALTER COLUMN id DROP IDENTITY")
    make_letter(original_id=50_000)

    mend()

    outbox.validate_schema()
    assert outbox.publish(3, queue="orders") == 1_000_050_001


def test_a_partitioned_table_of_messages_is_named() -> None:
    run(
        f"ALTER TABLE {MESSAGE} RENAME TO before",
        f"CREATE TABLE {MESSAGE} (LIKE before) PARTITION BY LIST (queue)",
    )

    assert "The table django_outbox_message is partitioned, so claims find nothing" in drift()


def test_a_generated_column_that_is_generated_otherwise_is_named() -> None:
    run(
        "ALTER TABLE django_outbox_schedule DROP COLUMN tick_at",
        "ALTER TABLE django_outbox_schedule ADD COLUMN tick_at timestamptz NOT NULL"
        " GENERATED ALWAYS AS (COALESCE(next_run_at, 'infinity')) STORED",
        "CREATE INDEX django_outbox_schedule_tick ON django_outbox_schedule (tick_at, id)",
    )

    assert "The column django_outbox_schedule.tick_at is generated as COALESCE(" in drift()


def test_all_that_differs_is_named_at_once() -> None:
    run(
        "DROP INDEX django_outbox_message_claim",
        f"ALTER TABLE {MESSAGE} ALTER COLUMN message_id DROP DEFAULT",
    )

    with pytest.raises(outbox.SchemaError) as caught:
        outbox.validate_schema()

    assert len(caught.value.differences) == 2


@pytest.mark.parametrize(
    "statement",
    [
        f"ALTER TABLE {MESSAGE} ADD COLUMN tenant integer DEFAULT 0",
        f"CREATE INDEX theirs ON {MESSAGE} (correlation_id)",
        f"ALTER TABLE {MESSAGE} ADD CONSTRAINT theirs CHECK (queue <> 'x')",
        f"ALTER TABLE {MESSAGE} SET (autovacuum_vacuum_scale_factor = 0.01)",
        "ALTER INDEX django_outbox_message_claim RENAME TO another_name",
        "ALTER INDEX django_outbox_message_claim SET (fillfactor = 80)",
        f"ALTER TABLE {MESSAGE} RENAME CONSTRAINT django_outbox_message_lease TO another_name",
    ],
)
def test_what_a_site_has_added_or_renamed_is_left_alone(statement: str) -> None:
    run(statement)

    outbox.validate_schema()


def check(*arguments: str) -> tuple[str, CommandError | None]:
    """Run `outbox_check` and return what it prints and how it ends."""
    said = io.StringIO()
    try:
        call_command("outbox_check", *arguments, stdout=said)
    except CommandError as error:
        return said.getvalue(), error
    return said.getvalue(), None


def test_outbox_check_says_that_all_is_well() -> None:
    said, error = check()

    assert (said, error) == ("The tables in the database 'default' are as they should be.\n", None)


def test_outbox_check_prints_what_differs_and_fails() -> None:
    run("DROP INDEX django_outbox_message_claim")

    said, error = check()

    assert "The index django_outbox_message_claim on django_outbox_message is missing.\n" in said
    assert "\n    CREATE INDEX CONCURRENTLY django_outbox_message_claim ON" in said
    assert str(error) == "1 difference(s) in the database 'default'."


def test_outbox_check_prints_json_for_machines() -> None:
    run(f"ALTER TABLE {MESSAGE} SET (fillfactor = 70)")

    said, error = check("--json")

    assert json.loads(said) == {
        "database": "default",
        "differences": [
            {
                "what": "The storage option fillfactor of django_outbox_message is 70 instead of "
                "40.",
                "mend": "ALTER TABLE django_outbox_message SET (fillfactor = 40);",
            }
        ],
    }
    assert error is not None


def test_the_system_check_of_the_database_reports_the_same() -> None:
    run("DROP INDEX django_outbox_message_claim")

    with pytest.raises(SystemCheckError, match=r"django_outbox\.E005.*message_claim"):
        call_command("check", databases=["default"])
    with suppress(SystemCheckError):
        call_command("check")  # without naming a database none is looked at


def test_a_drift_does_not_keep_tests_from_being_run(capsys: pytest.CaptureFixture[str]) -> None:
    run("DROP INDEX django_outbox_message_claim")

    DiscoverRunner().run_checks({"default"})

    assert "(django_outbox.E005) The index django_outbox_message_claim" in capsys.readouterr().err


def test_who_may_not_see_the_migrations_is_told_that_nothing_was_checked() -> None:
    run("CREATE ROLE outbox_nobody", "SET LOCAL ROLE outbox_nobody")

    (warning,) = check_schema(None, databases=["default"])

    assert warning.id == "django_outbox.W006"
    assert warning.msg == (
        "The outbox in the database 'default' cannot be checked: "
        "permission denied for table django_migrations"
    )
