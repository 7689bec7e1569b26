"""What in a payload JSON cannot carry, and where: the path that an error names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Default: TypeAlias = Callable[[Any], Any]
Flaw: TypeAlias = tuple[str, str]

DEEPEST = 400
"""How deeply a payload may be nested: encoded in one place, it is decoded in another, with less
room on the stack."""

_DEEPEST = 200
_SCALARS = frozenset({str, int, float, bool, type(None)})


def find(payload: Any, default: Default) -> Flaw | None:
    """Return the path of the first flaw and what is wrong there, None if there is none.

    `default` makes JSON's types of others, as the encoder does; it raises if it cannot.
    """
    return _find_flaw(payload, "payload", frozenset(), default)


def loses_keys(value: Any) -> bool:
    """Tell whether a dict has keys such as 1 and "1", of which JSON would keep one.

    Raises `RecursionError` for what is nested deeper than `DEEPEST`.
    """
    # Runs for every payload: loops are twice as quick here as generators and sets of types.
    level = [value]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for container in level:
            items = container
            if isinstance(container, dict):
                for key in container:
                    if type(key) is not str and _loses(container, key):
                        return True
                items = container.values()
            elif not isinstance(container, (list, tuple)):
                continue
            for item in items:
                if type(item) not in _SCALARS:
                    below.append(item)  # noqa: PERF401 - what it proposes is slower
        if not below:
            return False
        level = below
    raise RecursionError("nested too deeply")


def _loses(value: dict[Any, Any], key: Any) -> bool:
    return not isinstance(key, str) and _as_json(key) in value


def _as_json(key: Any) -> str:
    """Return the string that JSON makes of a key."""
    return str(next(iter(json.loads(json.dumps({key: None})))))


def _find_flaw(value: Any, path: str, above: frozenset[int], default: Default) -> Flaw | None:
    """Walk down to the first value that JSON cannot carry."""
    if id(value) in above:
        return path, "it contains itself"
    if len(above) > _DEEPEST:
        return path, "it is nested too deeply"
    if isinstance(value, str):
        return _flaw_in_string(value, path)
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, f"{value!r} is not a JSON number")
    if value is None or isinstance(value, int):
        return _flaw_in_integer(value, path)
    above |= {id(value)}
    if isinstance(value, Mapping):
        return _find_flaw_in_mapping(value, path, above, default)
    if isinstance(value, list | tuple):
        flaws = (_find_flaw(item, f"{path}[{i}]", above, default) for i, item in enumerate(value))
        return next((flaw for flaw in flaws if flaw), None)
    try:
        return _find_flaw(default(value), path, above, default)
    except (TypeError, ValueError):
        return path, f"it is of type {type(value).__name__}{_remedy(value)}"


def _find_flaw_in_mapping(
    value: Mapping[Any, Any], path: str, above: frozenset[int], default: Default
) -> Flaw | None:
    if not isinstance(value, dict):
        return path, f"it is of type {type(value).__name__}; make it a dict"
    for key, item in value.items():
        if not isinstance(key, str | int | float | bool | None):
            return path, f"its key {key!r} is of type {type(key).__name__}"
        if _loses(value, key):
            return path, f"its keys {key!r} and {_as_json(key)!r} are the same in JSON"
        below = f"{path}[{key!r}]"
        if flaw := _find_flaw(key, f"the key {below}", above, default) or _find_flaw(
            item, below, above, default
        ):
            return flaw
    return None


def _remedy(value: Any) -> str:
    if isinstance(value, set | frozenset):
        return "; make it a list"
    if hasattr(value, "pk"):
        return "; publish its pk"
    return ""


def _flaw_in_string(value: str, path: str) -> Flaw | None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return path, "it contains a lone surrogate"
    return None


def _flaw_in_integer(value: int | None, path: str) -> Flaw | None:
    try:
        str(value)
    except ValueError:
        return path, "it has more digits than Python writes"
    return None
