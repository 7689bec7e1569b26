"""Fixtures of the tests of schedules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.helpers import Listener, Together


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def together() -> Iterator[Together]:
    together = Together()
    yield together
    together.close()
