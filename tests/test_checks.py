"""The system checks: one mistake, one id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import LazySettings
from django.core.checks import ERROR, WARNING, CheckMessage, run_checks
from django.db.models import Model

from django_outbox import outbox
from django_outbox.checks import check_database
from django_outbox.handlers import Registry
from django_outbox.scheduling import declaring


def reported(id_: str) -> list[CheckMessage]:
    """Run all checks of the project and return those with the id."""
    return [message for message in run_checks() if message.id == id_]


GOOD = {"spec": "@every 1d", "queue": "orders", "payload": "secret"}
"""A schedule."""


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
            "OVERVIEW_OLDEST_READY": 60,
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
        ("OVERVIEW_OLDEST_READY", 0),
        ("OVERVIEW_OLDEST_READY", -1),
        ("OVERVIEW_OLDEST_READY", "300"),
        ("OVERVIEW_OLDEST_READY", True),
        ("OVERVIEW_OLDEST_READY", None),
    ],
)
def test_e003_a_bad_value(settings: LazySettings, name: str, value: Any) -> None:
    settings.OUTBOX = {name: value}

    (error,) = reported("django_outbox.E003")
    assert name in error.msg


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("value", "id_"),
    [([], "E001"), ({"MAX_PAYLOAD_BYTES": -1}, "E003"), ({"MAX_PAYLOAD_BYTES": "64k"}, "E003")],
)
def test_settings_that_a_decorator_asks_for_are_still_the_checks_to_judge(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch, value: Any, id_: str
) -> None:
    monkeypatch.setattr(declaring, "_declared", {})
    settings.OUTBOX = value

    outbox.scheduled("@every 5s", payload={"n": 1})(outbox.handler("orders")(do_nothing))

    (error,) = ours()
    assert error.id == f"django_outbox.{id_}"


@pytest.mark.parametrize(
    ("schedules", "says"),
    [
        ({"report": {"spec": "@every 1d", "payload": "secret"}}, "['report'] lacks 'queue'"),
        ({"good": GOOD, "report": "secret"}, "['report'] must be a dict"),
        ({"good": GOOD, "report": ["secret"]}, "['report'] must be a dict"),
        ({"good": GOOD, 5: GOOD}, "[5]"),
        ([GOOD], "must be a dict of names to dicts"),
    ],
)
def test_e003_a_bad_schedule_is_named_and_no_payload_is_shown(
    settings: LazySettings, schedules: Any, says: str
) -> None:
    settings.OUTBOX = {"SCHEDULES": schedules}

    (error,) = ours()
    assert error.id == "django_outbox.E003"
    assert says in error.msg
    assert "secret" not in error.msg


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


if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTheTypeChecker


@pytest.mark.usefixtures("registry")
def test_e004_a_message_type_that_cannot_be_resolved() -> None:
    @outbox.handler("orders")
    def handle(message: outbox.Message[OnlyForTheTypeChecker]) -> None: ...

    @outbox.handler("refunds")
    def resolvable(message: outbox.Message[DefinedFurtherDown]) -> None: ...

    (error,) = ours()
    assert error.id == "django_outbox.E004"
    assert error.level == ERROR
    assert "test_checks" in error.msg
    assert "OnlyForTheTypeChecker" in error.msg
    assert "TYPE_CHECKING" in error.msg


@dataclass
class DefinedFurtherDown:
    n: int


def do_nothing(message: outbox.Message[Any]) -> None: ...


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    "retry",
    [outbox.ConstantRetry(1, max_attempts=21), outbox.ExponentialRetry(max_attempts=1000)],
)
def test_w002_a_handler_that_max_deliveries_ends_before_its_strategy_does(
    retry: outbox.RetryStrategy,
) -> None:
    outbox.handler("orders", "refunds", retry=retry)(do_nothing)

    (warning,) = ours()
    assert warning.id == "django_outbox.W002"
    assert warning.level == WARNING
    assert "do_nothing" in warning.msg
    assert f"{retry.max_attempts} attempts" in warning.msg  # type: ignore[attr-defined]
    assert "max_deliveries=20" in warning.msg
    assert "max_deliveries" in str(warning.hint)


@pytest.mark.usefixtures("registry")
def test_w002_is_silent_when_the_strategy_ends_first_or_has_no_number_of_attempts() -> None:
    class Own:
        def next_delay(self, *, attempt: int, elapsed: float, exception: BaseException) -> float:
            return 1.0

    outbox.handler("a")(do_nothing)
    outbox.handler("b", retry=outbox.ConstantRetry(1, max_attempts=20))(do_nothing)
    outbox.handler("c", retry=outbox.ConstantRetry(1, max_attempts=50), max_deliveries=50)(
        do_nothing
    )
    outbox.handler("d", retry=outbox.NoRetry(), max_deliveries=1)(do_nothing)
    outbox.handler("e", retry=Own())(do_nothing)

    assert ours() == []


class ToLite:
    """A router that sends the package's tables to SQLite."""

    def db_for_write(self, model: type[Model], **hints: Any) -> str | None:
        return "lite" if model._meta.app_label == "django_outbox" else None


def test_w003_a_database_for_messages_that_is_not_postgresql(
    settings: LazySettings, sqlite: str
) -> None:
    settings.DATABASE_ROUTERS = [ToLite()]

    (warning,) = check_database(None)  # Django's own checks would connect to it
    assert warning.id == "django_outbox.W003"
    assert warning.level == WARNING
    assert "'lite'" in warning.msg
    assert "SQLite" in warning.msg
    assert "DATABASES['lite']" in str(warning.hint)


def test_w003_is_silent_about_databases_that_messages_do_not_go_to(sqlite: str) -> None:
    assert check_database(None) == []


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("queue", "hint"),
    [
        ("ordes", "Did you mean 'orders'? Decorate a function with @outbox.handler('ordes')"),
        ("parcels", "Decorate a function with @outbox.handler('parcels')"),
    ],
)
def test_w004_a_schedule_for_a_queue_without_a_handler(
    settings: LazySettings, queue: str, hint: str
) -> None:
    outbox.handler("orders", "refunds")(do_nothing)
    settings.OUTBOX = {"SCHEDULES": {"nightly": {**GOOD, "queue": queue}, "daily": GOOD}}

    (warning,) = ours()
    assert warning.id == "django_outbox.W004"
    assert warning.level == WARNING
    assert warning.msg == f"The schedule 'nightly' publishes to {queue!r}, which has no handler."
    assert str(warning.hint).startswith(hint)


def test_w004_is_silent_where_no_handlers_are_loaded(
    settings: LazySettings, registry: Registry
) -> None:
    settings.OUTBOX = {"SCHEDULES": {"nightly": GOOD}}

    assert len(registry) == 0
    assert ours() == []


@pytest.mark.usefixtures("registry")
def test_w004_is_silent_about_a_reserved_queue_which_is_an_error(settings: LazySettings) -> None:
    outbox.handler("orders")(do_nothing)
    settings.OUTBOX = {"SCHEDULES": {"nightly": {**GOOD, "queue": "__outbox:mails"}}}

    assert [message.id for message in ours()] == ["django_outbox.E003"]
