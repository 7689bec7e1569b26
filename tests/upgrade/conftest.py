"""Fixtures of the tests of upgrades."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from tests.upgrade import tables as upgrade_tables
from tests.upgrade.tables import Tables


@pytest.fixture
def tables(django_db_blocker: DjangoDbBlocker) -> Iterator[Tables]:
    """A database with the newest tables, which nobody else uses."""
    with django_db_blocker.unblock(), upgrade_tables.provide() as tables:
        yield tables
