"""System checks that look into a database, as `check --database ALIAS` and `migrate` ask for.

Their ids are listed in `checks`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps.config import AppConfig
from django.conf import settings as django_settings
from django.core import checks
from django.core.management.base import BaseCommand
from django.core.management.commands import check
from django.db import ProgrammingError, connections, router

from . import conf, pooled
from .errors import summary
from .migrated import has_been_migrated, missing_migrations
from .schema import find_differences

TEST_RUNNER = ("django.test.runner", "run_checks")
"""The module and function of `manage.py test` that has `check` look into the test databases."""


@checks.register(checks.Tags.database)
def check_schema(
    app_configs: Sequence[AppConfig] | None,
    *,
    databases: Sequence[str] | None = None,
    **kwargs: Any,
) -> list[checks.CheckMessage]:
    """Report what is not as the migrations make it, or which of them have not been run."""
    found: list[checks.CheckMessage] = []
    for alias in _ours(databases):
        try:
            found += _check_schema(alias)
        except ProgrammingError as error:
            found.append(
                checks.Warning(
                    f"The outbox in the database {alias!r} cannot be checked: {summary(error)}",
                    hint="The user of the alias needs SELECT on django_migrations.",
                    id="django_outbox.W006",
                )
            )
    return found


def _check_schema(alias: str) -> Iterator[checks.CheckMessage]:
    if missing := missing_migrations(alias):
        # The tables are not as the newest migration makes them, and need not be.
        if not _is_in_passing():
            yield checks.Warning(
                f"The database {alias!r} lacks migrations of django_outbox: {', '.join(missing)}.",
                hint="Run: manage.py migrate django_outbox",
                id="django_outbox.W005",
            )
        return
    for difference in find_differences(alias):
        yield checks.CheckMessage(
            _level(),
            difference.what,
            hint=f"Mend it with: {difference.mend}",
            obj=f"the database {alias!r}",
            id="django_outbox.E005",
        )


@checks.register(checks.Tags.database)
def check_sessions(
    app_configs: Sequence[AppConfig] | None,
    *,
    databases: Sequence[str] | None = None,
    **kwargs: Any,
) -> list[checks.CheckMessage]:
    """Report where a worker would take a session for its own that a pooler gives to others."""
    given = getattr(django_settings, "OUTBOX", {})
    if not isinstance(given, dict) or any(name == "LISTEN_DATABASE" for name, _ in conf.problems()):
        return []
    return [
        checks.CheckMessage(_level(), flaw.what, hint=flaw.mend, id="django_outbox.E006")
        for alias in _ours(databases)
        if _is_migrated(alias) and (flaw := pooled.flaw(alias))
    ]


def _ours(databases: Sequence[str] | None) -> list[str]:
    """Return those of the databases that our tables may be in."""
    return [
        alias
        for alias in databases or ()
        if connections[alias].vendor == "postgresql"
        and router.allow_migrate("django_outbox", alias)
    ]


def _is_migrated(alias: str) -> bool:
    try:
        return has_been_migrated(alias)
    except ProgrammingError:
        return False  # as `check_schema` says


def _level() -> int:
    """Return how grave a difference is: no error is to keep `migrate` from mending it."""
    return checks.WARNING if _is_in_passing() else checks.ERROR


def _is_in_passing() -> bool:
    """Tell whether a command asks that has more to do than to check: `migrate`, or `test`.

    It would not go on after an error. Django tells a check which databases to look at, but not for
    whom; that is to be seen in the stack only.
    """
    asking: BaseCommand | None = None
    frame = inspect.currentframe()
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == TEST_RUNNER:
            return True
        if asking is None and isinstance(command := frame.f_locals.get("self"), BaseCommand):
            asking = command
        frame = frame.f_back
    return asking is not None and not isinstance(asking, check.Command)
