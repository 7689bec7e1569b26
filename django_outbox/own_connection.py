"""Database connections that belong to one loop and to nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

CONNECT_TIMEOUT = 10


def own_connection(alias: str) -> BaseDatabaseWrapper:
    """Return a connection of Django's making that is not among this thread's `connections`.

    Roles, options and custom backends hold for it too, but it is in autocommit, never from a pool,
    and its making is not waited for beyond reason.
    """
    wrapper = connections.create_connection(alias)
    wrapper.settings_dict = _own_settings(wrapper.settings_dict)
    return wrapper


@contextmanager
def own_connection_in_place(alias: str) -> Iterator[None]:
    """Let `connections[alias]` be such a connection in this thread while the block runs."""
    before = connections[alias]
    connections[alias] = own = own_connection(alias)
    try:
        yield
    finally:
        own.close()
        connections[alias] = before


def _own_settings(settings_dict: dict[str, Any]) -> dict[str, Any]:
    options = {**settings_dict.get("OPTIONS", {})}
    options.pop("pool", None)
    given = int(options.get("connect_timeout") or CONNECT_TIMEOUT)
    options["connect_timeout"] = min(given, CONNECT_TIMEOUT)
    return {**settings_dict, "OPTIONS": options, "AUTOCOMMIT": True}
