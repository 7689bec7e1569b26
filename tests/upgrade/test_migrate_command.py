"""`manage.py migrate` as a deployment runs it: Django has the checks of the database run before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from django_outbox import outbox
from tests.upgrade.tables import ALIAS, NAMES, NEWEST, Tables

ROOT = Path(__file__).parents[2]


def manage(tables: Tables, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a site whose only database is this one."""
    environment = {
        **os.environ,
        "DATABASE_URL": tables.url,
        "DJANGO_SETTINGS_MODULE": "tests.settings_worker",
    }
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["zero", *NAMES[:-1]])
def test_migrate_runs_what_is_missing(tables: Tables, name: str) -> None:
    tables.migrate(name)

    ended = manage(tables, "migrate", "django_outbox")

    assert f"Applying django_outbox.{NEWEST}... OK" in ended.stdout
    assert (ended.returncode, ended.stderr) == (0, "")
    outbox.validate_schema(using=ALIAS)


def test_migrate_runs_again_after_the_newest_migration_was_interrupted(tables: Tables) -> None:
    tables.migrate("0004_storage")
    tables.query("DROP INDEX django_outbox_message_claim")

    assert manage(tables, "migrate", "django_outbox").returncode == 0

    outbox.validate_schema(using=ALIAS)


def test_a_drift_is_an_error_of_check_and_a_warning_of_migrate(tables: Tables) -> None:
    tables.query("ALTER TABLE django_outbox_message RESET (fillfactor)")

    checked = manage(tables, "check", "--database", "default")
    migrated = manage(tables, "migrate", "django_outbox")

    assert "django_outbox.E005" in checked.stderr
    assert "fillfactor" in checked.stderr
    assert checked.returncode == 1
    assert "WARNINGS:\nthe database 'default': (django_outbox.E005)" in migrated.stderr
    assert migrated.returncode == 0


@pytest.mark.parametrize("name", ["zero", "0003_operations", "0004_storage"])
def test_check_says_which_migrations_are_missing_and_nothing_of_what_they_change(
    tables: Tables, name: str
) -> None:
    tables.migrate(name)
    missing = ", ".join(one for one in NAMES if one > name or name == "zero")

    checked = manage(tables, "check", "--database", "default")

    assert (
        f"(django_outbox.W005) The database 'default' lacks migrations of django_outbox: {missing}."
        "\n\tHINT: Run: manage.py migrate django_outbox"
    ) in checked.stderr
    assert "E005" not in checked.stderr
    assert checked.returncode == 0
