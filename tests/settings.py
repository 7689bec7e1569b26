"""The settings of the tests: the example's, and a second database for what must not mix them up."""

from __future__ import annotations

from example_project.settings import *
from tests import postgres

postgres.provide()

DATABASES = {"default": postgres.database(), "orders": postgres.database("orders")}
INSTALLED_APPS = [*INSTALLED_APPS, "tests.testapp"]
MIDDLEWARE = [*MIDDLEWARE, "tests.policy.content_security_policy"]
DEBUG = False
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
