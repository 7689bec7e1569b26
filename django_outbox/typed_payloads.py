"""Payloads decoded to a type, by pydantic; imported only where a handler asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from . import codecs
from .errors import InvalidPayload


def decoder(target: Any) -> Callable[[bytes, str], Any]:
    """Return a function from a body and its content type to an instance of `target`.

    It raises `InvalidPayload`, which names each field that does not fit and quotes no values:
    they may be confidential. Raises `ImproperlyConfigured` if pydantic cannot handle `target`.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(target)
    except PydanticUserError as error:
        raise ImproperlyConfigured(f"pydantic cannot decode to {target!r}: {error}") from error

    def decode(body: bytes, content_type: str) -> Any:
        try:
            if codecs.is_json(content_type):
                return adapter.validate_json(body)
            return adapter.validate_python(body)
        except ValidationError as error:
            raise InvalidPayload(_describe(error)) from None

    return decode


def _describe(error: ValidationError) -> str:
    lines = [
        f"{'.'.join(str(part) for part in flaw['loc']) or 'payload'}: {flaw['msg']}"
        for flaw in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return f"The payload does not fit {error.title}: " + "; ".join(lines)
