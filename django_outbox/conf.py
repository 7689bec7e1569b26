"""The settings, read live from the one dict `OUTBOX` in Django's settings.

Every one has a default. `problems()` is what the system check reports; reading a setting never
validates it, so that a check can still run on a project whose settings are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.conf import settings as django_settings
from django.utils.module_loading import import_string

ExceptionRenderer = Callable[[BaseException], str | None]

DAY = 24 * 60 * 60

DEFAULTS: dict[str, Any] = {
    "REQUIRE_ATOMIC": True,
    "NOTIFY": True,
    "POLL_INTERVAL": 1.0,
    "MAX_PAYLOAD_BYTES": 1024 * 1024,
    "LISTEN_DATABASE": None,
    "EXCEPTION_RENDERER": None,
    "SCHEDULES": {},
    "OVERVIEW_OLDEST_READY": 300.0,
}


def _get(name: str) -> Any:
    given = getattr(django_settings, "OUTBOX", {})
    return given.get(name, DEFAULTS[name]) if isinstance(given, dict) else DEFAULTS[name]


class Settings:
    """Typed access to `OUTBOX`; each property says what its setting does."""

    @property
    def require_atomic(self) -> bool:
        """Refuse to publish outside `transaction.atomic()`."""
        return bool(_get("REQUIRE_ATOMIC"))

    @property
    def notify(self) -> bool:
        """Wake workers with NOTIFY; without it they find messages by polling."""
        return bool(_get("NOTIFY"))

    @property
    def poll_interval(self) -> float:
        """Seconds between two looks at the table while nothing wakes the worker."""
        return float(_get("POLL_INTERVAL"))

    @property
    def max_payload_bytes(self) -> int:
        """The largest encoded payload that is accepted.

        The default in place of a bad value: `@outbox.scheduled` asks for it when its module is
        imported, before any check could say what is wrong.
        """
        given = _get("MAX_PAYLOAD_BYTES")
        return int(DEFAULTS["MAX_PAYLOAD_BYTES"] if _positive_int(given) else given)

    @property
    def listen_database(self) -> str | None:
        """The alias to LISTEN on when the worker's own goes through a transaction pooler."""
        alias = _get("LISTEN_DATABASE")
        return None if alias is None else str(alias)

    @property
    def exception_renderer(self) -> ExceptionRenderer | None:
        """Turn an exception into the text that is stored and logged, or None to store nothing."""
        renderer = _get("EXCEPTION_RENDERER")
        if isinstance(renderer, str):
            renderer = import_string(renderer)
        return None if renderer is None else renderer

    @property
    def schedules(self) -> dict[str, dict[str, Any]]:
        """Schedules by name, each with its `spec`, `queue` and options of `outbox.schedule`."""
        return dict(_get("SCHEDULES"))

    @property
    def overview_oldest_ready(self) -> float:
        """Seconds that a ready message may wait before the admin's overview warns of it."""
        return float(_get("OVERVIEW_OLDEST_READY"))

    @property
    def renders_exceptions(self) -> bool:
        """Whether a renderer is set, be it one that can be imported or not."""
        return _get("EXCEPTION_RENDERER") is not None


settings = Settings()


def problems() -> Iterator[tuple[str, str]]:
    """Yield (setting, what is wrong with it) for each entry of `OUTBOX` that cannot be used."""
    given = getattr(django_settings, "OUTBOX", {})
    for name, value in given.items():
        rule = _RULES.get(name)
        if rule is not None and (complaint := rule(value)):
            yield name, f"{complaint}; it is {_shown(value)}."


def unknown_names() -> list[str]:
    """Return the keys of `OUTBOX` that are no setting of this package."""
    return [str(name) for name in getattr(django_settings, "OUTBOX", {}) if name not in DEFAULTS]


def _shown(value: object) -> str:
    """Return a value for people, without what it holds: that of SCHEDULES has payloads."""
    is_container = isinstance(value, dict | list | tuple | set | frozenset)
    return f"of type {type(value).__name__}" if is_container else repr(value)


def _flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be True or False"


def _positive_seconds(value: object) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < value <= DAY:  # type: ignore[operator]
        return None
    return f"must be a positive number of seconds, {DAY:,} at the most"


def _positive_int(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return None
    return "must be a positive whole number of bytes"


def _alias(value: object) -> str | None:
    if value is None or (isinstance(value, str) and value in django_settings.DATABASES):
        return None
    return (
        f"must be None or one of the aliases in DATABASES ({', '.join(django_settings.DATABASES)})"
    )


def _renderer(value: object) -> str | None:
    if isinstance(value, str):
        try:
            value = import_string(value)
        except Exception as error:
            return f"cannot be imported ({type(error).__name__}: {error})"
    if value is None or callable(value):
        return None
    return "must be None, a callable, or the dotted path of one"


def _schedules(value: object) -> str | None:
    if isinstance(value, dict):
        return None
    return "must be a dict of names to dicts with a 'spec', a 'queue' and options"


_RULES: dict[str, Callable[[object], str | None]] = {
    "REQUIRE_ATOMIC": _flag,
    "NOTIFY": _flag,
    "POLL_INTERVAL": _positive_seconds,
    "MAX_PAYLOAD_BYTES": _positive_int,
    "LISTEN_DATABASE": _alias,
    "EXCEPTION_RENDERER": _renderer,
    "SCHEDULES": _schedules,
    "OVERVIEW_OLDEST_READY": _positive_seconds,
}
