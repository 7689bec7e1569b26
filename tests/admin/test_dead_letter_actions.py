"""Replaying and discarding dead letters in the admin: some, all that match, and one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.contrib.admin.models import LogEntry
from django.db import DatabaseError, connection, connections
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage

from .conftest import Login

pytestmark = pytest.mark.django_db

LIST = reverse("admin:django_outbox_deadletter_changelist")
HOSTILE = "<script>alert(1)</script>\"><img src=x onerror='alert(2)'>"
ACTIONS = {
    "replay_chosen": "replay_deadletter",
    "replay_chosen_slowly": "replay_deadletter",
    "discard_chosen": "discard_deadletter",
}

MakeLetter = Callable[..., DeadLetter]
MakeLetters = Callable[..., None]


def act(client: Client, action: str, *letters: DeadLetter, query: str = "", **fields: Any) -> Any:
    """Post an action on these letters, as the form of the list does."""
    data = {
        "action": action,
        "index": 0,
        "select_across": 0,
        "per_second": "10",
        "_selected_action": [letter.pk for letter in letters],
        **fields,
    }
    return client.post(LIST + query, data)


def act_on_all(client: Client, action: str, query: str = "", **fields: Any) -> Any:
    """Post an action on all letters that match the filter."""
    some = DeadLetter.objects.order_by("id")[0]
    return act(client, action, some, query=query, select_across=1, **fields)


def told(client: Client) -> list[str]:
    """Return what the next page tells the user."""
    return [str(message) for message in client.get(LIST).context["messages"]]


def logged() -> list[str]:
    return list(LogEntry.objects.order_by("id").values_list("change_message", flat=True))


def tool(letter: DeadLetter, name: str) -> str:
    return reverse(f"admin:django_outbox_deadletter_{name}", args=[letter.pk])


# Replay


def test_the_selected_letters_are_replayed_and_no_others(
    superuser: Client, make_letter: MakeLetter
) -> None:
    first, second, other = make_letter(), make_letter(), make_letter()
    response = act(superuser, "replay_chosen", first, second)

    assert response.status_code == 302
    assert set(OutboxMessage.objects.values_list("message_id", flat=True)) == {
        first.message_id,
        second.message_id,
    }
    assert DeadLetter.objects.get() == other
    assert told(superuser) == ["Replayed 2 dead letters."]
    entry = LogEntry.objects.get()
    assert entry.user.get_username() == "user0"
    assert entry.change_message == (
        f"Replayed 2 dead letters. Asked to replay: selected, with the ids {first.pk}, {second.pk}."
    )


def test_all_that_match_the_filter_are_replayed_beyond_the_page(
    superuser: Client, make_letters: MakeLetters
) -> None:
    make_letters(120)
    make_letters(3, queue="refunds")
    act_on_all(superuser, "replay_chosen", "?queue=orders&reason=retry_terminal")

    assert OutboxMessage.objects.filter(queue="orders").count() == 120
    assert DeadLetter.objects.count() == 3
    assert told(superuser) == ["Replayed 120 dead letters."]
    assert logged() == [
        (
            "Replayed 120 dead letters. "
            "Asked to replay: all with queue “orders”, reason “retry_terminal”."
        )
    ]


def test_all_that_match_can_be_chosen_without_javascript(
    superuser: Client, make_letters: MakeLetters
) -> None:
    make_letters(60)
    box = '<input type="checkbox" name="select_across" value="1"> Not only the ticked ones: all 60'
    assert box in superuser.get(LIST).content.decode()

    act(superuser, "replay_chosen", DeadLetter.objects.all()[0], select_across=["0", "1"])
    assert OutboxMessage.objects.count() == 60


def test_all_that_a_search_finds_are_replayed(superuser: Client, make_letter: MakeLetter) -> None:
    make_letter(correlation_id="checkout-9")
    make_letter()
    act_on_all(superuser, "replay_chosen", "?q=checkout-9")

    assert DeadLetter.objects.get().correlation_id == "checkout-7"
    assert logged() == ["Replayed 1 dead letter. Asked to replay: all with search “checkout-9”."]


def test_all_there_are_can_be_replayed(superuser: Client, make_letters: MakeLetters) -> None:
    make_letters(3)
    act_on_all(superuser, "replay_chosen")

    assert logged() == ["Replayed 3 dead letters. Asked to replay: all there are."]


@pytest.mark.parametrize("query", ["?reason=bad+luck", "?failed=tomorrow", "?queue=%00", "?q=%00"])
def test_a_filter_that_cannot_be_never_means_all(
    superuser: Client, make_letter: MakeLetter, query: str
) -> None:
    make_letter()
    act_on_all(superuser, "replay_chosen", query)

    assert DeadLetter.objects.count() == 1


def test_how_many_were_skipped_is_told_and_why(superuser: Client, make_letter: MakeLetter) -> None:
    outbox.publish({}, queue="orders", timer_id="t", activate_in=60)
    make_letter(timer_id="t")
    make_letter()
    act_on_all(superuser, "replay_chosen")

    what = "Replayed 1 dead letter. Skipped 1 dead letter: a live timer has their timer_id."
    assert told(superuser) == [what]
    assert logged() == [f"{what} Asked to replay: all there are."]


def test_letters_that_are_gone_meanwhile_are_told(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter()
    DeadLetter.objects.filter(pk=letter.pk).discard()
    act(superuser, "replay_chosen", letter)

    assert told(superuser) == ["Replayed nothing; the letters may be gone by now."]


def test_replay_slowly_staggers_the_messages(superuser: Client, make_letters: MakeLetters) -> None:
    make_letters(5)
    act_on_all(superuser, "replay_chosen_slowly", per_second="0.5")
    due = list(OutboxMessage.objects.order_by("id").values_list("next_attempt_at", flat=True))

    for number, moment in enumerate(due):
        wait = moment - due[0] - timedelta(seconds=2 * number)
        assert abs(wait) < timedelta(seconds=1)
    assert told(superuser) == ["Replayed 5 dead letters. The last is due in 8 s."]
    assert logged() == ["Replayed 5 dead letters. Asked to replay 0.5 a second: all there are."]


def test_when_the_last_of_many_is_due_is_told_to_the_second(
    superuser: Client, make_letters: MakeLetters
) -> None:
    make_letters(101)
    act_on_all(superuser, "replay_chosen_slowly", per_second="1")

    assert told(superuser) == ["Replayed 101 dead letters. The last is due in 1 min 40 s."]


def test_the_list_offers_ten_a_second(superuser: Client, make_letter: MakeLetter) -> None:
    make_letter()
    page = superuser.get(LIST).content.decode()

    assert '<label>Per second: <input type="number" name="per_second" value="10"' in page


@pytest.mark.parametrize(
    ("per_second", "flaw"),
    [
        ("", "“Replay slowly” needs to know how many a second, such as 10."),
        ("fast", "“Per second” must be a number, such as 10 or 0.5."),
        ("nan", "“Per second” must be a number, such as 10 or 0.5."),
        ("inf", "“Per second” must be a number, such as 10 or 0.5."),
        ("0", "“Per second” must be 0.001 or more."),
        ("-3", "“Per second” must be 0.001 or more."),
    ],
)
def test_a_pace_that_cannot_be_is_refused(
    superuser: Client, make_letter: MakeLetter, per_second: str, flaw: str
) -> None:
    letter = make_letter()
    act(superuser, "replay_chosen_slowly", letter, per_second=per_second)

    assert told(superuser) == [f"{flaw} Nothing was replayed."]
    assert DeadLetter.objects.get() == letter
    assert logged() == []


def test_a_pace_that_cannot_be_is_no_matter_to_other_actions(
    superuser: Client, make_letter: MakeLetter
) -> None:
    act(superuser, "replay_chosen", make_letter(), per_second="fast")

    assert told(superuser) == ["Replayed 1 dead letter."]


def test_an_id_that_cannot_be_is_a_bad_request(superuser: Client, make_letter: MakeLetter) -> None:
    make_letter()
    data = {"action": "replay_chosen", "index": 0, "_selected_action": "x"}

    assert superuser.post(LIST, data).status_code == 400


def test_an_action_reads_no_payload(superuser: Client, make_letters: MakeLetters) -> None:
    make_letters(3)
    some = DeadLetter.objects.order_by("id")[0]
    with CaptureQueriesContext(connection) as queries:
        act(superuser, "replay_chosen", some, select_across=1)

    assert not [query["sql"] for query in queries if '"payload"' in query["sql"]]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action", ["replay_chosen", "discard_chosen"])
def test_an_interrupted_action_has_committed_and_logged_its_batches(
    superuser: Client,
    make_letters: MakeLetters,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
) -> None:
    for alias in connections:
        monkeypatch.setitem(connections[alias].settings_dict, "ATOMIC_REQUESTS", True)
    make_letters(2500)
    newest = DeadLetter.objects.order_by("-id")[0].pk

    noted: list[str] = []

    def interrupt(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if sql.startswith("UPDATE") and "admin_log" in sql:
            noted.append(sql)
            if len(noted) == 2:
                raise KeyboardInterrupt
        return execute(sql, *args)

    confirmed: dict[str, Any] = {"up_to": newest} if action == "discard_chosen" else {}
    with pytest.raises(KeyboardInterrupt), connection.execute_wrapper(interrupt):
        act_on_all(superuser, action, **confirmed)

    assert DeadLetter.objects.count() == 1500
    done, asked = ("Replayed", "replay") if action == "replay_chosen" else ("Discarded", "discard")
    assert logged() == [f"{done} 1,000 dead letters. Asked to {asked}: all there are."]

    act_on_all(superuser, action, **confirmed)
    assert DeadLetter.objects.count() == 0
    assert logged()[1] == f"{done} 1,500 dead letters. Asked to {asked}: all there are."


# Discard


def test_discard_asks_first_and_says_how_many(superuser: Client, make_letter: MakeLetter) -> None:
    first, second = make_letter(), make_letter()
    page = act(superuser, "discard_chosen", first, second).content.decode()

    assert "This deletes <strong>2</strong> dead letters for good" in page
    assert f"selected, with the ids {first.pk}, {second.pk}" in page
    assert DeadLetter.objects.count() == 2
    assert logged() == []


def confirm(client: Client, question: Any, query: str = "") -> Any:
    """Post the form of a question, as it stands on the page."""
    data: dict[str, list[Any]] = {}
    for name, value in question.context["hidden"]:
        data.setdefault(name, []).append(value)
    return client.post(LIST + query, data)


def test_what_is_confirmed_is_discarded(superuser: Client, make_letter: MakeLetter) -> None:
    first, second, other = make_letter(), make_letter(), make_letter()
    response = confirm(superuser, act(superuser, "discard_chosen", first, second))

    assert response.status_code == 302
    assert DeadLetter.objects.get() == other
    assert not OutboxMessage.objects.exists()
    assert told(superuser) == ["Discarded 2 dead letters."]
    assert logged() == [
        (
            "Discarded 2 dead letters. "
            f"Asked to discard: selected, with the ids {first.pk}, {second.pk}."
        )
    ]


def test_all_that_match_are_discarded_but_none_that_came_after_the_question(
    superuser: Client, make_letters: MakeLetters, make_letter: MakeLetter
) -> None:
    make_letters(120)
    refund = make_letter(queue="refunds")
    question = act_on_all(superuser, "discard_chosen", "?queue=orders")
    late = make_letter()
    confirm(superuser, question, "?queue=orders")

    assert list(DeadLetter.objects.order_by("id")) == [refund, late]
    assert logged() == ["Discarded 120 dead letters. Asked to discard: all with queue “orders”."]


@pytest.mark.parametrize("across", ["1", "on", "true"])
def test_the_log_tells_that_all_were_asked_for_however_that_is_written(
    superuser: Client, make_letter: MakeLetter, across: str
) -> None:
    letter = make_letter()
    make_letter()
    act(superuser, "replay_chosen", letter, select_across=across)

    assert logged() == ["Replayed 2 dead letters. Asked to replay: all there are."]


def test_what_has_become_old_since_the_question_is_kept(
    superuser: Client, make_letter: MakeLetter
) -> None:
    make_letter(failed_at=timezone.now() - timedelta(days=9))
    recent = make_letter(failed_at=timezone.now() - timedelta(days=7) + timedelta(seconds=0.5))
    question = act_on_all(superuser, "discard_chosen", "?failed=older")
    assert "This deletes <strong>1</strong> dead letter for good" in question.content.decode()
    time.sleep(0.6)
    confirm(superuser, question, "?failed=older")

    assert DeadLetter.objects.get() == recent


def test_a_question_about_many_says_that_they_are_more(
    superuser: Client, make_letters: MakeLetters
) -> None:
    make_letters(10_002)

    question = act_on_all(superuser, "discard_chosen").content.decode()
    assert "This deletes <strong>10,000+</strong> dead letters for good: all there are." in question


@pytest.mark.parametrize("as_of", ["x", "", "2026-01-01", "0001-01-01T00:00:00+00:00"])
def test_an_answer_to_a_question_of_no_time_is_a_bad_request(
    superuser: Client, make_letter: MakeLetter, as_of: str
) -> None:
    make_letter(failed_at=timezone.now() - timedelta(days=9))
    response = act_on_all(superuser, "discard_chosen", "?failed=older", up_to=9, as_of=as_of)

    assert response.status_code == 400


@pytest.mark.parametrize("up_to", ["x", "-1", ""])
def test_an_answer_to_no_question_is_a_bad_request(
    superuser: Client, make_letter: MakeLetter, up_to: str
) -> None:
    assert act_on_letter(superuser, make_letter(), up_to).status_code == 400
    assert DeadLetter.objects.count() == 1


def act_on_letter(client: Client, letter: DeadLetter, up_to: str) -> Any:
    return act(client, "discard_chosen", letter, up_to=up_to)


# One letter


def test_one_letter_is_replayed_by_its_button(superuser: Client, make_letter: MakeLetter) -> None:
    letter, other = make_letter(original_id=42), make_letter()
    response = superuser.post(tool(letter, "replay"))

    assert response["Location"] == LIST
    assert OutboxMessage.objects.get().message_id == letter.message_id
    assert DeadLetter.objects.get() == other
    assert told(superuser) == ["Replayed orders #42 (retries exhausted)."]
    entry = LogEntry.objects.get()
    assert entry.object_id == str(letter.pk)
    assert entry.object_repr == "orders #42 (retries exhausted)"
    assert entry.change_message == f"Replayed message {letter.message_id}."


def test_one_letter_whose_timer_lives_stays_and_that_is_told(
    superuser: Client, make_letter: MakeLetter
) -> None:
    outbox.publish({}, queue="orders", timer_id="t", activate_in=60)
    letter = make_letter(timer_id="t", original_id=42)
    response = superuser.post(tool(letter, "replay"))

    assert response["Location"] == tool(letter, "change")
    assert DeadLetter.objects.get() == letter
    assert told(superuser) == [
        (
            "Skipped, and nothing was changed: a live timer has the timer_id of "
            "orders #42 (retries exhausted)."
        )
    ]
    assert logged() == []


@pytest.mark.parametrize("name", ["replay", "edit", "discard"])
def test_a_letter_that_is_gone_meanwhile_is_told(
    superuser: Client, make_letter: MakeLetter, name: str
) -> None:
    letter = make_letter()
    DeadLetter.objects.filter(pk=letter.pk).discard()
    response = superuser.post(tool(letter, name), {"payload": "{}"})

    assert response["Location"] == LIST
    assert told(superuser) == [
        (
            f"Nothing was done: the dead letter {letter.pk} is gone. "
            "Somebody has replayed or discarded it."
        )
    ]
    assert logged() == []


def test_one_letter_is_discarded_after_a_question(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter, other = make_letter(original_id=42), make_letter()
    question = superuser.get(tool(letter, "discard")).content.decode()
    assert "This deletes <strong>1</strong> dead letter for good" in question
    assert DeadLetter.objects.count() == 2

    superuser.post(tool(letter, "discard"))
    assert DeadLetter.objects.get() == other
    assert told(superuser) == ["Discarded orders #42 (retries exhausted)."]
    assert logged() == [f"Discarded message {letter.message_id}."]


def test_a_look_replays_nothing(superuser: Client, make_letter: MakeLetter) -> None:
    letter = make_letter()

    assert superuser.get(tool(letter, "replay")).status_code == 405
    assert DeadLetter.objects.count() == 1


def break_the_log(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
    if "admin_log" in sql:
        raise DatabaseError("The log is full.")
    return execute(sql, *args)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("name", ["replay", "edit", "discard"])
def test_nothing_is_done_to_a_letter_without_its_line_in_the_log(
    superuser: Client,
    make_letter: MakeLetter,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_atomic: bool,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", is_atomic)
    letter = make_letter(queue="of nobody")
    with pytest.raises(DatabaseError), connection.execute_wrapper(break_the_log):
        superuser.post(tool(letter, name), {"payload": "[7]"})

    assert DeadLetter.objects.get() == letter
    assert bytes(DeadLetter.objects.get().payload) == bytes(letter.payload)
    assert not OutboxMessage.objects.exists()

    superuser.post(tool(letter, name), {"payload": "[7]"})
    assert not DeadLetter.objects.exists()
    assert len(logged()) == 1


def test_the_way_back_from_a_letter_is_to_the_list_as_it_was_filtered(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter(queue="a&b")
    page = superuser.get(LIST, {"queue": "a&b"}).content.decode()
    filters = "?_changelist_filters=queue%3Da%2526b"
    assert f'href="{tool(letter, "change")}{filters}"' in page

    page = superuser.get(tool(letter, "change") + filters).content.decode()
    for name in ("replay", "edit", "discard"):
        assert f'"{tool(letter, name)}{filters}"' in page
    for name in ("edit", "discard"):
        page = superuser.get(tool(letter, name) + filters).content.decode()
        assert f'href="{tool(letter, "change")}{filters}"' in page
    response = superuser.post(tool(letter, "replay") + filters)
    assert response["Location"] == f"{LIST}?queue=a%26b"


# Permissions


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_needs_its_permission(login: Login, make_letter: MakeLetter, action: str) -> None:
    letter = make_letter()
    viewer = login("view_deadletter", *({*ACTIONS.values()} - {ACTIONS[action]}))

    assert f'value="{action}"' not in viewer.get(LIST).content.decode()
    assert act(viewer, action, letter).status_code == 403
    assert act_on_all(viewer, action, up_to=letter.pk).status_code == 403
    assert DeadLetter.objects.get() == letter

    operator = login("view_deadletter", ACTIONS[action])
    assert f'value="{action}"' in operator.get(LIST).content.decode()
    assert act(operator, action, letter).status_code in (200, 302)


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_needs_the_permission_to_view_too(
    login: Login, make_letter: MakeLetter, action: str
) -> None:
    letter = make_letter()

    assert act(login(ACTIONS[action]), action, letter).status_code == 403
    assert DeadLetter.objects.get() == letter


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("replay", {"replay_deadletter"}),
        ("discard", {"discard_deadletter"}),
        ("edit", {"edit_deadletter", "replay_deadletter"}),
    ],
)
def test_a_button_needs_its_permissions(
    login: Login, make_letter: MakeLetter, name: str, needed: set[str]
) -> None:
    letter = make_letter(queue="of nobody")
    every = {"view_deadletter", "replay_deadletter", "discard_deadletter", "edit_deadletter"}
    url = tool(letter, name)
    for lacking in needed:
        user = login(*(every - {lacking}))
        assert f'"{url}"' not in user.get(tool(letter, "change")).content.decode()
        assert user.get(url).status_code == 403
        assert user.post(url, {"payload": "{}"}).status_code == 403
    assert login(*needed).post(url, {"payload": "{}"}).status_code == 403
    assert DeadLetter.objects.get() == letter

    user = login("view_deadletter", *needed)
    assert f'"{url}"' in user.get(tool(letter, "change")).content.decode()
    assert user.post(url, {"payload": "{}"}).status_code == 302


# Hostile text


def test_hostile_text_is_text_in_questions_messages_and_the_log(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter(queue=HOSTILE, timer_id="t", message_id=UUID(int=7))
    query = {"queue": HOSTILE}
    data = {"action": "discard_chosen", "_selected_action": letter.pk, "select_across": 1}
    many = superuser.post(LIST, data, query_params=query).content.decode()
    one = superuser.get(tool(letter, "discard")).content.decode()
    outbox.publish({}, queue=HOSTILE, timer_id="t", activate_in=60)
    skipped = superuser.post(tool(letter, "replay"), follow=True).content.decode()
    superuser.post(tool(letter, "discard"))
    index = superuser.get(reverse("admin:index")).content.decode()

    for page in (many, one, skipped, index):
        assert escape(HOSTILE) in page
        assert "<script>alert" not in page
        assert "<img src=x" not in page


def test_old_letters_are_found_by_the_time_of_the_choice(
    superuser: Client, make_letter: MakeLetter
) -> None:
    old = make_letter(failed_at=timezone.now() - timedelta(days=8))
    make_letter()
    act_on_all(superuser, "replay_chosen", "?failed=older")

    assert OutboxMessage.objects.get().message_id == old.message_id
    assert logged() == [
        "Replayed 1 dead letter. Asked to replay: all with time of failure “older”."
    ]


# Another database


class OutboxElsewhere:
    """Write what is the outbox's to another database, and read it from one that lags behind."""

    def db_for_write(self, model: type[Model], **hints: Any) -> str | None:
        return "orders" if model._meta.app_label == "django_outbox" else None

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        return None


@pytest.mark.django_db(databases=["default", "orders"])
def test_letters_are_shown_and_replayed_where_messages_are_written(
    superuser: Client, make_letter: MakeLetter, settings: LazySettings
) -> None:
    letter = make_letter(queue="there")
    letter.pk = None
    letter.save(using="orders", force_insert=True)
    make_letter(queue="here")
    settings.DATABASE_ROUTERS = [OutboxElsewhere()]

    for url in (LIST, reverse("admin:django_outbox_deadletter_failing")):
        page = superuser.get(url).content.decode()
        assert "there" in page
        assert ">here<" not in page
    act(superuser, "replay_chosen", letter)
    assert OutboxMessage.objects.using("orders").get().queue == "there"
    assert DeadLetter.objects.using("default").filter(queue="here").exists()


@pytest.mark.django_db(databases=["default", "orders"])
def test_a_letter_is_edited_where_messages_are_written(
    superuser: Client, make_letter: MakeLetter, settings: LazySettings
) -> None:
    letter = make_letter(queue="there")
    letter.pk = None
    letter.save(using="orders", force_insert=True)
    settings.DATABASE_ROUTERS = [OutboxElsewhere()]
    assert superuser.get(tool(letter, "change")).status_code == 200

    assert superuser.post(tool(letter, "edit"), {"payload": "[7]"}).status_code == 302
    assert bytes(OutboxMessage.objects.using("orders").get().payload) == b"[7]"
    assert not DeadLetter.objects.using("orders").exists()
    assert DeadLetter.objects.using("default").exists()


@pytest.mark.django_db(databases=["default", "orders"])
@pytest.mark.parametrize("name", ["replay", "edit", "discard"])
def test_nothing_is_done_there_without_its_line_in_the_log_here(
    superuser: Client, make_letter: MakeLetter, settings: LazySettings, name: str
) -> None:
    letter = make_letter(queue="there")
    letter.pk = None
    letter.save(using="orders", force_insert=True)
    settings.DATABASE_ROUTERS = [OutboxElsewhere()]
    with pytest.raises(DatabaseError), connection.execute_wrapper(break_the_log):
        superuser.post(tool(letter, name), {"payload": "[7]"})

    left = DeadLetter.objects.using("orders").get()
    assert bytes(left.payload) == bytes(letter.payload)
    assert not OutboxMessage.objects.using("orders").exists()
