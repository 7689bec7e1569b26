"""Fixtures of the tests of security."""

from __future__ import annotations

from tests.process.conftest import spare, spare_of_all, stage  # noqa: F401 - fixtures
