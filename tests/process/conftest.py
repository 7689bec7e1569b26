"""Fixtures of the tests with worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from tests.process import spare as spare_server
from tests.process.spare import Spare
from tests.process.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Start worker processes on it; they end with the test."""
    with Stage(tmp_path) as stage:
        yield stage


@pytest.fixture(scope="package")
def spare_of_all(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Spare]:
    with django_db_blocker.unblock(), spare_server.provide() as spare:
        yield spare


@pytest.fixture
def spare(spare_of_all: Spare, django_db_blocker: DjangoDbBlocker) -> Iterator[Spare]:
    """A server whose end disturbs nobody else, with empty tables."""
    with django_db_blocker.unblock():
        yield spare_of_all
        spare_of_all.resume()
        spare_of_all.clear()
