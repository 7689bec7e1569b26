"""What all tests share."""

from __future__ import annotations

import psycopg
from django.db import connection


def pytest_report_header() -> str:
    """Say which PostgreSQL the tests run on."""
    with psycopg.connect(**connection.get_connection_params()) as session:
        return f"PostgreSQL: {session.info.parameter_status('server_version')}"
