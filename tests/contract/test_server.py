"""The server that the contract is tried on."""

from __future__ import annotations

import os

import pytest
from django.db import connection

from tests import postgres


@pytest.mark.django_db
def test_the_server_is_of_the_version_asked_for() -> None:
    if postgres.server is None:
        pytest.skip("DATABASE_URL names the server")
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        (version,) = cursor.fetchone()
    assert int(version) // 10_000 == int(os.environ.get("TEST_POSTGRES_VERSION", "18"))
