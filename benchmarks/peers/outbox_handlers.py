"""The handler that django_outbox finds by itself."""

from __future__ import annotations

from typing import Any

from benchmarks.peers import marks
from django_outbox import outbox


@outbox.handler("peers")
def handle(message: outbox.Message[Any]) -> None:
    """Do nothing but be counted."""
    marks.handled()
