"""Settings that do not tell of a transaction-mode pooler are found out before they do harm.

A worker would else leave in the site's sessions what only its own should have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.checks import CheckMessage
from django.core.management import CommandError, call_command

from django_outbox import checks, database_checks, handlers, outbox, pooled
from django_outbox.management.commands import outbox_worker
from tests.pooler.bouncer import CLEAN, Bouncer
from tests.pooler.site import ALIAS, Site
from tests.support import committed, publish

pytestmark = [committed, pytest.mark.usefixtures("handled")]

AsAlias = Callable[..., str]


@pytest.fixture
def handled(registry: handlers.Registry, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have the command see one handler, and return what it has got."""
    monkeypatch.setattr(outbox_worker, "registry", registry)
    handled: list[Any] = []

    @outbox.handler("orders")
    def handle(message: outbox.Message[Any]) -> None:
        handled.append(message.payload)

    return handled


def work(alias: str) -> None:
    call_command("outbox_worker", "--drain", "--database", alias, verbosity=0)


def found(alias: str) -> list[CheckMessage]:
    """Return what `check --database` has to say of the database's sessions."""
    return database_checks.check_sessions(None, databases=[alias])


@pytest.mark.parametrize("bouncer", [{"sessions": 1}, {"sessions": 2}], indirect=True)
def test_a_worker_does_not_start_where_its_session_would_be_shared(
    bouncer: Bouncer, as_alias: AsAlias, handled: list[Any]
) -> None:
    as_alias(ALIAS)
    publish(7)

    with pytest.raises(CommandError, match="'pooled' gives its sessions to other clients") as told:
        work(ALIAS)

    assert "Set DISABLE_SERVER_SIDE_CURSORS to True in DATABASES['pooled']" in str(told.value)
    assert handled == []
    assert Site(bouncer).states(1) == [CLEAN]


def test_e006_the_check_of_the_database_says_so_too(as_alias: AsAlias) -> None:
    as_alias(ALIAS)

    (error,) = found(ALIAS)

    assert error.id == "django_outbox.E006"
    assert "'pooled' gives its sessions to other clients" in error.msg
    assert "DISABLE_SERVER_SIDE_CURSORS" in str(error.hint)


def test_a_direct_way_is_not_taken_for_a_pooler(handled: list[Any]) -> None:
    publish(7)

    work("default")

    assert handled == [7]
    assert not pooled.shares_sessions("default")
    assert found("default") == []


@pytest.mark.parametrize("bouncer", [{"sessions": 4, "mode": "session"}], indirect=True)
def test_in_session_mode_nothing_needs_to_be_set(as_alias: AsAlias, handled: list[Any]) -> None:
    as_alias(ALIAS)
    publish(7)

    work(ALIAS)

    assert handled == [7]
    assert found(ALIAS) == []


@pytest.mark.parametrize("bouncer", [{"sessions": 1, "mode": "session"}], indirect=True)
def test_a_pooler_in_session_mode_that_has_none_left_is_not_waited_for(
    as_alias: AsAlias, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled, "PATIENCE", 0.5)

    assert not pooled.shares_sessions(as_alias(ALIAS))


@pytest.mark.parametrize(
    "told",
    [
        {"LISTEN_DATABASE": "default"},
        {"NOTIFY": False},
    ],
)
def test_a_worker_that_does_not_listen_there_starts(
    bouncer: Bouncer,
    as_alias: AsAlias,
    settings: LazySettings,
    handled: list[Any],
    told: dict[str, Any],
) -> None:
    as_alias(ALIAS)
    settings.OUTBOX = told
    publish(7)

    work(ALIAS)

    assert handled == [7]
    assert found(ALIAS) == []
    assert Site(bouncer).states(1) == [CLEAN]


def test_a_database_to_listen_on_must_not_share_its_sessions(
    as_alias: AsAlias, settings: LazySettings
) -> None:
    settings.OUTBOX = {"LISTEN_DATABASE": as_alias(ALIAS)}

    with pytest.raises(CommandError, match=r"Set OUTBOX\['LISTEN_DATABASE'\] to an alias that con"):
        work("default")

    (error,) = found("default")
    assert error.id == "django_outbox.E006"


def test_a_database_to_listen_on_that_is_away_holds_nobody_up(
    bouncer: Bouncer, as_alias: AsAlias, settings: LazySettings, handled: list[Any]
) -> None:
    settings.OUTBOX = {"LISTEN_DATABASE": as_alias(ALIAS)}
    bouncer.stop()
    publish(7)

    work("default")

    assert handled == [7]


def test_w001_a_database_to_listen_on_that_says_it_is_pooled(
    site: Site, settings: LazySettings
) -> None:
    settings.OUTBOX = {"LISTEN_DATABASE": ALIAS}

    (warning,) = checks.check_listening(None)

    assert warning.id == "django_outbox.W001"
    assert "LISTEN would hear nothing there" in warning.msg
