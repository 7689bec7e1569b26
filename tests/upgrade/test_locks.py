"""No migration keeps publishers and workers waiting, whatever the size of the tables.

What each takes is read from the server, inside of its transaction, since a test's tables are small
and time would tell nothing. Up to the first release they run on tables that nobody uses yet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
import pytest
from django.db import OperationalError, connections, transaction
from django.db.migrations.executor import MigrationExecutor
from psycopg.errors import LockNotAvailable

from django_outbox import outbox
from django_outbox.migration_operations import ReplaceIndex
from tests.support import PATIENCE, wait_until
from tests.upgrade.tables import ALIAS, APP, NAMES, WAITING, Tables, before

FIRST_RELEASE = ["0001_initial", "0002_schedules", "0003_operations"]
CONCURRENT = ["0005_claim_index"]
LATER = [name for name in NAMES if name not in [*FIRST_RELEASE, *CONCURRENT]]

BLOCK_WRITERS = {
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
}


class Step(NamedTuple):
    """What a migration has done to the tables that were there before."""

    blocked: set[str]
    """Tables that nobody else could write to until its end."""

    read: set[str]
    """Those of them whose rows it has read, as the building of an index does."""

    rewritten: set[str]


def take(tables: Tables, name: str, *, backward: bool) -> Step:
    """Migrate one step, forward or backward, look what it did, and roll it back."""
    tables.migrate(name if backward else before(name))
    executor = MigrationExecutor(connections[ALIAS])
    migration = executor.loader.get_migration(APP, name)
    assert migration.atomic, "What it has locked is seen before it commits"
    state = executor.loader.project_state((APP, name), at_end=False)
    there = files(tables)
    with connections[ALIAS].schema_editor() as editor:
        (migration.unapply if backward else migration.apply)(state, editor)
        step = look(tables, there)
        transaction.set_rollback(True, using=ALIAS)
    return step


def look(tables: Tables, there: dict[str, int]) -> Step:
    locks = tables.query(
        "SELECT relation::regclass::text, mode, pg_stat_get_xact_tuples_returned(relation)"
        " FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
    )
    blocked = {(table, rows) for table, mode, rows in locks if mode in BLOCK_WRITERS}
    now = files(tables)
    return Step(
        blocked={table for table, _ in blocked if table in there},
        read={table for table, rows in blocked if table in there and rows},
        rewritten={table for table, file in there.items() if now.get(table, file) != file},
    )


def files(tables: Tables) -> dict[str, int]:
    """Return the file of each table; a table that is rewritten gets another."""
    return dict(
        tables.query(
            "SELECT relname::text, pg_relation_filenode(oid) FROM pg_class"
            " WHERE relkind = 'r' AND relname LIKE 'django_outbox_%'"
        )
    )


@pytest.fixture(autouse=True)
def _rows(tables: Tables) -> None:
    """Have something in the tables, so that it shows when it is read."""
    for statement in (
        "INSERT INTO django_outbox_message (queue, payload) VALUES ('orders', '7')",
        """
        INSERT INTO django_outbox_dead_letter
            (original_id, message_id, queue, payload, correlation_id, created_at, failure_reason)
        VALUES (1, gen_random_uuid(), 'orders', '7', '', now(), 'rejected')
        """,
    ):
        tables.query(statement)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", LATER)
def test_a_migration_reads_and_rewrites_no_table_that_it_keeps_others_from(
    tables: Tables, name: str, *, backward: bool
) -> None:
    # G07
    step = take(tables, name, backward=backward)

    assert not step.read
    assert not step.rewritten


@pytest.mark.parametrize("backward", [False, True])
def test_changing_how_full_pages_get_keeps_nobody_from_anything(
    tables: Tables, *, backward: bool
) -> None:
    assert take(tables, "0004_storage", backward=backward) == Step(set(), set(), set())


def test_an_index_that_is_built_in_a_transaction_would_be_seen(tables: Tables) -> None:
    step = take(tables, "0003_operations", backward=False)

    both = {"django_outbox_message", "django_outbox_dead_letter"}
    assert step == Step(blocked=both, read=both, rewritten=set())


def test_a_table_that_is_rewritten_would_be_seen(tables: Tables) -> None:
    there = files(tables)
    with transaction.atomic(using=ALIAS):
        tables.query("ALTER TABLE django_outbox_message ALTER COLUMN max_attempts TYPE bigint")

        assert look(tables, there).rewritten == {"django_outbox_message"}


@contextmanager
def using_all(tables: Tables) -> Iterator[None]:
    """Have a transaction open that has written to every table."""
    with psycopg.connect(tables.url) as other:
        other.execute(f"LOCK TABLE {', '.join(files(tables))} IN ROW EXCLUSIVE MODE")
        yield


@pytest.mark.parametrize(
    ("name", "backward"),
    [("0002_schedules", True), ("0003_operations", False), ("0003_operations", True)],
)
def test_a_table_in_use_fails_a_migration_that_others_would_wait_behind(
    tables: Tables, name: str, *, backward: bool
) -> None:
    # G07
    here, there = (name, before(name)) if backward else (before(name), name)
    tables.migrate(here)

    with using_all(tables), pytest.raises(OperationalError, match="lock timeout") as failed:
        tables.migrate(there)

    assert isinstance(failed.value.__cause__, LockNotAvailable)
    assert "Run it again" in failed.value.__notes__[0]
    tables.migrate(there)
    assert tables.query("SHOW lock_timeout") == [("0",)]


@pytest.mark.parametrize("backward", [False, True])
def test_one_that_nobody_waits_behind_goes_on_beside_a_table_in_use(
    tables: Tables, *, backward: bool
) -> None:
    here, there = "0003_operations", "0004_storage"
    tables.migrate(there if backward else here)

    with using_all(tables):
        tables.migrate(here if backward else there)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", CONCURRENT)
def test_one_that_builds_an_index_beside_a_table_in_use_lets_others_publish(
    tables: Tables, name: str, *, backward: bool
) -> None:
    # G07
    here, there = (name, before(name)) if backward else (before(name), name)
    tables.migrate(here)

    def migrate() -> None:
        tables.migrate(there)
        connections[ALIAS].close()

    thread = threading.Thread(target=migrate)
    with using_all(tables):
        thread.start()
        wait_until(lambda: tables.query(WAITING) == [(1,)])
        tables.query("SET lock_timeout = 100")

        tables.publish("beside", queue="orders", timer_id="t1")

        assert tables.query(WAITING) == [(1,)]
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_one_that_was_interrupted_while_it_built_an_index_is_run_again(tables: Tables) -> None:
    tables.migrate("0004_storage")
    with using_all(tables):
        tables.query("SET statement_timeout = 200")
        with pytest.raises(OperationalError, match="statement timeout"):
            tables.migrate("0005_claim_index")
        tables.query("RESET statement_timeout")

    tables.migrate("0005_claim_index")

    outbox.validate_schema(using=ALIAS)


CLAIM = "django_outbox_message_claim"
BUILD = f"CREATE INDEX {CLAIM}_new ON django_outbox_message (queue, next_attempt_at, id)"


@pytest.mark.parametrize(("predicate", "is_kept"), [("WHERE queue IS NOT NULL", True), ("", False)])
def test_an_index_that_an_interrupted_run_has_made_is_kept_if_it_is_the_one(
    tables: Tables, predicate: str, *, is_kept: bool
) -> None:
    tables.migrate("0004_storage")
    tables.query(f"{BUILD} {predicate}")
    ((made,),) = tables.query(f"SELECT '{CLAIM}_new'::regclass::oid")
    tables.query(f"DROP INDEX {CLAIM}")

    tables.migrate("0005_claim_index")

    ((now,),) = tables.query(f"SELECT '{CLAIM}'::regclass::oid")
    assert (now == made) is is_kept
    outbox.validate_schema(using=ALIAS)


@pytest.mark.parametrize("lost", [CLAIM, "nothing"])
def test_the_indexes_of_another_schema_on_the_path_are_left_alone(
    tables: Tables, lost: str
) -> None:
    tables.migrate("0004_storage")
    tables.query("CREATE SCHEMA tenant")
    tables.query("CREATE TABLE tenant.django_outbox_message (LIKE django_outbox_message)")
    for name in (CLAIM, f"{CLAIM}_new"):
        tables.query(f"CREATE INDEX {name} ON tenant.django_outbox_message (queue)")
    tables.query("CREATE SCHEMA ours")
    tables.query("ALTER TABLE django_outbox_message SET SCHEMA ours")
    tables.query(f"DROP INDEX IF EXISTS ours.{lost}")
    tables.query("SET search_path = ours, tenant, public")

    tables.migrate("0005_claim_index")

    left = "SELECT indexname FROM pg_indexes WHERE schemaname = 'tenant' ORDER BY 1"
    assert tables.query(left) == [(CLAIM,), (f"{CLAIM}_new",)]
    outbox.validate_schema(using=ALIAS)


def test_two_migrations_at_once_leave_one_index_that_is_right(tables: Tables) -> None:
    errors: list[BaseException] = []

    def replace(definition: str) -> None:
        operation = ReplaceIndex(
            "outboxmessage",
            "django_outbox_message",
            CLAIM,
            before="btree (queue, next_attempt_at, id)",
            after=definition,
        )
        try:
            with connections[ALIAS].schema_editor(atomic=False) as editor:
                operation.database_forwards(APP, editor, None, None)
        except BaseException as error:
            errors.append(error)
        finally:
            connections[ALIAS].close()

    for _ in range(10):
        tables.migrate("0004_storage")
        wanted = "btree (queue, next_attempt_at, id) WHERE (queue IS NOT NULL)"
        threads = [threading.Thread(target=replace, args=[wanted]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        tables.migrate(NAMES[-1])
        outbox.validate_schema(using=ALIAS)

    assert errors == []
