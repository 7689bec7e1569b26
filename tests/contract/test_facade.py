"""What `from django_outbox import outbox` offers: names and signatures stay as they are."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

import django_outbox
from django_outbox import outbox, signals

PUBLISH = {
    "payload": ...,
    "queue": ...,
    "headers": None,
    "correlation_id": None,
    "activate_in": None,
    "activate_at": None,
    "timer_id": None,
    "timer_conflict": "ignore",
    "expires_in": None,
    "max_attempts": None,
    "ref": None,
    "using": None,
}
PUBLISH_MANY = {
    "payloads": ...,
    "queue": ...,
    "headers": None,
    "activate_in": None,
    "activate_at": None,
    "expires_in": None,
    "max_attempts": None,
    "using": None,
}
CANCEL_TIMER = {"queue": ..., "timer_id": ..., "using": None}
KEYWORDS_ONLY = (outbox.cancel_timer, outbox.acancel_timer)
PUBLISHER = {"queue": ..., "headers": None, "using": None}


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (outbox.publish, PUBLISH),
        (outbox.apublish, PUBLISH),
        (outbox.publish_many, PUBLISH_MANY),
        (outbox.apublish_many, PUBLISH_MANY),
        (outbox.cancel_timer, CANCEL_TIMER),
        (outbox.acancel_timer, CANCEL_TIMER),
        (outbox.publisher, PUBLISHER),
    ],
)
def test_the_parameters_are_those_promised(function: Any, parameters: dict[str, Any]) -> None:
    found = inspect.signature(function).parameters

    assert {
        name: ... if parameter.default is inspect.Parameter.empty else parameter.default
        for name, parameter in found.items()
    } == parameters
    positional = [name for name, p in found.items() if p.kind is not p.KEYWORD_ONLY]
    assert positional == ([] if function in KEYWORDS_ONLY else list(parameters)[:1])


def test_a_timer_conflict_is_one_of_three() -> None:
    assert get_args(outbox.TimerConflict) == ("ignore", "extend", "replace")


@pytest.mark.parametrize(
    "name",
    [
        "InvalidName",
        "InvalidPayload",
        "LeaseLost",
        "PayloadError",
        "PayloadTooLarge",
        "Reject",
        "ReservedName",
        "Retry",
    ],
)
def test_every_exception_is_reached_from_the_outbox_and_is_an_outbox_error(name: str) -> None:
    assert issubclass(getattr(outbox, name), outbox.OutboxError)


@pytest.mark.parametrize(
    "name",
    ["message_completed", "message_retried", "message_buried", "message_released", "lease_lost"],
)
def test_signals_are_reached_from_their_module(name: str) -> None:
    assert hasattr(getattr(signals, name), "connect")


def test_a_response_takes_publishs_arguments_but_for_the_database() -> None:
    found = inspect.signature(outbox.OutboxResponse).parameters

    assert set(found) == set(PUBLISH) - {"using"}


def test_no_repr_shows_a_payload_or_headers() -> None:
    # L03
    response = outbox.OutboxResponse(
        {"token": "SECRET-XYZ"}, queue="orders", headers={"token": "SECRET-XYZ"}
    )
    publisher = outbox.publisher("orders", headers={"token": "SECRET-XYZ"})

    assert "orders" in repr(response)
    assert "SECRET-XYZ" not in repr(response)
    assert "SECRET-XYZ" not in repr(publisher)


def test_it_can_be_imported_before_django_is_set_up() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(
        [sys.executable, "-W", "error", "-c", "from django_outbox import outbox"],
        cwd=Path(django_outbox.__path__[0]).parent,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=60,
        check=True,
    )
