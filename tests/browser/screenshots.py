"""Pictures of each page, for people to look at: `tox run -e screenshots`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.browser import demo
from tests.browser.conftest import Browse
from tests.browser.pages import PAGES

FOLDER = Path(os.environ.get("SCREENSHOTS", ".screenshots"))
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
SIZES = {"wide": WIDE, "narrow": NARROW}
BESIDE_THE_SIDEBAR = {"x": 300, "y": 88, "width": 980}

DOCUMENTED: dict[str, tuple[str, Any, str, Any]] = {
    "overview": ("overview", WIDE, "light", {"x": 0, "y": 0, "width": 1280, "height": 1210}),
    "overview-phone": ("overview", NARROW, "dark", {"x": 0, "y": 0, "width": 390, "height": 1000}),
    "failing": ("failing", WIDE, "light", {**BESIDE_THE_SIDEBAR, "height": 480}),
    "letter": ("letter", WIDE, "light", {**BESIDE_THE_SIDEBAR, "height": 1250}),
    "schedule": ("schedule", WIDE, "light", {**BESIDE_THE_SIDEBAR, "height": 460}),
    "trail": ("trail", WIDE, "light", {**BESIDE_THE_SIDEBAR, "height": 610}),
}
"""The pictures in docs/images: page, window, theme, and which part of the page."""

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_page_has_its_picture_taken(browse: Browse, theme: str, size: str) -> None:
    demo.fill()
    page = browse(
        is_superuser=True,
        color_scheme=theme,
        viewport=SIZES[size],
        reduced_motion="reduce",
        is_mobile=size == "narrow",
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, url in PAGES.items():
        page.goto(url())
        page.screenshot(path=FOLDER / f"{name}-{size}-{theme}.png", full_page=True)


@pytest.mark.parametrize("picture", DOCUMENTED)
def test_the_documentation_has_its_pictures_taken(browse: Browse, picture: str) -> None:
    demo.fill()
    demo.tame()
    name, size, theme, part = DOCUMENTED[picture]
    page = browse(is_superuser=True, color_scheme=theme, viewport=size, is_mobile=size is NARROW)
    page.goto(PAGES[name]())
    folder = FOLDER / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{picture}.png", full_page=True, clip=part)
