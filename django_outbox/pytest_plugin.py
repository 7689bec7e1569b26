"""Fixtures for pytest, found through the entry point of the installed package.

Loaded in every test run on the machine, with Django or without: so it imports nothing of ours, and
stands outside of `testing`, which does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import FakeOutbox


@pytest.fixture
def outbox_drain(db: Any) -> Callable[..., int]:
    """Give `django_outbox.testing.drain`, with access to the database."""
    from .testing import drain

    return drain


@pytest.fixture
def fake_outbox() -> Iterator[FakeOutbox]:
    """Keep messages in memory for the test, and give the `FakeOutbox` that does."""
    from .testing import FakeOutbox

    with FakeOutbox() as fake:
        yield fake
