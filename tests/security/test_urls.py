"""Every address of the admin's pages, those of tools and downloads too, asks who is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from django.urls import URLPattern, reverse

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage, Schedule, Worker

pytestmark = pytest.mark.django_db

MODELS: list[Any] = [DeadLetter, OutboxMessage, Schedule, Worker]


def patterns() -> list[Any]:
    """Return a pair of model and named pattern for each page of ours."""
    return [
        pytest.param(model, pattern, id=str(pattern.name).removeprefix("django_outbox_"))
        for model in MODELS
        for pattern in admin.site.get_model_admin(model).get_urls()
        if pattern.name
    ]


@pytest.fixture
def rows() -> dict[type, Any]:
    """One row of each, by its model."""
    with transaction.atomic():
        message = outbox.publish({"token": "SECRET-XYZ"}, queue="orders", activate_in=3600)
    schedule = outbox.schedule("report", "@every 1h", queue="orders", payload="SECRET-XYZ")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_outbox_dead_letter (original_id, message_id, queue, payload,"
            " headers, correlation_id, created_at, failure_reason, last_exception) VALUES"
            " (1, gen_random_uuid(), 'orders', '\"SECRET-XYZ\"', '{}', 'c', now(), 'rejected',"
            " 'SECRET-XYZ') RETURNING id"
        )
        letter = cursor.fetchone()[0]
        cursor.execute(
            "INSERT INTO django_outbox_worker (id, worker_id, kind, host, pid) VALUES"
            " (gen_random_uuid(), 'SECRET-XYZ', 'worker', 'h', 1) RETURNING id"
        )
        worker = cursor.fetchone()[0]
    return {OutboxMessage: message, Schedule: schedule.pk, DeadLetter: letter, Worker: worker}


def state() -> list[Any]:
    """Return all there is, to see whether anything has changed."""
    return [list(model.objects.order_by("pk").values()) for model in MODELS]


def address(model: type, pattern: URLPattern, rows: dict[type, Any]) -> str:
    given = dict.fromkeys(pattern.pattern.converters, rows[model])
    return reverse(f"admin:{pattern.name}", kwargs=given)


@pytest.fixture
def staff() -> Callable[..., Client]:
    """Log a member of the staff in who has these permissions of ours."""

    def login(*codenames: str) -> Client:
        user = User.objects.create_user("staff", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client = Client()
        client.force_login(user)
        return client

    return login


@pytest.mark.parametrize(("model", "pattern"), patterns())
def test_nobody_sees_or_does_anything_without_logging_in(
    model: type, pattern: URLPattern, rows: dict[type, Any]
) -> None:
    url, before = address(model, pattern, rows), state()

    for response in (Client().get(url), Client().post(url)):
        assert response.status_code == 302
        assert response.headers["Location"].startswith("/admin/login/?")
    assert state() == before


@pytest.mark.parametrize(("model", "pattern"), patterns())
def test_staff_without_permissions_see_and_do_nothing(
    model: type, pattern: URLPattern, rows: dict[type, Any], staff: Callable[..., Client]
) -> None:
    url, before, client = address(model, pattern, rows), state(), staff()

    for response in (client.get(url), client.post(url, {"_confirmed": "yes", "post": "yes"})):
        assert response.status_code in {403, 404, 405}
        assert b"SECRET-XYZ" not in response.content
    assert state() == before


@pytest.mark.parametrize(("model", "pattern"), patterns())
def test_who_may_only_view_does_nothing(
    model: type, pattern: URLPattern, rows: dict[type, Any], staff: Callable[..., Client]
) -> None:
    views = [f"view_{one.__name__.lower()}" for one in MODELS]
    url, before, client = address(model, pattern, rows), state(), staff(*views)

    client.post(url, {"_confirmed": "yes", "post": "yes", "confirmed": "1"})

    assert state() == before


@pytest.mark.parametrize(("model", "pattern"), patterns())
def test_nothing_is_done_from_another_site(
    model: type, pattern: URLPattern, rows: dict[type, Any], admin_user: User
) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    url, before = address(model, pattern, rows), state()

    assert client.post(url, {"_confirmed": "yes", "post": "yes"}).status_code == 403
    client.get(url)  # and looking changes nothing

    assert state() == before
