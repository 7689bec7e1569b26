"""Ids as people give them: in an address, a form or a search."""

from __future__ import annotations

from uuid import UUID

_LARGEST = 2**63 - 1


def as_id(text: str) -> int | None:
    """Return the number of a row, None if the text is none; by hand, one may be below zero."""
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(_LARGEST))
    return id_ if is_number and -_LARGEST - 1 <= (id_ := int(text)) <= _LARGEST else None


def as_uuid(text: str) -> UUID | None:
    """Return the UUID that the text is, None if it is none."""
    try:
        return UUID(text)
    except ValueError:
        return None
