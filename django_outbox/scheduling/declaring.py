"""Schedules declared in code: `@outbox.scheduled` and the setting `SCHEDULES`.

They are written when a scheduler starts. One that is no longer declared is disabled and marked; one
of a name that `schedule()` or the admin has taken is left to them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any, TypeVar

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError

from ..conf import settings
from ..errors import OutboxError, summary
from ..handlers import name_of, registry
from ..messages import Seconds
from ..store import schedules as store
from ..store.schedules import Written
from .boundaries import CatchUp
from .clocks import clock
from .registration import Declaration
from .transactions import LOCK_WAIT, bounded, will_pass

logger = logging.getLogger("django_outbox")

Function = TypeVar("Function", bound=Callable[..., Any])

_declared: dict[str, Declaration] = {}

TRY_EVERY = 5.0
"""Seconds after which declarations are written that somebody has locked."""

NO_LOCK_WAIT = 0.02

_KEYS = tuple(key for key in signature(Declaration.checked).parameters if key != "name")
"""What an entry of the setting may have."""


def scheduled(
    spec: str,
    *,
    name: str | None = None,
    payload: Any = None,
    headers: Mapping[str, str] | None = None,
    max_attempts: int | None = None,
    expires_in: Seconds | None = None,
    catch_up: CatchUp = "all",
    enabled: bool = True,
) -> Callable[[Function], Function]:
    """Declare a schedule that publishes to the decorated handler's (first) queue.

    Stands above `@outbox.handler`. The schedule is called `app_label.function` unless named. The
    options are those of `outbox.schedule`.

    Raises what `outbox.schedule` raises, naming the function, and `ImproperlyConfigured` if the
    function handles no queue or the name is declared twice.
    """
    _check_is_text(spec)

    def declare(function: Function) -> Function:
        queue = _queue_of(function)
        try:
            declaration = Declaration.checked(
                name if name is not None else _default_name(function),
                spec,
                queue=queue,
                payload=payload,
                headers=headers,
                max_attempts=max_attempts,
                expires_in=expires_in,
                catch_up=catch_up,
                enabled=enabled,
            )
        except (OutboxError, ValueError, TypeError) as error:
            error.add_note(f"In @outbox.scheduled above {name_of(function)}.")
            raise
        if declaration.name in _declared:
            raise ImproperlyConfigured(
                f"The schedule {declaration.name!r} is declared twice, the second time above "
                f"{name_of(function)}. Give one of them another name=."
            )
        _declared[declaration.name] = declaration
        return function

    return declare


def _check_is_text(spec: object) -> None:
    """Raise `TypeError` for no text, such as the function of a decorator without parentheses."""
    if not isinstance(spec, str):
        given = name_of(spec) if callable(spec) else repr(spec)
        raise TypeError(
            "@outbox.scheduled takes the spec as a str: @outbox.scheduled('@every 5m'). It was "
            f"given {given}."
        )


def declarations() -> dict[str, Declaration]:
    """Return everything that is declared, by name; raise if the setting holds what is wrong."""
    found = dict(_declared)
    for name, options in settings.schedules.items():
        if name in found:
            raise ImproperlyConfigured(
                f"The schedule {name!r} is declared in code and in OUTBOX['SCHEDULES']."
            )
        found[name] = _from_setting(name, options)
    return found


class Declaring:
    """Writes what is declared to one database, once."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._is_done = self._has_said = False
        self._next_try = 0.0
        self._lock_wait = LOCK_WAIT

    def write(self) -> None:
        """Write what is declared, unless that has been done or somebody has it locked."""
        if self._is_done or time.monotonic() < self._next_try:
            return
        try:
            write_declared(self._using, lock_wait=self._lock_wait)
        except OperationalError as error:
            if not will_pass(error):
                raise
            if not self._has_said:
                logger.warning(
                    "The declared schedules could not be written yet, and stand as they were: %s",
                    summary(error),
                    extra={"event": "declarations_held_up"},
                )
            self._has_said = True
            # What is due need not wait for it again.
            self._next_try = time.monotonic() + TRY_EVERY
            self._lock_wait = NO_LOCK_WAIT
        else:
            self._is_done = True


def write_declared(using: str, *, lock_wait: float = LOCK_WAIT) -> None:
    """Write what is declared to the table, and withdraw what is not any more."""
    declared = declarations()
    written: list[Declaration] = []
    with bounded(using, lock=lock_wait) as (cursor, _):
        store.be_the_one_writer(cursor)
        now = clock(cursor)
        before = store.written(cursor, list(declared))
        for name, declaration in sorted(declared.items()):  # in one order, against deadlocks
            if (was := before.get(name)) is not None and declaration.is_written_as(was):
                continue
            if store.upsert(cursor, declaration.plan(source="code", now=now)) is not None:
                written.append(declaration)
                continue
            logger.warning(
                "The schedule %r is declared in code, which is ignored: its row was made by "
                "outbox.schedule() or by hand. outbox.unschedule(%r) and a restart give it back.",
                name,
                name,
                extra={"event": "schedule_taken", "schedule": name},
            )
        for name in store.withdraw(cursor, list(declared)):
            logger.warning(
                "The schedule %r is no longer declared, so it is disabled.",
                name,
                extra={"event": "schedule_withdrawn", "schedule": name},
            )
    for declaration in written:
        _log_news(declaration, before.get(declaration.name))


def _log_news(declaration: Declaration, before: Written | None) -> None:
    if before is None:
        news = "is new"
    elif before.is_withdrawn:
        news = "is declared again"
    elif (before.spec, before.timezone) != (declaration.text, declaration.timezone):
        news = f"starts afresh, and drops what was due by {before.spec!r} in {before.timezone}"
    else:
        return
    logger.info(
        "The schedule %r %s: %r in %s.",
        declaration.name,
        news,
        declaration.text,
        declaration.timezone,
        extra={"event": "schedule_written", "schedule": declaration.name},
    )


def _from_setting(name: str, options: Any) -> Declaration:
    if not isinstance(options, dict):
        raise ImproperlyConfigured(
            f"OUTBOX['SCHEDULES'][{name!r}] must be a dict with a 'spec', a 'queue' and options; "
            f"it is of type {type(options).__name__}."
        )
    given = dict(options)
    for key in given:
        if key not in _KEYS:
            raise ImproperlyConfigured(
                f"OUTBOX['SCHEDULES'][{name!r}] has no key {key!r}. {_nearest_key(key)}"
                f"The keys are {', '.join(_KEYS)}."
            )
    if missing := {"spec", "queue"} - given.keys():
        raise ImproperlyConfigured(
            f"OUTBOX['SCHEDULES'][{name!r}] lacks {' and '.join(map(repr, sorted(missing)))}."
        )
    try:
        return Declaration.checked(name, given.pop("spec"), **given)
    except (OutboxError, ValueError, TypeError) as error:
        raise ImproperlyConfigured(f"OUTBOX['SCHEDULES'][{name!r}]: {error}") from error


def _nearest_key(key: object) -> str:
    near = get_close_matches(str(key).lower(), _KEYS, n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def _queue_of(function: Callable[..., Any]) -> str:
    for handler in registry.handlers():
        if handler.function is function:
            return handler.queues[0]
    raise ImproperlyConfigured(
        f"{name_of(function)} handles no queue to schedule messages for. Put @outbox.scheduled "
        "above @outbox.handler, so that it sees the handler."
    )


def _default_name(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", "") or ""
    app = apps.get_containing_app_config(module)
    label = app.label if app is not None else module.partition(".")[0]
    return f"{label}.{getattr(function, '__name__', type(function).__name__)}"
