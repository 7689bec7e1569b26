"""The same tests on PostgreSQL 16: ``pytest --ds=tests.settings_postgres16``."""

from __future__ import annotations

import os

os.environ["TEST_POSTGRES_VERSION"] = "16"

from tests.settings import *
