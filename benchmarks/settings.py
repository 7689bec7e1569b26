"""The settings of the benchmarks: the package, one app with handlers, and a server of their own."""

from __future__ import annotations

import environ

DATABASES = {"default": environ.Env().db("DATABASE_URL")}
INSTALLED_APPS = ["django_outbox", "benchmarks"]
SECRET_KEY = "benchmarks"
USE_TZ = True
DEBUG = False
