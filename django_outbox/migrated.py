"""Which of the package's migrations a database lacks."""

from __future__ import annotations

from functools import cache

from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

APP = "django_outbox"


def missing_migrations(alias: str) -> list[str]:
    """Return our migrations that are on disk and not in the database."""
    applied = MigrationRecorder(connections[alias]).applied_migrations()
    return sorted(_on_disk() - {name for app, name in applied if app == APP})


@cache
def _on_disk() -> frozenset[str]:
    """Return the names, read once: the loader goes through the migrations of every app."""
    from django.db.migrations.loader import MigrationLoader

    loader = MigrationLoader(None)
    return frozenset(name for app, name in loader.disk_migrations if app == APP)
