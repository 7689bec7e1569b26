"""Pictures of each page, for people to look at: `tox run -e screenshots`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.browser import demo
from tests.browser.conftest import Browse
from tests.browser.pages import PAGES

FOLDER = Path(os.environ.get("SCREENSHOTS", ".screenshots"))
SIZES = {"wide": {"width": 1280, "height": 900}, "narrow": {"width": 390, "height": 844}}

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
    FOLDER.mkdir(exist_ok=True)
    for name, url in PAGES.items():
        page.goto(url())
        page.screenshot(path=FOLDER / f"{name}-{size}-{theme}.png", full_page=True)
