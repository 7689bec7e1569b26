"""Fixtures of the tests with worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Start worker processes on it; they end with the test."""
    with Stage(tmp_path) as stage:
        yield stage
