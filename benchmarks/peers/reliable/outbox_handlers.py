"""The handler of django-reliable-outbox."""

from __future__ import annotations

from typing import Any

from reliable_outbox import handler

from benchmarks.peers import marks


@handler("peers")
def handle(envelope: Any) -> None:
    """Do nothing but be counted."""
    marks.handled()
