"""The pytest plugin: in a project of its own, through the entry point of the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

import pytest

SETTINGS = """
    import environ

    DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
    DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
    INSTALLED_APPS = ["django_outbox"]
    SECRET_KEY = "for this test only"
    USE_TZ = True
"""

WITH_A_DATABASE = """
    from datetime import timedelta

    from django_outbox import outbox
    from django_outbox.models import OutboxMessage
    from django_outbox.testing import drain

    got = []


    @outbox.handler("orders")
    def handle(message):
        got.append(message.payload)


    def test_outbox_drain_is_drain_with_access_to_the_database(outbox_drain):
        assert outbox_drain is drain
        outbox.publish("now", queue="orders")
        outbox.publish("later", queue="orders", activate_in=timedelta(hours=1))
        assert outbox_drain() == 1
        assert outbox_drain("orders", advance=timedelta(hours=1)) == 1
        assert got == ["now", "later"]
        outbox.publish("left over", queue="orders")


    def test_nothing_leaks_to_the_next_test(outbox_drain):
        assert not OutboxMessage.objects.exists()
        assert outbox_drain() == 0
"""

WITHOUT_ONE = """
    import pytest

    from django_outbox import outbox
    from django_outbox.models import OutboxMessage
    from django_outbox.testing import FakeOutbox

    got = []


    @outbox.handler("orders")
    def handle(message):
        got.append(message.payload)


    def test_fake_outbox_needs_no_database(fake_outbox):
        assert isinstance(fake_outbox, FakeOutbox)
        outbox.publish("now", queue="orders")
        assert got == []
        assert fake_outbox.drain() == 1
        assert got == ["now"]
        outbox.publish("left over", queue="orders")
        with pytest.raises(RuntimeError, match="not allowed"):
            OutboxMessage.objects.count()


    def test_nothing_leaks_to_the_next_test(fake_outbox):
        assert fake_outbox.messages == []


    def test_without_the_fixture_the_tables_are_back():
        with pytest.raises(outbox.TransactionRequired):
            outbox.publish("now", queue="orders")
"""

WITHOUT_DJANGO = """
    import sys


    def test_nothing_of_django_is_imported():
        assert "django" not in sys.modules
        assert "django_outbox.testing" not in sys.modules
"""


def run_pytest(folder: Path, test: str, *arguments: str) -> str:
    """Run pytest on one file in a project of its own; return what it printed, which ends well."""
    (folder / "project_settings.py").write_text(textwrap.dedent(SETTINGS))
    (folder / "test_project.py").write_text(textwrap.dedent(test))
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path="/outbox_plugin").geturl()
    environment = {name: v for name, v in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *arguments],
        cwd=folder,
        env={**environment, "DATABASE_URL": url, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_plugin_is_an_entry_point_of_the_installed_package() -> None:
    (plugin,) = [e for e in entry_points(group="pytest11") if e.value.startswith("django_outbox")]

    assert plugin.value == "django_outbox.pytest_plugin"
    assert plugin.dist is not None
    assert plugin.dist.name == "django-outbox-pg"


def test_outbox_drain_delivers_in_the_transaction_of_its_test(tmp_path: Path) -> None:
    out = run_pytest(tmp_path, WITH_A_DATABASE, "--ds=project_settings")

    assert "2 passed" in out


def test_fake_outbox_stands_in_for_the_database(tmp_path: Path) -> None:
    out = run_pytest(tmp_path, WITHOUT_ONE, "--ds=project_settings")

    assert "3 passed" in out


def test_a_project_without_django_is_left_alone(tmp_path: Path) -> None:
    out = run_pytest(tmp_path, WITHOUT_DJANGO, "-p", "no:django", "-p", "no:hypothesispytest")

    assert "1 passed" in out


@pytest.mark.usefixtures("registry")
def test_the_fixtures_are_there_in_this_run_too(fake_outbox: object) -> None:
    from django_outbox.testing import FakeOutbox, published

    assert isinstance(fake_outbox, FakeOutbox)
    assert published() == []
