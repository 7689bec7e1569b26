"""Which of the package's migrations a database has, and which it lacks."""

from __future__ import annotations

from functools import cache

from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

APP = "django_outbox"


def has_been_migrated(alias: str) -> bool:
    """Tell whether any of our migrations has been run there."""
    return bool(_applied(alias))


def missing_migrations(alias: str) -> list[str]:
    """Return our migrations that are on disk and not in the database."""
    return sorted(_on_disk() - _applied(alias))


def _applied(alias: str) -> set[str]:
    recorder = MigrationRecorder(connections[alias])
    return {name for app, name in recorder.applied_migrations() if app == APP}


@cache
def _on_disk() -> frozenset[str]:
    """Return the names, read once: the loader goes through the migrations of every app."""
    from django.db.migrations.loader import MigrationLoader

    loader = MigrationLoader(None)
    return frozenset(name for app, name in loader.disk_migrations if app == APP)
