"""The PostgreSQL server under the tests: the one ``DATABASE_URL`` names, else a temporary one."""

from __future__ import annotations

import os
import sys
from typing import Any

import environ

from example_project.embedded import TemporaryServer, start_temporary

server: TemporaryServer | None = None


def provide() -> None:
    """Start a server of the version ``TEST_POSTGRES_VERSION`` for a test run that was given none.

    Its URL goes into the environment, so that the processes which tests start use it too. Only
    pytest gets a server: mypy's Django plugin and ``manage.py`` read these settings as well.
    """
    global server  # noqa: PLW0603
    if "pytest" in sys.modules and "DATABASE_URL" not in os.environ:
        version = int(os.environ.get("TEST_POSTGRES_VERSION", "18"))
        server = start_temporary(version, durable=False)
        os.environ["DATABASE_URL"] = server.url


def database(suffix: str = "") -> dict[str, Any]:
    """Return the Django settings for a database on the server."""
    settings = dict(environ.Env().db_url(default="postgres:///postgres"))
    if suffix:
        settings["NAME"] = f"{settings['NAME']}_{suffix}"
    return settings
