"""The settings of the suite's processes."""

from __future__ import annotations

import environ

SECRET_KEY = "for the fault suite only"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django_outbox", "tests.faults"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": environ.Env().db("DATABASE_URL", default="postgres:///postgres")}
# So that Django sets each session up, which can break meanwhile.
DATABASES["default"]["TIME_ZONE"] = "Europe/Berlin"
OUTBOX = {
    "SCHEDULES": {
        "second": {"spec": "@every 1s", "queue": "scheduled"},
        "five seconds": {"spec": "@every 5s", "queue": "scheduled"},
        "minute": {"spec": "@cron * * * * *", "queue": "scheduled"},
    }
}
