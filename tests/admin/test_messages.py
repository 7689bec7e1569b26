"""Messages in the admin: what is shown, what is found, and what can be done by hand."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_outbox import outbox
from django_outbox.admin import message_list, operators
from django_outbox.admin.messages import OutboxMessageAdmin
from django_outbox.models import DeadLetter, OutboxMessage
from django_outbox.store.messages import operating
from example_project.shop.models import Customer

from .. import support
from .conftest import Login

pytestmark = pytest.mark.django_db

LIST = reverse("admin:django_outbox_outboxmessage_changelist")
VIEW = "view_outboxmessage"
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(1)</script>'
TOOLS = {
    "run_now": "run_outboxmessage",
    "cancel": "cancel_outboxmessage",
    "release": "release_outboxmessage",
}
HOUR = timedelta(hours=1)


def url(name: str, id_: int) -> str:
    return reverse(f"admin:django_outbox_outboxmessage_{name}", args=[id_])


def publish(payload: Any = None, queue: str = "orders", **options: Any) -> int:
    with transaction.atomic():
        id_ = outbox.publish(payload, queue=queue, **options)
    assert id_ is not None
    return id_


def change(id_: int, assignments: str, *params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE django_outbox_message SET {assignments} WHERE id = %s", [*params, id_]
        )


def lease(id_: int, *, seconds: float = 60, worker: str = "worker-1") -> UUID:
    """Lease the message until so many seconds from now."""
    token = uuid4()
    change(
        id_,
        "lease_token = %s, leased_by = %s, deliveries_count = deliveries_count + 1,"
        " lease_expires_at = clock_timestamp() + %s * interval '1 second'",
        token,
        worker,
        seconds,
    )
    return token


def seen(worker: str = "worker-1", *, seconds_ago: float = 0) -> None:
    """Let a worker have been seen so many seconds ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_outbox_worker (id, worker_id, kind, host, pid, last_seen_at)"
            " VALUES (gen_random_uuid(), %s, 'worker', 'host', 1,"
            " clock_timestamp() - %s * interval '1 second')",
            [worker, seconds_ago],
        )


def one_of_each() -> dict[str, int]:
    """Publish a message in each of the states."""
    ids = {
        "ready": publish(queue="ready"),
        "leased": publish(queue="leased"),
        "scheduled": publish(queue="scheduled", activate_in=HOUR),
        "retrying": publish(queue="retrying", activate_in=HOUR),
        "expired": publish(queue="expired"),
    }
    lease(ids["leased"])
    change(ids["retrying"], "attempts_count = 2, last_error = 'ValueError: no'")
    change(ids["expired"], "expires_at = clock_timestamp() - interval '1 second'")
    return ids


def listed(client: Client, **params: str) -> list[int]:
    """Return the ids in the list, in its order."""
    response = client.get(LIST, params)
    assert response.status_code == 200
    return [message.pk for message in response.context["cl"].result_list]


def notes(client: Client, **params: str) -> list[str]:
    found: list[str] = client.get(LIST, params).context["cl"].notes
    return found


def act(client: Client, action: str, ids: list[int], **fields: Any) -> Any:
    return client.post(
        LIST, {"action": action, "_selected_action": ids, **fields}, follow="answer" in fields
    )


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


# The list


@pytest.mark.parametrize("state", ["ready", "leased", "scheduled", "retrying", "expired"])
def test_the_list_shows_each_state_as_a_word_and_filters_by_it(
    superuser: Client, state: str
) -> None:
    ids = one_of_each()
    response = superuser.get(LIST, {"state": state})
    assert [message.pk for message in response.context["cl"].result_list] == [ids[state]]
    words = re.findall(r'class="outbox-word outbox-\w+">(\w+)<', response.content.decode())
    assert words == [state]
    assert response.context["cl"].notes == []


def test_a_message_whose_lease_has_run_out_is_ready_and_shows_who_held_it(
    superuser: Client,
) -> None:
    id_ = publish()
    lease(id_, seconds=-300, worker="worker-7")
    assert listed(superuser, state="ready") == [id_]
    assert listed(superuser, state="leased") == []
    assert re.search(
        r"worker-7, has run out <time.*\(5 min ago\)", superuser.get(LIST).content.decode()
    )


def test_a_leased_message_past_its_expiry_is_leased(superuser: Client) -> None:
    id_ = publish()
    lease(id_)
    change(id_, "expires_at = clock_timestamp() - interval '1 second'")
    assert listed(superuser, state="leased") == [id_]
    assert listed(superuser, state="expired") == []


def test_the_next_attempt_is_shown_as_a_moment_and_as_how_far_off_it_is(superuser: Client) -> None:
    publish(activate_in=timedelta(minutes=3, seconds=30))
    assert re.search(
        r'<time datetime="[^"]+">\d{4}-\d\d-\d\d \d\d:\d\d:\d\d</time> '
        r'<span class="outbox-relative">\(in 3 min\)',
        superuser.get(LIST).content.decode(),
    )


def test_a_deadline_near_the_end_of_time_is_shown(superuser: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    id_ = publish()
    change(id_, "next_attempt_at = '9999-12-26 12:00:00Z'")
    assert "9999-12-26 21:00:00" in superuser.get(LIST).content.decode()


@pytest.mark.parametrize(
    "column",
    [
        "created_at",
        "next_attempt_at",
        "expires_at",
        "first_attempt_at",
        "last_attempt_at",
        "lease_expires_at",
    ],
)
@pytest.mark.parametrize(
    ("moment", "word"),
    [
        ("infinity", "never"),
        ("20000-01-01 00:00Z", "never"),
        ("9999-12-31 23:59:59Z", "never"),
        ("-infinity", "before all time"),
    ],
)
def test_a_moment_that_python_cannot_hold_breaks_no_page(
    superuser: Client, column: str, moment: str, word: str
) -> None:
    id_ = publish(timer_id="parked")
    lease(id_)
    seen()
    change(id_, f"attempts_count = 2, {column} = %s", moment)
    page = superuser.get(url("change", id_)).content.decode()
    assert word in page
    for params in ({}, {"queue": "orders"}, {"q": "parked"}):
        assert listed(superuser, **params) == [id_]
    for tool in ("cancel", "release"):
        assert superuser.get(url(tool, id_)).status_code == 200
    act(superuser, "cancel_selected", [id_])
    change(id_, "lease_token = NULL, lease_expires_at = NULL, leased_by = NULL")
    response = superuser.post(url("cancel", id_), follow=True)
    assert told(response) == ["1 message cancelled."]


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles"])
@pytest.mark.parametrize(
    ("moment", "word"), [("infinity", "never"), ("-infinity", "before all time")]
)
def test_moments_are_shown_on_a_site_without_time_zones(
    superuser: Client, settings: Any, zone: str, moment: str, word: str
) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = zone
    id_ = publish()
    lease(id_)
    seen()
    assert "never" not in superuser.get(url("change", id_)).content.decode()
    change(id_, "next_attempt_at = %s, lease_expires_at = %s", moment, moment)
    for where in (LIST, url("change", id_), url("release", id_)):
        page = superuser.get(where)
        assert page.status_code == 200
        assert word in page.content.decode()


def test_a_parked_message_is_scheduled_and_can_be_run_now(superuser: Client) -> None:
    id_ = publish()
    change(id_, "next_attempt_at = 'infinity'")
    assert listed(superuser, state="scheduled") == [id_]
    assert told(superuser.post(url("run_now", id_), follow=True)) == ["1 message made due now."]


@pytest.mark.parametrize("moment", ["infinity", "-infinity"])
def test_a_worker_that_was_seen_at_no_moment_breaks_no_page(superuser: Client, moment: str) -> None:
    id_ = publish()
    lease(id_)
    seen()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_outbox_worker SET last_seen_at = %s", [moment])
    assert superuser.get(url("change", id_)).status_code == 200


def test_the_newest_come_first_and_with_a_queue_those_that_are_claimed_first(
    superuser: Client,
) -> None:
    later = publish(activate_in=HOUR)
    now = publish()
    other = publish(queue="refunds")
    assert listed(superuser) == [other, now, later]
    assert listed(superuser, queue="orders") == [now, later]
    assert listed(superuser, queue="orders", state="scheduled") == [later]


def test_the_queues_to_filter_by_are_those_that_have_messages(superuser: Client) -> None:
    for queue in ("refunds", "orders", "orders", HOSTILE):
        publish(queue=queue)
    by_queue = superuser.get(LIST).context["cl"].filter_specs[0]
    assert sorted(by_queue.queues) == sorted(["refunds", "orders", HOSTILE])


def test_only_so_many_queues_are_offered_and_the_page_says_so(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_list, "MOST_QUEUES", 2)
    ids = [publish(queue=queue) for queue in ("a", "b", "c")]
    assert superuser.get(LIST).context["cl"].filter_specs[0].queues == ["a", "b"]
    assert notes(superuser) == ["There may be more than these 2 queues."]
    assert listed(superuser, queue="c") == [ids[2]]
    assert listed(superuser, q="c") == [ids[2]]


def test_a_queue_that_is_empty_by_now_shows_nothing(superuser: Client) -> None:
    publish()
    assert listed(superuser, queue="gone") == []


@pytest.mark.parametrize(
    "params", [{"queue": "a\0b"}, {"state": "odd"}, {"payload__contains": "x"}]
)
def test_a_filter_that_cannot_be_is_refused_without_a_query(
    superuser: Client, params: dict[str, str]
) -> None:
    publish()
    response = superuser.get(LIST, params)
    assert response.status_code in {302, 400}


def test_no_column_can_be_sorted_by_since_none_has_an_index_for_it(superuser: Client) -> None:
    first, second = publish(), publish()
    for column in range(1, 9):
        assert listed(superuser, o=str(column)) == [second, first]


def test_a_state_is_looked_for_in_so_many_rows_and_the_page_says_so(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_list, "LOOK_AT", 4)
    orders = [publish() for _ in range(3)]
    refunds = [publish(queue="refunds") for _ in range(2)]
    for id_ in (orders[1], orders[2], refunds[1]):
        lease(id_)
    assert listed(superuser, state="leased") == [refunds[1], orders[1]]
    [note] = notes(superuser, state="leased")
    assert note == (
        "There may be more that are leased: this shows 1,000 at most, of the first 2 messages of "
        "each queue, in the order of their claims."
    )
    assert notes(superuser, state="leased", queue="refunds") == []


def test_scheduled_messages_are_found_behind_any_number_that_are_ready(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_list, "LOOK_AT", 1)
    publish(), publish()
    later = publish(activate_in=HOUR)
    assert listed(superuser, state="scheduled") == [later]


def test_a_state_shows_so_many_and_says_so(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_list, "MOST_FOUND", 2)
    ids = [publish() for _ in range(3)]
    assert listed(superuser, state="ready") == [ids[1], ids[0]]
    assert notes(superuser, state="ready")[0].startswith("There may be more that are ready")


def test_the_list_is_a_bounded_number_of_queries_and_reads_no_payload(
    superuser: Client, django_assert_max_num_queries: Any
) -> None:
    one_of_each()
    superuser.get(LIST)
    for params in ({}, {"state": "ready"}, {"queue": "ready"}, {"q": "ready"}, {"q": "nothing"}):
        with django_assert_max_num_queries(9), CaptureQueriesContext(connection) as queries:
            assert superuser.get(LIST, params).status_code == 200
        read = " ".join(query["sql"] for query in queries if "SELECT" in query["sql"])
        assert "payload" not in read.lower()
        assert "headers" not in read
        assert '"last_error"' not in read


# The search


def test_a_message_is_found_by_its_id_its_timer_its_queue_and_its_ref(superuser: Client) -> None:
    customer = Customer.objects.create(name="Ada", email="ada@example.org")
    publish()
    plain = publish(queue="refunds")
    timer = publish(queue="carts", timer_id="cart-7")
    about = publish(queue="mails", ref=customer)
    assert listed(superuser, q=str(plain)) == [plain]
    assert listed(superuser, q="cart-7") == [timer]
    assert listed(superuser, q="cart-7", queue="carts") == [timer]
    assert listed(superuser, q="cart-7", queue="orders") == []
    assert listed(superuser, q="refunds") == [plain]
    assert listed(superuser, q=f" shop.customer:{customer.pk} ") == [about]


def test_a_message_is_found_by_its_message_id_or_correlation_id_near_the_ends_of_the_table(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_list, "LOOK_AT_ENDS", 1)
    ids = [publish(correlation_id=f"correlated-{n}") for n in range(3)]
    uuids = dict(OutboxMessage.objects.values_list("pk", "message_id"))
    assert listed(superuser, q=str(uuids[ids[0]])) == [ids[0]]
    assert listed(superuser, q=uuids[ids[2]].hex.upper()) == [ids[2]]
    assert listed(superuser, q="correlated-2") == [ids[2]]
    assert listed(superuser, q=str(uuids[ids[1]])) == []
    [note] = notes(superuser, q=str(uuids[ids[1]]))
    assert note == (
        "No id, timer id, ref or queue is this. As a message id or correlation id, which have no "
        "index here, it was looked for among the newest and the oldest 1 messages only."
    )


def test_a_state_is_looked_for_in_the_queue_that_is_searched_for(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_list, "MOST_QUEUES", 1)
    monkeypatch.setattr(message_list, "LOOK_AT", 2)
    publish(queue="a")
    ids = [publish(queue="z"), publish(queue="z")]
    later = publish(queue="z", activate_in=HOUR)
    assert listed(superuser, q="z", state="ready") == ids
    assert listed(superuser, q="z", state="scheduled") == [later]


@pytest.mark.parametrize("state", ["ready", "leased", "scheduled", "retrying", "expired"])
def test_a_message_that_is_searched_for_is_shown_if_it_is_in_the_state(
    superuser: Client, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    ids = one_of_each()
    monkeypatch.setattr(message_list, "LOOK_AT", 0)
    for other, id_ in ids.items():
        assert listed(superuser, q=str(id_), state=state) == ([id_] if other == state else [])


@pytest.mark.parametrize("text", ["9" * 19, "9" * 40, "\u0663", "%", "a\0b", HOSTILE, "x" * 2000])
def test_a_search_for_anything_is_answered(superuser: Client, text: str) -> None:
    publish()
    assert superuser.get(LIST, {"q": text}).status_code == 200


# One message


def test_the_page_of_a_message_shows_all_of_it(superuser: Client) -> None:
    customer = Customer.objects.create(name="Ada", email="ada@example.org")
    id_ = publish({"total": 12}, headers={"tenant": "north"}, ref=customer, max_attempts=5)
    change(id_, "attempts_count = 2, last_error = 'Traceback: no money'")
    lease(id_, worker="worker-3")
    seen("worker-3", seconds_ago=5)
    text = superuser.get(url("change", id_)).content.decode()
    assert "{\n  &quot;total&quot;: 12\n}" in text
    assert '<th scope="row">tenant</th><td>north</td>' in text
    assert '<pre class="outbox-pre" tabindex="0">Traceback: no money</pre>' in text
    assert "2 / 1, 5 attempts at most" in text
    assert re.search(r"worker-3, until <time.*\(in 59 s\).*>alive</span> seen 5 s ago", text)
    customer_url = reverse("admin:shop_customer_change", args=[customer.pk])
    assert f'<a href="{customer_url}">shop.customer:{customer.pk}</a>' in text


def test_the_object_is_no_link_for_those_who_may_not_see_it(login: Login) -> None:
    customer = Customer.objects.create(name="Ada", email="ada@example.org")
    id_ = publish(ref=customer)
    text = login(VIEW).get(url("change", id_)).content.decode()
    assert f"shop.customer:{customer.pk}" in text
    assert reverse("admin:shop_customer_change", args=[customer.pk]) not in text


@pytest.mark.parametrize(
    ("seconds_ago", "word"), [(5, "alive"), (61, "lost"), (None, "unknown worker")]
)
def test_the_page_tells_whether_the_worker_that_holds_a_message_lives(
    superuser: Client, seconds_ago: float | None, word: str
) -> None:
    id_ = publish()
    lease(id_)
    if seconds_ago is not None:
        seen(seconds_ago=seconds_ago)
    assert f">{word}</span>" in superuser.get(url("change", id_)).content.decode()


def test_bytes_are_shown_as_a_hex_dump(superuser: Client) -> None:
    id_ = publish(b"\x00\xffabc")
    assert "00000000  00 ff 61 62 63" in superuser.get(url("change", id_)).content.decode()


def test_a_large_payload_is_cut_and_can_be_downloaded(superuser: Client) -> None:
    id_ = publish("x" * 150_000)
    text = superuser.get(url("change", id_)).content.decode()
    assert "the first 100,000 of 150,002 bytes" in text
    assert len(text) < 150_000
    assert url("payload", id_) in text


def test_a_payload_is_always_downloaded_as_bytes(superuser: Client) -> None:
    id_ = publish(b"<script>alert(1)</script>", headers={"content-type": "text/html"})
    response = superuser.get(url("payload", id_))
    assert response.content == b"<script>alert(1)</script>"
    assert response["Content-Type"] == "application/octet-stream"
    assert response["Content-Disposition"] == f'attachment; filename="message-{id_}.bin"'
    assert response["X-Content-Type-Options"] == "nosniff"


def test_the_page_of_a_message_is_a_bounded_number_of_queries(
    superuser: Client, django_assert_max_num_queries: Any
) -> None:
    id_ = publish()
    lease(id_)
    superuser.get(url("change", id_))
    superuser.post(url("run_now", id_))
    with django_assert_max_num_queries(8):
        superuser.get(url("change", id_))


def test_headers_that_are_none_and_a_payload_that_lies_are_shown(superuser: Client) -> None:
    id_ = publish({"a": 1})
    change(id_, "headers = %s::jsonb, payload = %s", json.dumps(["odd", HOSTILE]), b"\xff{")
    text = superuser.get(url("change", id_)).content.decode()
    assert "ff 7b" in text
    assert "odd" in text


@pytest.mark.parametrize(
    ("headers", "shown"),
    [('{"a": 1e5000}', "00000000"), ("[" * 3000 + "]" * 3000, "[[[[[[")],
)
def test_headers_that_python_cannot_load_are_shown_as_they_are(
    superuser: Client, headers: str, shown: str
) -> None:
    id_ = publish({"a": 1})
    change(id_, "headers = %s::jsonb", headers)
    assert shown in superuser.get(url("change", id_)).content.decode()
    assert superuser.get(url("payload", id_)).content == b'{"a":1}'
    assert listed(superuser) == [id_]
    assert told(superuser.post(url("cancel", id_), follow=True)) == ["1 message cancelled."]


# The history


def history_of(client: Client, id_: int) -> list[str]:
    page = client.get(url("change", id_)).content.decode()
    [events] = re.findall(r'<ol class="outbox-history">(.*?)</ol>', page, re.DOTALL)
    return [event.rpartition("</span> ")[2] for event in re.findall(r"<li>(.*?)</li>", events)]


def test_the_history_tells_what_operators_did_by_itself_and_to_a_selection(
    superuser: Client,
) -> None:
    id_, other = publish(activate_in=HOUR), publish(activate_in=HOUR)
    superuser.post(url("run_now", id_))
    act(superuser, "run_selected", [id_, other])
    superuser.post(url("run_now", other))
    mine = [event for event in history_of(superuser, id_) if "user0" in event]
    assert mine == [
        f"user0: 1 message made due now (#{id_}).",
        f"user0: 1 message made due now (#{other}). Skipped: 1 due already (#{id_}).",
    ]


def test_the_history_tells_that_the_message_was_replayed_from_a_dead_letter(
    superuser: Client, make_letter: Any
) -> None:
    letter = make_letter(queue="orders")
    other = make_letter(queue="orders")
    for one in (letter, other):
        superuser.post(reverse("admin:django_outbox_deadletter_replay", args=[one.pk]))
    message = OutboxMessage.objects.get(message_id=letter.message_id)
    told_of = [event for event in history_of(superuser, message.pk) if "user0" in event]
    assert told_of == [f"user0: Replayed message {letter.message_id}."]


def test_the_history_looks_at_the_newest_entries_of_the_log_only(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, other = publish(activate_in=HOUR), publish(activate_in=HOUR)
    superuser.post(url("run_now", id_))
    superuser.post(url("run_now", other))
    monkeypatch.setattr(operators, "LOOK_AT", 1)
    assert not [event for event in history_of(superuser, id_) if "user0" in event]
    assert [event for event in history_of(superuser, other) if "user0" in event]


@pytest.mark.parametrize("page_of", ["list", "change", "cancel", "release", "history"])
def test_no_text_of_a_message_is_markup(superuser: Client, page_of: str) -> None:
    id_ = publish({HOSTILE: HOSTILE}, queue=HOSTILE, headers={HOSTILE: HOSTILE}, timer_id=HOSTILE)
    lease(id_, worker=HOSTILE)
    seen(HOSTILE)
    change(id_, "last_error = %s, ref = %s, correlation_id = %s", HOSTILE, HOSTILE, HOSTILE)
    superuser.post(url("run_now", id_))
    response = superuser.get(LIST if page_of == "list" else url(page_of, id_), follow=True)
    text = response.content.decode()
    assert response.status_code == 200
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text or page_of == "history"


@pytest.mark.parametrize("name", ["add", "delete"])
def test_messages_are_neither_added_nor_deleted_as_rows_not_even_by_a_superuser(
    superuser: Client, name: str
) -> None:
    id_ = publish()
    args = [] if name == "add" else [id_]
    where = reverse(f"admin:django_outbox_outboxmessage_{name}", args=args)
    assert superuser.post(where, {"post": "yes"}).status_code == 403
    act(superuser, "delete_selected", [id_], post="yes")
    assert OutboxMessage.objects.filter(pk=id_).exists()


def test_messages_are_not_edited_not_even_by_a_superuser(superuser: Client) -> None:
    id_ = publish()
    assert superuser.post(url("change", id_), {"queue": "other"}).status_code == 403
    assert OutboxMessage.objects.get(pk=id_).queue == "orders"


# What can be done, and by whom


@pytest.mark.parametrize(("tool", "permission"), TOOLS.items())
def test_a_tool_is_neither_seen_nor_used_without_its_permission(
    login: Login, tool: str, permission: str
) -> None:
    id_ = publish(activate_in=HOUR)
    client = login(VIEW, *(set(TOOLS.values()) - {permission}))
    assert url(tool, id_) not in client.get(url("change", id_)).content.decode()
    assert client.post(url(tool, id_)).status_code == 403
    assert client.get(url(tool, id_)).status_code == 403
    action = "run_selected" if tool == "run_now" else f"{tool}_selected"
    assert f'value="{action}"' not in client.get(LIST).content.decode()
    act(client, action, [id_], answer="yes")
    [message] = OutboxMessage.objects.all()
    assert message.next_attempt_at > message.created_at + HOUR / 2
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(("tool", "permission"), TOOLS.items())
def test_a_tool_is_not_used_by_those_who_may_not_view(
    login: Login, tool: str, permission: str
) -> None:
    id_ = publish(activate_in=HOUR)
    assert login(permission).post(url(tool, id_)).status_code == 403


@pytest.mark.parametrize("name", ["changelist", "change", "payload"])
def test_nothing_is_shown_to_those_who_may_not_view(login: Login, name: str) -> None:
    id_ = publish()
    where = LIST if name == "changelist" else url(name, id_)
    assert login(*TOOLS.values()).get(where).status_code == 403


def test_a_tool_that_could_do_nothing_is_not_offered(superuser: Client) -> None:
    ids = one_of_each()
    out = publish()
    lease(out, seconds=-1)
    offered = {
        state: [tool for tool in TOOLS if url(tool, id_) in page]
        for state, id_ in {**ids, "run out": out}.items()
        if (page := superuser.get(url("change", id_)).content.decode())
    }
    assert offered == {
        "ready": ["cancel"],
        "leased": ["release"],
        "scheduled": ["run_now", "cancel"],
        "retrying": ["run_now", "cancel"],
        "expired": ["cancel"],
        "run out": ["release"],
    }


@pytest.mark.parametrize("tool", ["run_now", "cancel", "release"])
def test_without_its_line_in_the_log_nothing_is_done(
    superuser: Client, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = publish(activate_in=HOUR)
    token = lease(id_, seconds=-1) if tool == "release" else None
    before = OutboxMessage.objects.values().get()

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise DatabaseError("the log is full")

    monkeypatch.setattr(OutboxMessageAdmin, "log", refuse)
    with pytest.raises(DatabaseError, match="the log is full"):
        superuser.post(url(tool, id_), {f"token-{id_}": token or ""})
    assert OutboxMessage.objects.values().get() == before


# Run now


def test_a_message_is_run_now(login: Login) -> None:
    id_ = publish(activate_in=HOUR, queue="later")
    client = login(VIEW, "run_outboxmessage")
    assert client.get(url("run_now", id_)).status_code == 405
    response = client.post(url("run_now", id_), follow=True)
    assert told(response) == ["1 message made due now."]
    assert listed(client, state="ready") == [id_]
    [entry] = LogEntry.objects.all()
    assert entry.change_message == f"1 message made due now (#{id_})."
    assert (entry.object_id, entry.object_repr) == (str(id_), f"later #{id_}")
    assert entry.user.username == "user0"


def test_running_a_selection_tells_how_many_were_skipped_and_why(superuser: Client) -> None:
    later, due, leased, out = (
        publish(activate_in=HOUR),
        publish(),
        publish(),
        publish(activate_in=HOUR),
    )
    lease(leased)
    lease(out, seconds=-1)
    gone = out + 1000
    response = act(superuser, "run_selected", [later, due, leased, out, gone], answer="yes")
    [outcome] = told(response)
    assert outcome == (
        "1 message made due now. Skipped: 1 no longer there, 1 leased by a worker, "
        "1 with a lease that has run out, to be released first, 1 due already."
    )
    [entry] = LogEntry.objects.all()
    assert entry.change_message == (
        f"1 message made due now (#{later}). Skipped: 1 no longer there (#{gone}), "
        f"1 leased by a worker (#{leased}), "
        f"1 with a lease that has run out, to be released first (#{out}), 1 due already (#{due})."
    )


def test_a_message_that_is_gone_is_told_of(superuser: Client) -> None:
    response = superuser.post(url("run_now", 12345), follow=True)
    assert told(response) == ["There is no message 12345 any more."]


def test_all_messages_cannot_be_selected_and_what_is_posted_for_all_reaches_what_is_ticked(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OutboxMessageAdmin, "list_per_page", 1)
    ids = [publish(activate_in=HOUR) for _ in range(2)]
    text = superuser.get(LIST).content.decode()
    assert "0 of 1 selected" in text
    assert "Select all 2 messages" not in text
    act(superuser, "cancel_selected", [ids[0]], select_across="1", answer="yes")
    assert listed(superuser) == [ids[1]]


# Cancel


def test_cancelling_asks_first_and_then_deletes(login: Login) -> None:
    id_ = publish(queue="mails")
    client = login(VIEW, "cancel_outboxmessage")
    asked = client.get(url("cancel", id_)).content.decode()
    assert "A cancelled message is deleted and never delivered." in asked
    assert OutboxMessage.objects.filter(pk=id_).exists()
    response = client.post(url("cancel", id_), follow=True)
    assert told(response) == ["1 message cancelled."]
    assert not OutboxMessage.objects.exists()
    assert not DeadLetter.objects.exists()
    [entry] = LogEntry.objects.all()
    assert entry.change_message == f"1 message cancelled (#{id_})."
    assert entry.object_repr == f"mails #{id_}"


def test_cancelling_a_selection_asks_first(superuser: Client) -> None:
    ids = [publish(), publish()]
    asked = act(superuser, "cancel_selected", ids)
    assert OutboxMessage.objects.count() == 2
    text = asked.content.decode()
    for id_ in ids:
        assert f'<input type="hidden" name="_selected_action" value="{id_}">' in text
    assert '<input type="hidden" name="action" value="cancel_selected">' in text
    response = act(superuser, "cancel_selected", ids, answer="yes")
    assert told(response) == ["2 messages cancelled."]
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        (60, "leased by a worker"),
        (-60, "with a lease that has run out, to be released first"),
    ],
)
def test_a_leased_message_is_never_cancelled_not_even_when_its_lease_has_run_out(
    superuser: Client, seconds: float, why: str
) -> None:
    id_ = publish()
    lease(id_, seconds=seconds)
    response = superuser.post(url("cancel", id_), follow=True)
    assert told(response) == [f"0 messages cancelled. Skipped: 1 {why}."]
    assert OutboxMessage.objects.filter(pk=id_).exists()


def test_ids_that_are_none_are_nobodys(superuser: Client) -> None:
    publish()
    response = act(superuser, "cancel_selected", [10**30], answer="yes")
    assert told(response) == ["0 messages cancelled."]
    assert OutboxMessage.objects.count() == 1


# Release


def test_a_lease_that_has_run_out_is_released_and_its_delivery_stays_counted(
    login: Login,
) -> None:
    id_ = publish()
    token = lease(id_, seconds=-1)
    seen()
    client = login(VIEW, "release_outboxmessage")
    asked = client.get(url("release", id_)).content.decode()
    assert f'<input type="hidden" name="token-{id_}" value="{token}">' in asked
    response = client.post(url("release", id_), {f"token-{id_}": token}, follow=True)
    assert told(response) == ["1 message released."]
    message = OutboxMessage.objects.get()
    assert (message.lease_token, message.lease_expires_at, message.leased_by) == (None, None, None)
    assert (message.deliveries_count, message.attempts_count) == (1, 0)
    assert LogEntry.objects.get().change_message == f"1 message released (#{id_})."


@pytest.mark.parametrize(
    ("seconds_ago", "outcome"),
    [
        (None, "1 message released."),
        (61, "1 message released."),
        (50, "0 messages released. Skipped: 1 held by a worker that lives."),
    ],
)
def test_a_lease_that_stands_is_released_only_if_its_worker_is_lost(
    superuser: Client, seconds_ago: float | None, outcome: str
) -> None:
    id_ = publish()
    token = lease(id_)
    seen("another-worker")
    if seconds_ago is not None:
        seen(seconds_ago=seconds_ago)
    response = superuser.post(url("release", id_), {f"token-{id_}": token}, follow=True)
    assert told(response) == [outcome]


def test_a_newer_lease_than_the_one_shown_is_not_released(superuser: Client) -> None:
    id_ = publish()
    shown = lease(id_, seconds=-1)
    newer = lease(id_, seconds=-1)
    for given in (shown, "", "odd"):
        response = superuser.post(url("release", id_), {f"token-{id_}": given}, follow=True)
        assert told(response) == ["0 messages released. Skipped: 1 leased anew since."]
    assert OutboxMessage.objects.get().lease_token == newer


def test_the_question_tells_whether_the_worker_lives_that_holds_the_message(
    superuser: Client,
) -> None:
    id_ = publish(timer_id="cart-7")
    lease(id_)
    seen(seconds_ago=61)
    asked = superuser.get(url("release", id_)).content.decode()
    assert ">lost<" in asked
    assert "cart-7" in asked


def test_releasing_a_selection_asks_with_the_tokens_that_it_shows(superuser: Client) -> None:
    out, free = publish(), publish()
    token = lease(out, seconds=-1)
    asked = act(superuser, "release_selected", [out, free]).content.decode()
    assert f'<input type="hidden" name="token-{out}" value="{token}">' in asked
    fields = {"answer": "yes", f"token-{out}": token}
    response = act(superuser, "release_selected", [out, free], **fields)
    assert told(response) == ["1 message released. Skipped: 1 without a lease."]


# Other sessions at the same time


@support.committed
class TestBesideOthers:
    @pytest.mark.parametrize(
        "assignments", ["lease_token = gen_random_uuid()", "attempts_count = 1"]
    )
    def test_what_another_transaction_has_locked_is_left_to_it(self, assignments: str) -> None:
        id_ = publish(activate_in=HOUR)
        with support.session() as other, other.transaction():
            other.execute("SELECT FROM django_outbox_message WHERE id = %s FOR UPDATE", [id_])
            with connection.cursor() as cursor:
                assert operating.cancel(cursor, [id_]) == {id_: "busy"}
                assert operating.run_now(cursor, [id_], notify=True) == {id_: "busy"}
        assert OutboxMessage.objects.get().pk == id_

    def test_an_abandoned_message_that_another_transaction_has_locked_is_no_workers(self) -> None:
        id_ = publish()
        token = lease(id_, seconds=-3600)
        with support.session() as other, other.transaction():
            other.execute("SELECT FROM django_outbox_message WHERE id = %s FOR UPDATE", [id_])
            with connection.cursor() as cursor:
                outcome = operating.release_abandoned(
                    cursor, {id_: token}, lost_after=60, notify=False
                )
        assert outcome == {id_: "busy"}

    def test_a_cancel_meets_no_lease_that_began_after_the_page_was_shown(self) -> None:
        id_ = publish()
        support.steal(id_)
        with connection.cursor() as cursor:
            assert operating.cancel(cursor, [id_]) == {id_: "leased"}
        assert OutboxMessage.objects.get().leased_by == "thief"


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_of_what_is_run_now_or_released_and_due(superuser: Client) -> None:
    later = publish(queue="later", activate_in=HOUR)
    due, not_due = publish(queue="due"), publish(queue="not-due", activate_in=HOUR)
    tokens = {id_: lease(id_, seconds=-1) for id_ in (due, not_due)}
    with support.session() as worker:
        worker.execute("LISTEN django_outbox")
        superuser.post(url("release", not_due), {f"token-{not_due}": tokens[not_due]})
        superuser.post(url("release", due), {f"token-{due}": tokens[due]})
        superuser.post(url("run_now", later))
        superuser.post(url("run_now", later))
        with connection.cursor() as cursor:
            cursor.execute("NOTIFY django_outbox, 'the end'")
        heard = [notice.payload for notice in worker.notifies(timeout=10, stop_after=3)]
    assert heard == ["due", "later", "the end"]
    assert not OutboxMessage.objects.filter(lease_token__isnull=False).exists()


@pytest.mark.django_db(transaction=True)
def test_nobody_is_notified_where_that_is_turned_off(superuser: Client, settings: Any) -> None:
    settings.OUTBOX = {"NOTIFY": False}
    later = publish(queue="later", activate_in=HOUR)
    with support.session() as worker:
        worker.execute("LISTEN django_outbox")
        superuser.post(url("run_now", later))
        with connection.cursor() as cursor:
            cursor.execute("NOTIFY django_outbox, 'the end'")
        heard = [notice.payload for notice in worker.notifies(timeout=10, stop_after=1)]
    assert heard == ["the end"]


@pytest.mark.parametrize("action", ["run_selected", "cancel_selected", "release_selected"])
@pytest.mark.parametrize("given", ["abc", "1.5", "\x00"])
def test_a_selection_of_what_is_no_id_is_refused(
    superuser: Client, action: str, given: str
) -> None:
    form = {"action": action, "_selected_action": given}

    assert superuser.post("/admin/django_outbox/outboxmessage/", form).status_code == 400
