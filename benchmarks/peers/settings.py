"""The settings of the peers that run in Django: one of them at a time, and a database of its own.

Two of them have a command of the same name, so `PEERS_APPS` names the apps of the one that runs.
"""

from __future__ import annotations

import os

import environ

DATABASES = {"default": environ.Env().db("DATABASE_URL")}
INSTALLED_APPS = os.environ.get("PEERS_APPS", "django_outbox benchmarks.peers").split()
SECRET_KEY = "peers"
USE_TZ = True
DEBUG = False
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
if "django_tasks_db" in INSTALLED_APPS:
    DATABASES["default"]["CONN_MAX_AGE"] = None  # It would connect anew for each task.
