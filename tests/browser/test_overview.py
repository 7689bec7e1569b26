"""The overview refreshes itself, and the reader does not notice but by what it says."""

from __future__ import annotations

import pytest

from django_outbox.models import DeadLetter, Worker
from tests.browser import demo
from tests.browser.conftest import Browse
from tests.browser.driver import expect
from tests.browser.pages import PAGES

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_refreshes_itself_and_keeps_scroll_and_focus(browse: Browse) -> None:
    demo.fill()
    page = browse(is_superuser=True, viewport={"width": 1280, "height": 500})
    page.clock.install()
    page.goto(PAGES["overview"]())
    dead = page.get_by_role("row").filter(has_text="payments").first.get_by_role("link").first
    expect(dead).to_have_text("56")
    dead.focus()
    page.evaluate("scrollTo(0, 700)")
    scrolled = page.evaluate("scrollY")
    assert scrolled > 100

    DeadLetter.objects.filter(queue="payments", failure_reason="rejected").delete()
    page.clock.run_for(11_000)

    expect(dead).to_have_text("47")
    expect(dead).to_be_focused()
    assert page.evaluate("scrollY") == scrolled


def test_what_comes_and_goes_leaves_the_focus_where_it_is(browse: Browse) -> None:
    demo.fill()
    page = browse(is_superuser=True)
    page.clock.install()
    page.goto(PAGES["overview"]())
    shipments = page.get_by_role("row").filter(has_text="shipments").first.get_by_role("link").last
    shipments.focus()

    DeadLetter.objects.filter(queue__in=[demo.HOSTILE, "devices"]).delete()
    Worker.objects.filter(host="web-3").delete()
    page.clock.run_for(11_000)

    expect(page.get_by_role("cell", name="lost")).to_have_count(0)
    expect(shipments).to_be_focused()


def test_it_says_which_worker_is_lost_and_what_is_wrong(browse: Browse) -> None:
    demo.fill()
    page = browse(is_superuser=True)
    page.goto(PAGES["overview"]())
    lost = page.get_by_role("row").filter(has_text="web-3")
    expect(lost).to_contain_text("lost")
    expect(lost).to_contain_text(demo.HOSTILE)
    warnings = page.get_by_role("region", name="Warnings")
    expect(warnings).to_contain_text("letters-to-nobody")
    expect(page.locator("#content")).to_contain_text("web-1:4250:aa10")
