"""Using a page without a mouse."""

from __future__ import annotations

import pytest

from tests.browser.driver import Locator, Page

MOST_TABS = 200


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until the element has the focus, and see that the focus is to be seen."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if target.evaluate("element => element === document.activeElement"):
            return
    pytest.fail(f"{target} cannot be reached with the Tab key")


def press(page: Page, target: Locator, key: str = "Enter") -> None:
    """Go to the element and press a key there."""
    tab_to(page, target)
    page.keyboard.press(key)


def write(page: Page, target: Locator, text: str) -> None:
    """Go to the field and write over what is in it."""
    tab_to(page, target)
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(text)
