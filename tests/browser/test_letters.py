"""From what is failing to its delivery: find the group, open a letter, edit it, replay it."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from django_outbox.models import DeadLetter, OutboxMessage
from example_project.shop.models import WebhookEvent
from tests.browser import demo
from tests.browser.conftest import Browse
from tests.browser.driver import Page, expect
from tests.browser.pages import letter_of, url
from tests.process.stage import Stage
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

EVENT = '{"action": "opened", "repository": {"full_name": "shop/till"}}'


def told(page: Page, text: str) -> None:
    """See that the page says so in a message on top."""
    expect(page.locator(".messagelist li")).to_contain_text(text)


def test_a_failing_letter_is_found_edited_replayed_and_delivered(
    browse: Browse, stage: Stage
) -> None:
    demo.fill()
    page = browse(is_superuser=True)
    page.goto("/admin/")
    page.get_by_role("link", name="Dead letters").first.click()
    page.get_by_role("link", name="What is failing").click()
    group = page.get_by_role("row").filter(has_text="github")
    expect(group).to_contain_text("invalid payload")
    group.get_by_role("link").first.click()
    page.locator("#result_list tbody th a").click()
    expect(page.locator("#content")).to_contain_text("action must be str or None")

    page.get_by_role("link", name="Edit and replay").click()
    payload, replay = (
        page.get_by_label("Payload:"),
        page.get_by_role("button", name="Replay with this payload"),
    )
    payload.fill('{"action": ')
    replay.click()
    expect(page.locator(".errorlist")).to_contain_text("JSON")
    expect(payload).to_have_value('{"action": ')

    payload.fill(EVENT)
    replay.click()

    told(page, "replayed")
    assert not DeadLetter.objects.filter(queue="github").exists()
    stage.worker("--queue=github", DJANGO_SETTINGS_MODULE="example_project.settings").ready()
    wait_until(WebhookEvent.objects.exists)
    page.goto("/admin/shop/webhookevent/")
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    expect(page.locator("#result_list")).to_contain_text("opened")
    page.goto(url("outboxmessage_changelist") + "?q=delivery-7")
    expect(page.locator("#result_list tbody tr")).to_have_count(0)
    assert "replayed" in LogEntry.objects.latest("pk").change_message


def test_a_selection_is_discarded_once_it_is_confirmed(browse: Browse) -> None:
    demo.fill()
    page = browse("view_deadletter", "discard_deadletter")
    page.goto(url("deadletter_changelist") + "?queue=shipments")
    page.get_by_role("checkbox", name="Select all").check()
    page.get_by_label("Action:").select_option("Discard")
    page.locator(".actions button").click()
    expect(page.locator("#content")).to_contain_text("3 dead letters")
    assert DeadLetter.objects.filter(queue="shipments").count() == 3

    page.get_by_role("button", name="Yes, discard").click()

    told(page, "Discarded 3 dead letters")
    assert not DeadLetter.objects.filter(queue="shipments").exists()


def test_all_that_match_a_filter_are_replayed_slowly(browse: Browse) -> None:
    demo.fill()
    page = browse("view_deadletter", "replay_deadletter")
    page.goto(url("deadletter_changelist") + "?queue=payments")
    page.get_by_role("checkbox", name="Select all").check()
    page.locator(".question a", has_text="Select all 56 dead letters").click()
    page.get_by_label("Action:").select_option("Replay slowly")
    page.get_by_label("Per second:").fill("0.5")
    page.locator(".actions button").click()

    told(page, "Replayed 56 dead letters")
    replayed = OutboxMessage.objects.filter(queue="payments", attempts_count=0, lease_token=None)
    due = [message.next_attempt_at for message in replayed.order_by("next_attempt_at")]
    assert len(due) == 56
    assert round((due[-1] - due[0]).total_seconds()) == 55 * 2


def test_a_letter_that_is_large_and_no_text_is_cut_and_downloaded(browse: Browse) -> None:
    demo.fill()
    page = browse("view_deadletter")
    page.goto(url("deadletter_change", letter_of("devices")))
    expect(page.locator(".outbox-hex")).to_contain_text("00000000")

    with page.expect_download() as download:
        page.get_by_role("link", name="download").click()

    with download.value.path().open("rb") as file:
        assert file.read() == bytes(DeadLetter.objects.get(queue="devices").payload)
