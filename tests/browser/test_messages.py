"""A message is cancelled, run now, and released from a lease that nobody holds any more."""

from __future__ import annotations

import pytest
from django.utils import timezone

from django_outbox.models import OutboxMessage
from tests.browser import demo
from tests.browser.conftest import Browse
from tests.browser.driver import expect
from tests.browser.pages import lost_message, message_of, url
from tests.support import steal

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_message_is_cancelled_once_it_is_confirmed(browse: Browse) -> None:
    demo.fill()
    page = browse("view_outboxmessage", "cancel_outboxmessage")
    id_ = message_of("letters-to-nobody")
    page.goto(url("outboxmessage_changelist") + "?queue=letters-to-nobody")
    page.get_by_role("link", name=str(id_), exact=True).click()
    page.get_by_role("link", name="Cancel").click()
    page.get_by_role("button", name="No, take me back").click()
    assert OutboxMessage.objects.filter(pk=id_).exists()

    page.get_by_role("link", name="Cancel").click()
    page.locator("#content").get_by_role("button", name="Cancel").first.click()

    expect(page.locator(".messagelist .success")).to_contain_text("ancelled")
    assert not OutboxMessage.objects.filter(pk=id_).exists()


def test_a_message_that_is_leased_meanwhile_is_not_cancelled(browse: Browse) -> None:
    demo.fill()
    page = browse("view_outboxmessage", "cancel_outboxmessage")
    id_ = message_of("letters-to-nobody")
    page.goto(url("outboxmessage_change", id_))
    page.get_by_role("link", name="Cancel").click()
    steal(id_)
    page.locator("#content").get_by_role("button", name="Cancel").first.click()

    expect(page.locator(".messagelist .warning")).to_contain_text("leased")
    assert OutboxMessage.objects.filter(pk=id_).exists()


def test_a_scheduled_message_runs_now(browse: Browse) -> None:
    demo.fill()
    page = browse("view_outboxmessage", "run_outboxmessage")
    id_ = message_of(demo.HOSTILE)
    page.goto(url("outboxmessage_change", id_))
    expect(page.locator(".field-state")).to_contain_text("scheduled")

    page.get_by_role("button", name="Run now").click()

    expect(page.locator(".messagelist .success")).to_be_visible()
    assert OutboxMessage.objects.get(pk=id_).next_attempt_at <= timezone.now()


def test_a_lease_that_has_run_out_is_released(browse: Browse) -> None:
    demo.fill()
    page = browse("view_outboxmessage", "release_outboxmessage")
    id_ = lost_message()
    page.goto(url("outboxmessage_change", id_))
    page.get_by_role("link", name="Release").click()
    page.locator("#content").get_by_role("button", name="Release").first.click()

    expect(page.locator(".messagelist .success")).to_be_visible()
    assert OutboxMessage.objects.get(pk=id_).lease_token is None


def test_a_selection_is_counted_and_run_now(browse: Browse) -> None:
    demo.fill()
    page = browse("view_outboxmessage", "run_outboxmessage")
    page.goto(url("outboxmessage_changelist") + "?queue=carts&state=scheduled")
    page.get_by_role("checkbox", name="Select all").check()
    expect(page.locator(".action-counter")).to_have_text("6 of 6 selected")
    page.get_by_label("Action:").select_option("Run now")
    page.locator(".actions button").click()

    expect(page.locator(".messagelist .success")).to_contain_text("6")
    timers = OutboxMessage.objects.filter(queue="carts", timer_id__isnull=False)
    assert not timers.filter(next_attempt_at__gt=timezone.now()).exists()
