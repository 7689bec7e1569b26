"""Payload ⇄ bytes.

`bytes` are stored as they are. Everything else becomes JSON by Django's own encoder, which also
writes dates, UUIDs, Decimals and lazy strings; dataclasses and pydantic models are added here.
Nothing is ever pickled or imported: what is stored stays data.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NoReturn

from django.core.serializers.json import DjangoJSONEncoder

from . import payload_flaws
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
        body = _encoder.encode(payload).encode()
        is_lossy = payload_flaws.loses_keys(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(_explain(payload, str(error))) from error
    if is_lossy:
        raise PayloadError(_explain(payload, "two keys become the same string"))
    return body, JSON


def decode(body: bytes, content_type: str) -> Any:
    """Return the payload stored as `body`; bytes for any content type but JSON.

    Raises `InvalidPayload` if the body is not what its content type says.
    """
    if not is_json(content_type):
        return body
    try:
        return _decode_plain(body)
    except (ValueError, RecursionError):
        pass  # in another encoding, with space around it, or wrong
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        # The text of a UnicodeDecodeError quotes the body, which may be confidential.
        what = type(error).__name__ if isinstance(error, UnicodeError) else str(error)
        raise InvalidPayload(f"The payload is not valid JSON: {what}") from None


def is_json(content_type: str) -> bool:
    """Tell whether the media type is JSON, parameters and `+json` suffixes included."""
    if content_type == JSON:
        return True
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == JSON or media_type.endswith("+json")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode_plain(body: bytes) -> Any:
    """Decode JSON as `encode` writes it, in less time than `json.loads` takes to look around."""
    text = body.decode()
    payload, end = _decoder.raw_decode(text)
    if end != len(text):
        raise ValueError("something follows")
    return payload


def _explain(payload: Any, error: str) -> str:
    found = payload_flaws.find(payload, _encoder.default)
    if found is None:
        return f"The payload cannot be written as JSON: {error}"
    path, flaw = found
    return f"{path} cannot be written as JSON: {flaw}"
