"""The main path without a mouse: log in, find what is failing, edit, replay; cancel; schedule."""

from __future__ import annotations

import pytest

from django_outbox.models import DeadLetter, OutboxMessage, Schedule
from tests.browser import demo
from tests.browser.conftest import Browse
from tests.browser.driver import expect
from tests.browser.keyboard import press, write
from tests.browser.pages import message_of, url
from tests.browser.test_letters import EVENT, told

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_letter_is_found_edited_and_replayed(browse: Browse) -> None:
    demo.fill()
    page = browse(is_superuser=True)
    page.context.clear_cookies()
    page.goto(url("deadletter_changelist"))
    write(page, page.get_by_label("Username:"), "root")
    write(page, page.get_by_label("Password:"), "root")
    page.keyboard.press("Enter")
    press(page, page.get_by_role("link", name="What is failing"))
    press(page, page.get_by_role("row").filter(has_text="github").get_by_role("link").first)
    press(page, page.locator("#result_list tbody th a"))
    press(page, page.get_by_role("link", name="Edit and replay"))
    write(page, page.get_by_label("Payload:"), EVENT)
    press(page, page.get_by_role("button", name="Replay with this payload"))
    told(page, "replayed")
    assert not DeadLetter.objects.filter(queue="github").exists()


def test_a_message_is_cancelled(browse: Browse) -> None:
    demo.fill()
    page = browse("view_outboxmessage", "cancel_outboxmessage")
    id_ = message_of("letters-to-nobody")
    page.goto(url("outboxmessage_changelist"))
    press(page, page.get_by_role("link", name=str(id_), exact=True))
    press(page, page.get_by_role("link", name="Cancel"))
    press(page, page.locator("#content").get_by_role("button", name="Cancel").first)
    told(page, "ancelled")
    assert not OutboxMessage.objects.filter(pk=id_).exists()


def test_a_schedule_is_made_and_run_now(browse: Browse) -> None:
    page = browse(is_superuser=True)
    page.goto(url("schedule_changelist"))
    press(page, page.get_by_role("link", name="Add schedule"))
    write(page, page.get_by_label("Name:"), "weekly-report")
    write(page, page.get_by_label("Spec:"), "every 5m")
    write(page, page.get_by_label("Queue:"), "orders")
    page.keyboard.press("Enter")
    expect(page.locator(".field-spec .errorlist")).to_contain_text("Did you mean '@every 5m'?")
    write(page, page.get_by_label("Spec:"), "@every 5m")
    page.keyboard.press("Enter")
    told(page, "weekly-report")
    assert Schedule.objects.get().spec == "@every 5m"

    press(page, page.locator("#result_list").get_by_role("link", name="weekly-report"))
    press(page, page.get_by_role("button", name="Run now"))
    told(page, "weekly-report")
    assert OutboxMessage.objects.get().queue == "orders"
