"""Which names can be stored: queues, schedules, timers, and the text of headers.

PostgreSQL can hold neither NUL nor a lone surrogate, and would say so only in the middle of the
caller's transaction. So it is said here, before any SQL.
"""

from __future__ import annotations

from .errors import InvalidName, ReservedName

MAX_LENGTH = 255
RESERVED_PREFIX = "__"


def flaw_in_text(text: str) -> str | None:
    """Return what keeps `text` from being stored, or None."""
    if "\x00" in text:
        return "contains a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate, which UTF-8 cannot express"
    return None


def flaw_in_name(name: str) -> str | None:
    """Return what keeps `name` from being a name, or None."""
    if not name:
        return "is empty"
    if len(name) > MAX_LENGTH:
        return f"has {len(name)} characters, more than {MAX_LENGTH}"
    return flaw_in_text(name)


def is_reserved(queue: str) -> bool:
    """Tell whether the queue is one of the package's own, which no handler can serve."""
    return queue.startswith(RESERVED_PREFIX)


def validate_queue(queue: str, *, kind: str = "queue") -> str:
    """Return `queue` if it can name a queue; raise `InvalidName` or `ReservedName`."""
    if not isinstance(queue, str):
        raise TypeError(f"The {kind} must be a str; {queue!r} is of type {type(queue).__name__}.")
    if flaw := flaw_in_name(queue):
        raise InvalidName(f"The {kind} {_shown(queue)} {flaw}.")
    if is_reserved(queue):
        raise ReservedName(
            f"The {kind} {_shown(queue)} starts with {RESERVED_PREFIX!r}, which is kept for "
            "django_outbox itself; use another name."
        )
    return plain(queue)


def plain(text: str) -> str:
    """Return `text` as nothing but a `str`: a member of a `(str, Enum)` formats differently."""
    return str.__str__(text)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:60] + "…")
