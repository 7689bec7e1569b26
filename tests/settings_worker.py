"""The settings of the workers that tests start as processes of their own.

The test says by environment which database they work on and which further apps there are.
"""

from __future__ import annotations

import environ

env = environ.Env()

SECRET_KEY = "for the tests only"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django_outbox", "tests.testapp", *env.list("WORKER_APPS", default=[])]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": env.db("DATABASE_URL", default="postgres:///postgres")}
OUTBOX = env.json("WORKER_OUTBOX", default={})
