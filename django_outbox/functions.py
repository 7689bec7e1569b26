"""The database functions that columns default to."""

from __future__ import annotations

from django.db import models


class ClockTimestamp(models.Func):
    """The database's clock at this very moment; `now()` stands still inside a transaction."""

    template = "clock_timestamp()"
    output_field = models.DateTimeField()


class RandomUUID(models.Func):
    template = "gen_random_uuid()"
    output_field = models.UUIDField()
