"""No page of ours has a fault that axe-core calls serious or critical, light or dark."""

from __future__ import annotations

import pytest

from tests.browser import demo
from tests.browser.conftest import Browse
from tests.browser.driver import Axe, Page
from tests.browser.pages import PAGES

pytestmark = pytest.mark.django_db(transaction=True)

GRAVE = {"serious", "critical"}

DJANGOS_OWN = {
    # Django's template of the search form labels the field by a picture's alternative text, which a
    # screen reader reads; axe counts only text that is to be seen.
    "label-title-only #searchbar",
}
"""Faults of Django's own admin that our pages inherit: axe's id of each, and the element."""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_grave_fault(browse: Browse, name: str, theme: str) -> None:
    demo.fill()
    # Axe sets styles to see what is behind a text, which the policy would forbid it.
    page = browse(is_superuser=True, color_scheme=theme, bypass_csp=True)
    page.goto(PAGES[name]())
    assert grave_faults(page) == []


def grave_faults(page: Page) -> list[str]:
    """Return each grave fault with the elements that have it."""
    found = Axe().run(page).response["violations"]
    return [
        f"{fault['id']}: {node['html'][:160]}: {node['failureSummary']}"
        for fault in found
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
        if f"{fault['id']} {node['target'][0]}" not in DJANGOS_OWN
    ]
