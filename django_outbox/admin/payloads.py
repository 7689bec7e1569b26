"""Payloads as people read them. Pure; what comes out is text, never markup."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import codecs
from ..errors import InvalidPayload
from ..messages import content_type

MOST_SHOWN = 100_000
"""Bytes of a payload that a page shows; the rest is there to download."""

MOST_INDENTED = 4 * MOST_SHOWN
"""Characters of a payload once it is indented: a hundred levels deep each comma costs 200."""

_ROW = 16


@dataclass(frozen=True, slots=True)
class Shown:
    """A payload to show: its text, whether it is text at all, and whether some is left out."""

    text: str
    is_text: bool
    is_cut: bool
    size: int


def show(body: bytes, headers: Mapping[str, str] | None) -> Shown:
    """Return a payload indented if it is JSON, as it is if it is text, else as a hex dump."""
    size, is_cut = len(body), len(body) > MOST_SHOWN
    head = bytes(body[:MOST_SHOWN])
    text = _text(head, kind_of(headers), is_cut=is_cut)
    return Shown(hex_dump(head) if text is None else text, text is not None, is_cut, size)


def hex_dump(body: bytes) -> str:
    """Return the bytes sixteen to a line: where they are, their values, and their ASCII."""
    lines = []
    for start in range(0, len(body), _ROW):
        row = body[start : start + _ROW]
        values = row.hex(" ", 1).ljust(3 * _ROW - 1)
        ascii_ = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {values}  {ascii_}")
    return "\n".join(lines)


def kind_of(headers: Any) -> str:
    """Return the content type; headers written by hand may be anything."""
    if not isinstance(headers, dict):
        return codecs.BINARY
    kind: Any = content_type(headers)
    return kind if isinstance(kind, str) else codecs.BINARY


def pretty_json(body: bytes, kind: str) -> str | None:
    """Return JSON indented, None if it is none. What UTF-8 cannot hold stays as an escape.

    JSON that is nested so deep that its indentation would fill the page stays as it is.
    """
    try:
        value = codecs.decode(body, kind)
        text = _indented(value, ensure_ascii=False)
        if text is not None and not _is_utf8(text):
            text = _indented(value, ensure_ascii=True)
        return bytes(body).decode() if text is None else text
    except (InvalidPayload, ValueError, RecursionError):
        return None


def _indented(value: Any, *, ensure_ascii: bool) -> str | None:
    """Return a value as indented JSON, None if that would be out of all proportion."""
    parts, length = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=ensure_ascii).iterencode(value):
        parts.append(part)
        length += len(part)
        if length > MOST_INDENTED:
            return None
    return "".join(parts)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _text(body: bytes, kind: str, *, is_cut: bool) -> str | None:
    """Return what can be read as text, None if it is bytes."""
    is_json = codecs.is_json(kind)
    if not is_json and not kind.startswith("text/"):
        return None
    if is_json and not is_cut:
        return pretty_json(body, kind)
    try:
        return body.decode(errors="replace" if is_cut else "strict")
    except ValueError:
        return None
