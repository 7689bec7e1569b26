"""System checks. Each id stands for one mistake and never changes its meaning.

E001  `OUTBOX` is not a dict
E002  an unknown setting
E003  a bad value
E004  a handler whose message type cannot be resolved
E005  a table that is not as the migrations made it (`database_checks`, as the next one)
E006  a database whose sessions are shared, and its settings do not say so
W001  the database looks pooled, so LISTEN would not work on it
W002  a handler that `max_deliveries` ends before its strategy does
W003  the database that messages go to is not PostgreSQL
W004  a declared schedule publishes to a queue that has no handler
W005  migrations of ours that a database lacks (`database_checks`, as the next one)
W006  a database that cannot be looked at
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from django.apps.config import AppConfig
from django.conf import settings as django_settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from . import conf, pooled
from .handlers import Handler, LateDecoder, registry
from .publishing import default_alias
from .scheduling.declaring import declarations


@checks.register()
def check_settings(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report each entry of `OUTBOX` that is unknown or cannot be used."""
    given = getattr(django_settings, "OUTBOX", {})
    if not isinstance(given, dict):
        return [
            checks.Error(
                f"OUTBOX must be a dict; it is a {type(given).__name__}.",
                id="django_outbox.E001",
            )
        ]
    unknown = [
        checks.Error(f"OUTBOX has no setting {name!r}.", hint=_hint(name), id="django_outbox.E002")
        for name in conf.unknown_names()
    ]
    bad = [
        checks.Error(f"OUTBOX[{name!r}] {complaint}", id="django_outbox.E003")
        for name, complaint in conf.problems()
    ]
    return [*unknown, *bad]


@checks.register()
def check_schedules(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report a declared schedule that cannot be used, or whose messages nobody here handles."""
    given = getattr(django_settings, "OUTBOX", {})
    if not isinstance(given, dict) or any(name == "SCHEDULES" for name, _ in conf.problems()):
        return []
    try:
        declared = declarations()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="django_outbox.E003")]
    if not registry:
        return []  # no handlers are loaded, so this process cannot tell
    return [
        _unhandled(name, declaration.draft.queue)
        for name, declaration in declared.items()
        if declaration.draft.queue not in registry
    ]


@checks.register()
def check_listening(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Warn where workers would have to poll because the database goes through a pooler."""
    given = getattr(django_settings, "OUTBOX", {})
    if not isinstance(given, dict) or not given.get("NOTIFY", True):
        return []
    if listen_on := given.get("LISTEN_DATABASE"):
        return _check_listen_database(listen_on)
    return [
        checks.Warning(
            f"The database {alias!r} sets DISABLE_SERVER_SIDE_CURSORS, as one does behind a "
            "transaction-mode pooler; workers do not LISTEN there and find messages by polling.",
            hint="Set OUTBOX['LISTEN_DATABASE'] to an alias that connects directly.",
            id="django_outbox.W001",
        )
        for alias, database in django_settings.DATABASES.items()
        if database.get("DISABLE_SERVER_SIDE_CURSORS")
        and "postgresql" in database.get("ENGINE", "")
    ]


def _check_listen_database(alias: Any) -> list[checks.CheckMessage]:
    if alias not in connections or not pooled.says_pooled(alias):
        return []
    return [
        checks.Warning(
            f"OUTBOX['LISTEN_DATABASE'] names {alias!r}, which sets DISABLE_SERVER_SIDE_CURSORS, "
            "as one does behind a transaction-mode pooler; LISTEN would hear nothing there.",
            hint="Name an alias that connects directly.",
            id="django_outbox.W001",
        )
    ]


@checks.register()
def check_database(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Warn where publishing would fail, and migrate makes no tables."""
    alias = default_alias()
    connection = connections[alias]
    if connection.vendor == "postgresql":
        return []
    return [
        checks.Warning(
            f"Messages go to the database {alias!r}, which is {connection.display_name}; "
            "django_outbox needs PostgreSQL, so publishing there fails.",
            hint=(
                f"Point DATABASES[{alias!r}] to a PostgreSQL server, or have a database router "
                "send django_outbox to one."
            ),
            id="django_outbox.W003",
        )
    ]


@checks.register()
def check_handlers(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report handlers that cannot decode, or retry less often than their strategy says."""
    return [message for handler in registry.handlers() for message in _check_handler(handler)]


def _check_handler(handler: Handler) -> Iterator[checks.CheckMessage]:
    if isinstance(handler.decode, LateDecoder):
        try:
            handler.decode.decode  # noqa: B018 - resolving it is the check
        except ImproperlyConfigured as error:
            yield checks.Error(str(error), id="django_outbox.E004")
    attempts = getattr(handler.retry, "max_attempts", None)
    if attempts is not None and attempts > handler.max_deliveries:
        yield checks.Warning(
            f"{handler.name} may make {attempts} attempts, but max_deliveries="
            f"{handler.max_deliveries} buries its messages before.",
            hint="Every attempt is a delivery: raise max_deliveries above max_attempts.",
            id="django_outbox.W002",
        )


def _hint(name: str) -> str:
    near = get_close_matches(name.upper(), conf.DEFAULTS, n=1, cutoff=0.5)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"The settings are {', '.join(conf.DEFAULTS)}."


def _unhandled(schedule: str, queue: str) -> checks.Warning:
    near = get_close_matches(queue, registry, n=1)
    question = f"Did you mean {near[0]!r}? " if near else ""
    return checks.Warning(
        f"The schedule {schedule!r} publishes to {queue!r}, which has no handler.",
        hint=(
            f"{question}Decorate a function with @outbox.handler({queue!r}), or silence this if "
            "the queue is served elsewhere."
        ),
        id="django_outbox.W004",
    )
