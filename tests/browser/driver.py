"""What the tests use of playwright; a module that imports this is skipped where there is none."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip(
    "playwright.sync_api", reason="These tests need playwright: `tox run -e browser`"
)
pytest.importorskip("axe_playwright_python", reason="These tests need axe: `tox run -e browser`")

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip(
        "These tests need Chromium, on Debian `apt-get install chromium`", allow_module_level=True
    )

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Locator,
    Page,
    Response,
    expect,
    sync_playwright,
)

__all__ = [
    "CHROMIUM",
    "Axe",
    "Browser",
    "BrowserContext",
    "ConsoleMessage",
    "Dialog",
    "Error",
    "Locator",
    "Page",
    "Response",
    "expect",
    "sync_playwright",
]
