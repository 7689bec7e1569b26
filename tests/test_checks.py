"""The system checks: one mistake, one id."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import LazySettings
from django.core.checks import CheckMessage, run_checks


def reported(id_: str) -> list[CheckMessage]:
    """Run all checks of the project and return those with the id."""
    return [message for message in run_checks() if message.id == id_]


def ours() -> list[CheckMessage]:
    return [message for message in run_checks() if str(message.id).startswith("django_outbox.")]


@pytest.mark.parametrize(
    "outbox",
    [
        {},
        {
            "REQUIRE_ATOMIC": False,
            "NOTIFY": False,
            "POLL_INTERVAL": 0.5,
            "MAX_PAYLOAD_BYTES": 1,
            "LISTEN_DATABASE": "orders",
            "EXCEPTION_RENDERER": "builtins.repr",
        },
        {"POLL_INTERVAL": 5, "LISTEN_DATABASE": None, "EXCEPTION_RENDERER": str},
        {"EXCEPTION_RENDERER": None},
    ],
)
def test_good_settings_are_not_reported(settings: LazySettings, outbox: dict[str, Any]) -> None:
    settings.OUTBOX = outbox

    assert ours() == []


def test_without_settings_nothing_is_reported(settings: LazySettings) -> None:
    assert not hasattr(settings, "OUTBOX")
    assert ours() == []


@pytest.mark.parametrize("outbox", [None, [], "NOTIFY", 5])
def test_e001_settings_that_are_no_dict(settings: LazySettings, outbox: Any) -> None:
    settings.OUTBOX = outbox

    (error,) = ours()
    assert error.id == "django_outbox.E001"
    assert type(outbox).__name__ in error.msg


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("REQUIRE_ATOMICS", "Did you mean 'REQUIRE_ATOMIC'?"),
        ("notify", "Did you mean 'NOTIFY'?"),
        ("XYZ", "REQUIRE_ATOMIC, NOTIFY, "),
        (5, "REQUIRE_ATOMIC, NOTIFY, "),
    ],
)
def test_e002_an_unknown_setting(settings: LazySettings, name: Any, hint: str) -> None:
    settings.OUTBOX = {name: True}

    (error,) = reported("django_outbox.E002")
    assert str(name) in error.msg
    assert hint in str(error.hint)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REQUIRE_ATOMIC", "yes"),
        ("REQUIRE_ATOMIC", None),
        ("NOTIFY", 1),
        ("POLL_INTERVAL", 0),
        ("POLL_INTERVAL", -1),
        ("POLL_INTERVAL", "1"),
        ("POLL_INTERVAL", True),
        ("POLL_INTERVAL", float("nan")),
        ("POLL_INTERVAL", float("inf")),
        pytest.param("POLL_INTERVAL", 10**400, id="POLL_INTERVAL-huge"),
        ("POLL_INTERVAL", None),
        ("MAX_PAYLOAD_BYTES", 0),
        ("MAX_PAYLOAD_BYTES", -1),
        ("MAX_PAYLOAD_BYTES", 1.5),
        ("MAX_PAYLOAD_BYTES", "1024"),
        ("MAX_PAYLOAD_BYTES", None),
        ("LISTEN_DATABASE", "nowhere"),
        ("LISTEN_DATABASE", 5),
        ("LISTEN_DATABASE", ["orders"]),
        ("EXCEPTION_RENDERER", 5),
        ("EXCEPTION_RENDERER", "nothing.there"),
        ("EXCEPTION_RENDERER", "builtins.nothing"),
        ("EXCEPTION_RENDERER", "no dots"),
        ("EXCEPTION_RENDERER", "sys.path"),
    ],
)
def test_e003_a_bad_value(settings: LazySettings, name: str, value: Any) -> None:
    settings.OUTBOX = {name: value}

    (error,) = reported("django_outbox.E003")
    assert name in error.msg


def test_every_mistake_is_reported_at_once(settings: LazySettings) -> None:
    settings.OUTBOX = {"NOTIFY": 1, "POLL_INTERVAL": 0, "NONSENSE": True, "MORE": True}

    assert sorted(str(error.id) for error in ours()) == [
        "django_outbox.E002",
        "django_outbox.E002",
        "django_outbox.E003",
        "django_outbox.E003",
    ]


def pool(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.DATABASES["orders"], "DISABLE_SERVER_SIDE_CURSORS", True)


def test_w001_a_database_that_looks_pooled(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool(settings, monkeypatch)

    (warning,) = reported("django_outbox.W001")
    assert "'orders'" in warning.msg
    assert "LISTEN_DATABASE" in str(warning.hint)


@pytest.mark.parametrize("outbox", [{"LISTEN_DATABASE": "default"}, {"NOTIFY": False}])
def test_w001_is_silent_when_the_worker_need_not_listen_there(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch, outbox: dict[str, Any]
) -> None:
    pool(settings, monkeypatch)
    settings.OUTBOX = outbox

    assert ours() == []
