"""The test app's configuration."""

from __future__ import annotations

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """An app with a business table, and no migrations."""

    name = "tests.testapp"
    default_auto_field = "django.db.models.BigAutoField"
