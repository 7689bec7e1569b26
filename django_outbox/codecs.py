"""Payload ⇄ bytes.

`bytes` are stored as they are. Everything else becomes JSON by Django's own encoder, which also
writes dates, UUIDs, Decimals and lazy strings; dataclasses and pydantic models are added here.
Nothing is ever pickled or imported: what is stored stays data.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from django.core.serializers.json import DjangoJSONEncoder

from .errors import InvalidPayload, PayloadError

JSON = "application/json"
BINARY = "application/octet-stream"
CONTENT_TYPE = "content-type"


class _Encoder(DjangoJSONEncoder):
    def default(self, o: Any) -> Any:
        if dataclasses.is_dataclass(o) and not isinstance(o, type):
            return {field.name: getattr(o, field.name) for field in dataclasses.fields(o)}
        if callable(dump := getattr(o, "model_dump", None)) and not isinstance(o, type):
            return dump(mode="json")
        return super().default(o)


_encoder = _Encoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def encode(payload: Any) -> tuple[bytes, str]:
    """Return the bytes to store and their content type.

    Raises `PayloadError` with the path to what JSON cannot carry.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), BINARY
    try:
        return _encoder.encode(payload).encode(), JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(_explain(payload, error)) from error


def decode(body: bytes, content_type: str) -> Any:
    """Return the payload stored as `body`; bytes for any content type but JSON.

    Raises `InvalidPayload` if the body is not what its content type says.
    """
    if not is_json(content_type):
        return body
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        # The text of a UnicodeDecodeError quotes the body, which may be confidential.
        what = type(error).__name__ if isinstance(error, UnicodeError) else str(error)
        raise InvalidPayload(f"The payload is not valid JSON: {what}") from None


def is_json(content_type: str) -> bool:
    """Tell whether the media type is JSON, parameters and `+json` suffixes included."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == JSON or media_type.endswith("+json")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _explain(payload: Any, error: Exception) -> str:
    found = _find_flaw(payload, "payload", frozenset())
    if found is None:
        return f"The payload cannot be written as JSON: {error}"
    path, flaw = found
    return f"{path} cannot be written as JSON: {flaw}"


def _find_flaw(value: Any, path: str, above: frozenset[int]) -> tuple[str, str] | None:
    """Walk down to the first value that JSON cannot carry."""
    if id(value) in above:
        return path, "it contains itself"
    if len(above) > 200:
        return path, "it is nested too deeply"
    if isinstance(value, str):
        return _flaw_in_string(value, path)
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, f"{value!r} is not a JSON number")
    if value is None or isinstance(value, int):
        return _flaw_in_integer(value, path)
    above |= {id(value)}
    if isinstance(value, Mapping):
        return _find_flaw_in_mapping(value, path, above)
    if isinstance(value, list | tuple):
        flaws = (_find_flaw(item, f"{path}[{i}]", above) for i, item in enumerate(value))
        return next((flaw for flaw in flaws if flaw), None)
    try:
        return _find_flaw(_encoder.default(value), path, above)
    except (TypeError, ValueError):
        return path, f"it is a {type(value).__name__}"


def _find_flaw_in_mapping(
    value: Mapping[Any, Any], path: str, above: frozenset[int]
) -> tuple[str, str] | None:
    if not isinstance(value, dict):
        return path, f"it is a {type(value).__name__}; make it a dict"
    for key, item in value.items():
        if not isinstance(key, str | int | float | bool | None):
            return path, f"its key {key!r} is a {type(key).__name__}"
        below = f"{path}[{key!r}]"
        if flaw := _find_flaw(key, f"the key {below}", above) or _find_flaw(item, below, above):
            return flaw
    return None


def _flaw_in_string(value: str, path: str) -> tuple[str, str] | None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return path, "it contains a lone surrogate"
    return None


def _flaw_in_integer(value: int | None, path: str) -> tuple[str, str] | None:
    try:
        str(value)
    except ValueError:
        return path, "it has more digits than Python writes"
    return None
