"""Who may only view sees no button, no action and no field to write in."""

from __future__ import annotations

import pytest

from tests.browser import demo
from tests.browser.conftest import Browse
from tests.browser.driver import expect
from tests.browser.pages import PAGES, VIEWED

pytestmark = pytest.mark.django_db(transaction=True)

VIEW = ("view_outboxmessage", "view_deadletter", "view_schedule", "view_worker")


def test_who_may_only_view_sees_no_button(browse: Browse) -> None:
    demo.fill()
    page = browse(*VIEW)
    for name in VIEWED:
        page.goto(PAGES[name]())
        content = page.locator("#content")
        expect(content.get_by_role("heading").first).to_be_visible()
        expect(content.locator("button, input[type=submit]:not([value=Search])")).to_have_count(0)
        expect(content.locator("select, textarea, input[type=checkbox]")).to_have_count(0)
