"""What the processes of a supervisor run in its tests; importable, as they are spawned."""

from __future__ import annotations

import sys
from typing import Any

from django_outbox.worker.processes import is_supervised


def work(code: Any, number: int, start: int) -> None:
    """End with this code."""
    sys.exit(code)


def recover(code: Any, number: int, start: int) -> None:
    """End with this code the first time, and well the second."""
    sys.exit(code if start == 1 else 0)


def tell() -> None:
    """End with 1 if this process is a supervisor's."""
    sys.exit(int(is_supervised()))
