"""Exceptions as they are stored: text, class and fingerprint.

Whatever a handler raises must be storable: NUL, lone surrogates, megabytes of text and a `__str__`
that raises are all somebody's real exception.
"""

from __future__ import annotations

import hashlib
import logging
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from ..conf import settings
from ..errors import InvalidPayload

logger = logging.getLogger("django_outbox")

PACKAGE = Path(__file__).parent.parent
MAX_CHARACTERS = 8192
_HEADLINE = 2000
ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]
_CUT = "\n… cut …\n"


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of an exception; `text` is None if the site's renderer says so."""

    exception_class: str
    text: str | None
    origin: str


def describe(exception: BaseException) -> Failure:
    """Return what to store of `exception`. Never raises."""
    name = name_of(exception)
    return Failure(
        exception_class=_storable(name)[:255],
        text=_render(exception, name),
        origin=_origin(exception),
    )


def name_of(exception: BaseException) -> str:
    """Return the name of an exception's class, with its module unless it is Python's own."""
    kind = type(exception)
    name, module = (str(type.__dict__[of].__get__(kind)) for of in ("__qualname__", "__module__"))
    return name if module == "builtins" else f"{module}.{name}"


def to_log(exception: BaseException | None) -> ExcInfo | None:
    """Return what logging takes as `exc_info`: the traceback from the handler on.

    None where a renderer is set: the traceback may hold what it is to keep out.
    """
    if exception is None or isinstance(exception, InvalidPayload) or settings.renders_exceptions:
        return None
    return type(exception), exception, _from_handler(exception)


def let_go(exception: BaseException | None) -> None:
    """Let go of what the frames of an exception hold: the locals of a handler may be large.

    Frames refer to each other and to the outcome, so nothing else would but the garbage collector.
    """
    seen: set[int] = set()
    pending = [exception]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(kept(one, "__traceback__"))
        pending += [kept(one, "__cause__"), kept(one, "__context__")]
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions


def fingerprint(queue: str, reason: str, failure: Failure | None) -> str:
    """Return what letters of one cause have in common: queue, reason, class and place."""
    parts = [queue, reason]
    if failure is not None:
        parts += [failure.exception_class, failure.origin]
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:32]


def _render(exception: BaseException, name: str) -> str | None:
    try:
        renderer = settings.exception_renderer
        if renderer is None:
            text: str | None = _headline_and_traceback(exception, name)
        else:
            text = renderer(exception)
        return None if text is None else _bounded(_storable(str(text)))
    except BaseException as error:  # whatever a renderer or a __str__ does, it is no way out
        # The text may be what the renderer was to keep out, so only its class is safe to store.
        logger.error("Rendering a %s failed with a %s", name, name_of(error))
        return _storable(name)


def _headline_and_traceback(exception: BaseException, name: str) -> str:
    """Put the message first, where a list can show it, and the traceback below."""
    try:
        message = str(exception)
    except BaseException:
        message = "<its text cannot be shown>"
    headline = f"{name}: {message}"[:_HEADLINE] if message else name
    if isinstance(exception, InvalidPayload):
        return headline  # it comes from reading the message, and says all there is to say
    lines = traceback.format_exception(type(exception), exception, _from_handler(exception))
    return f"{headline}\n\n{''.join(lines)}"


def _from_handler(exception: BaseException) -> TracebackType | None:
    """Return the traceback from the handler on; how it was called says nothing about the error."""
    whole: TracebackType | None = kept(exception, "__traceback__")
    frame = whole
    while frame is not None and Path(frame.tb_frame.f_code.co_filename).is_relative_to(PACKAGE):
        frame = frame.tb_next
    return frame or whole


def _bounded(text: str) -> str:
    """Cut out the middle: the headline is at the start, the place of the error near the end."""
    if len(text) <= MAX_CHARACTERS:
        return text
    head = MAX_CHARACTERS // 2
    return text[:head] + _CUT + text[-(MAX_CHARACTERS - head - len(_CUT)) :]


def _storable(text: str) -> str:
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()


def _origin(exception: BaseException) -> str:
    """Return the file and function that raised; no line number, which every edit would change."""
    frame: TracebackType | None = kept(exception, "__traceback__")
    if frame is None:
        return ""
    while frame.tb_next is not None:
        frame = frame.tb_next
    code = frame.tb_frame.f_code
    return f"{code.co_filename}:{code.co_name}"


def kept(exception: BaseException, attribute: str) -> Any:
    """Return what Python keeps for an exception, whatever its class makes of the attribute."""
    return BaseException.__dict__[attribute].__get__(exception)
