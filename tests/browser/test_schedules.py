"""A schedule is made, with a wrong spec first; it is run now, disabled and deleted."""

from __future__ import annotations

import pytest
from django.utils import timezone

from django_outbox.models import OutboxMessage, Schedule
from tests.browser import demo
from tests.browser.conftest import Browse
from tests.browser.driver import expect
from tests.browser.pages import schedule, url

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_wrong_spec_is_told_on_its_field_and_a_right_one_makes_a_schedule(
    browse: Browse,
) -> None:
    page = browse(is_superuser=True)
    page.goto(url("schedule_changelist"))
    page.get_by_role("link", name="Add schedule").click()
    page.get_by_label("Name:").fill("weekly-report")
    page.get_by_label("Queue:").fill("orders")
    spec, fires = page.get_by_label("Spec:"), page.locator("#outbox-fires")

    spec.press_sequentially("every 5m")
    expect(fires).to_contain_text("Did you mean '@every 5m'?")
    page.get_by_role("button", name="Save", exact=True).click()

    expect(page.locator(".field-spec .errorlist")).to_contain_text("Did you mean '@every 5m'?")
    expect(spec).to_have_attribute("aria-invalid", "true")
    assert not Schedule.objects.exists()

    spec.fill("@cron 30 9 * * MON Europe/Berlin")
    expect(fires.get_by_role("columnheader", name="Europe/Berlin")).to_be_visible()
    expect(fires.locator("tbody tr")).to_have_count(5)
    page.get_by_role("button", name="Save", exact=True).click()

    expect(page.locator(".messagelist .success")).to_contain_text("weekly-report")
    made = Schedule.objects.get()
    assert (made.name, made.queue, made.source) == ("weekly-report", "orders", "admin")
    assert made.next_run_at is not None
    assert made.next_run_at > timezone.now()


def test_the_fires_show_on_which_day_the_clocks_change(browse: Browse) -> None:
    page = browse(is_superuser=True)
    page.goto(url("schedule_add"))
    # The last Sunday of March is among the next five, whichever year it is.
    page.get_by_label("Spec:").fill("@cron 30 2 * 3 SUN Europe/Berlin")
    skipped = page.locator("#outbox-fires tbody tr", has_text="03:00:00 CEST")
    expect(skipped.first).to_contain_text("after the change of clocks")


def test_a_schedule_runs_now(browse: Browse) -> None:
    demo.fill()
    page = browse("view_schedule", "run_schedule")
    OutboxMessage.objects.all().delete()
    page.goto(url("schedule_change", schedule("refresh-prices")))

    page.get_by_role("button", name="Run now").click()

    expect(page.locator(".messagelist .success")).to_contain_text("refresh-prices")
    assert OutboxMessage.objects.get().queue == "orders"


def test_a_schedule_is_disabled_and_enabled_again(browse: Browse) -> None:
    demo.fill()
    page = browse("view_schedule", "change_schedule")
    page.goto(url("schedule_change", schedule("refresh-prices")))

    page.get_by_role("button", name="Disable").click()
    expect(page.locator(".messagelist .success")).to_contain_text("refresh-prices")
    assert not Schedule.objects.get(name="refresh-prices").enabled

    page.goto(url("schedule_change", schedule("refresh-prices")))
    page.get_by_role("button", name="Enable").click()
    expect(page.locator(".messagelist .success")).to_contain_text("refresh-prices")
    assert Schedule.objects.get(name="refresh-prices").enabled
