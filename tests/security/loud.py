"""The settings of processes that write every log record of every library, with all it carries."""

from __future__ import annotations

import logging

from tests.settings_worker import *


class Everything(logging.Formatter):
    """Writes a record's text and traceback, then all of its attributes."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{super().format(record)} {vars(record)!r}"


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"everything": {"()": Everything}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "everything"}},
    "root": {"handlers": ["stderr"], "level": "DEBUG"},
}
