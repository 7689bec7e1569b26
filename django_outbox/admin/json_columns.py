"""JSON of a column that is read as text: PostgreSQL holds numbers and depths that Python cannot."""

from __future__ import annotations

import json
from typing import Any


def loaded(text: str | None) -> Any:
    """Return JSON as Python has it, None for what Python cannot hold."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):  # more digits than int() takes, or nested too deep
        return None


def loaded_names(text: str) -> list[str]:
    """Return the strings in a list; what was written by hand and is no list has none."""
    value = loaded(text)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
