"""A browser that is logged in, and that fails the test for what a person would not notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from tests.process.stage import Stage

if TYPE_CHECKING:
    from tests.browser.driver import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Response

Browse: TypeAlias = "Callable[..., Page]"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, for as long as the tests of this folder run.

    Playwright keeps an event loop in this thread, so Django would refuse every query of a test.
    """
    from tests.browser.driver import CHROMIUM, sync_playwright

    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browse(live_server: LiveServer, browser: Browser) -> Iterator[Browse]:
    """Open browsers for users who have these permissions of `django_outbox` and no others.

    At the end there must have been no error in the console, no dialog and no failed answer.
    """
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def browse(*codenames: str, is_superuser: bool = False, **options: Any) -> Page:
        context = browser.new_context(base_url=live_server.url, **options)
        contexts.append(context)
        client = Client()
        client.force_login(a_user(*codenames, is_superuser=is_superuser))
        context.add_cookies(
            [
                {
                    "name": settings.SESSION_COOKIE_NAME,
                    "value": client.cookies[settings.SESSION_COOKIE_NAME].value,
                    "url": live_server.url,
                }
            ]
        )
        context.set_default_timeout(10_000)
        return watched(context.new_page(), faults)

    yield browse
    for context in contexts:
        context.close()
    assert faults == []


def a_user(*codenames: str, is_superuser: bool = False) -> User:
    """Make a user who has these permissions of `django_outbox` and no others."""
    name = "root" if is_superuser else "operator"
    user = User.objects.create_user(name, password=name, is_staff=True, is_superuser=is_superuser)
    found = Permission.objects.filter(
        content_type__app_label="django_outbox", codename__in=codenames
    )
    assert len(found) == len(codenames), f"{codenames} are not all permissions"
    user.user_permissions.set(found)
    return user


def watched(page: Page, faults: list[str]) -> Page:
    """Note what goes wrong on the page without being seen."""

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.location["url"].endswith("/favicon.ico"):
            faults.append(f"{page.url}: {message.text}")

    def on_dialog(dialog: Dialog) -> None:
        faults.append(f"{page.url}: dialog {dialog.message!r}")
        dialog.dismiss()

    def on_response(response: Response) -> None:
        if response.status >= 400 and not response.url.endswith("/favicon.ico"):
            faults.append(f"{response.url}: {response.status}")

    page.on("console", on_console)
    page.on("dialog", on_dialog)
    page.on("response", on_response)
    page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
    return page


@pytest.fixture
def stage(live_server: LiveServer, tmp_path: Path) -> Iterator[Stage]:
    """Start worker processes on it; they end with the test."""
    with Stage(tmp_path) as stage:
        yield stage
