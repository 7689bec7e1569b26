"""What in a payload JSON cannot carry, and where: the path that an error names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

Default: TypeAlias = Callable[[Any], Any]
Flaw: TypeAlias = tuple[str, str]

DEEPEST = 400
"""How deeply a payload may be nested: encoded in one place, it is decoded in another, with less
room on the stack."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_LEAVES = (str, int, float, type(None))


def find(payload: Any, default: Default) -> Flaw | None:
    """Return the path of the first flaw and what is wrong there, None if there is none.

    `default` makes JSON's types of others, as the encoder does; it raises if it cannot.
    """
    opened = [_Opened(None, iter([("payload", payload)]))]
    try:
        while opened:
            item = next(opened[-1].items, None)
            if item is None:
                opened.pop()
                continue
            path, value = item
            _refuse_flawed(path, value)
            if not isinstance(value, _LEAVES):
                opened.append(_open(path, value, opened, default))
    except _Flawed as found:
        return found.path, found.what
    return None


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


class _Flawed(Exception):
    def __init__(self, path: str, what: str) -> None:
        super().__init__()
        self.path = path
        self.what = what


class _Opened(NamedTuple):
    """What is being walked through: a container, or what the encoder makes of something else."""

    value: Any
    items: Iterator[tuple[str, Any]]
    is_level: bool = False
    """Whether JSON has it as an object or an array, and so as one more level."""


def _refuse_flawed(path: str, value: Any) -> None:
    if isinstance(value, str):
        _refuse_surrogates(path, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _Flawed(path, f"{value!r} is not a JSON number")
    elif isinstance(value, int):
        _refuse_endless(path, value)


def _open(path: str, value: Any, above: Sequence[_Opened], default: Default) -> _Opened:
    """Look into a value that is no leaf."""
    if any(value is one.value for one in above):
        raise _Flawed(path, "it contains itself")
    is_level = isinstance(value, Mapping | list | tuple)
    levels = sum(one.is_level for one in above)
    # What the encoder makes of something may ask for the encoder again, and without an end.
    if levels + is_level > DEEPEST or len(above) > 2 * DEEPEST:
        raise _Flawed(path, "it is nested too deeply")
    if isinstance(value, Mapping):
        return _Opened(value, _items(path, value), is_level)
    if isinstance(value, list | tuple):
        return _Opened(value, ((f"{path}[{i}]", one) for i, one in enumerate(value)), is_level)
    try:
        return _Opened(value, iter([(path, default(value))]))
    except (TypeError, ValueError):
        raise _Flawed(path, f"it is of type {type(value).__name__}{_remedy(value)}") from None


def _items(path: str, mapping: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a mapping in turn."""
    if not isinstance(mapping, dict):
        raise _Flawed(path, f"it is of type {type(mapping).__name__}; make it a dict")
    for key, value in mapping.items():
        if not isinstance(key, str | int | float | bool | None):
            raise _Flawed(path, f"its key {key!r} is of type {type(key).__name__}")
        if _loses(mapping, key):
            raise _Flawed(path, f"its keys {key!r} and {_as_json(key)!r} are the same in JSON")
        below = f"{path}[{key!r}]"
        yield f"the key {below}", key
        yield below, value


def _remedy(value: Any) -> str:
    if isinstance(value, set | frozenset):
        return "; make it a list"
    if hasattr(value, "pk"):
        return "; publish its pk"
    return ""


def _refuse_surrogates(path: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Flawed(path, "it contains a lone surrogate") from None


def _refuse_endless(path: str, value: int) -> None:
    try:
        str(value)
    except ValueError:
        raise _Flawed(path, "it has more digits than Python writes") from None
