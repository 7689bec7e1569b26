"""The list of dead letters, one of them, and what is failing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from django_outbox import outbox
from django_outbox.admin import dead_letters, operators
from django_outbox.models import DeadLetter
from django_outbox.store import dead_letters as store

from .conftest import Login

pytestmark = pytest.mark.django_db

LIST = reverse("admin:django_outbox_deadletter_changelist")
FAILING = reverse("admin:django_outbox_deadletter_failing")
HOSTILE = "<script>alert(1)</script>\"><img src=x onerror='alert(2)'>"

MakeLetter = Callable[..., DeadLetter]


def change_url(letter: DeadLetter) -> str:
    return reverse("admin:django_outbox_deadletter_change", args=[letter.pk])


def text_of(client: Client, url: str, **params: Any) -> str:
    response = client.get(url, params)
    assert response.status_code == 200
    return response.content.decode()


def shown(client: Client, **params: Any) -> list[int]:
    """Return the ids of the letters that the list shows, from the top."""
    response = client.get(LIST, params)
    assert response.status_code == 200
    return [letter.pk for letter in response.context["cl"].result_list]


# The list


def test_the_list_shows_the_newest_first(superuser: Client, make_letter: MakeLetter) -> None:
    now = timezone.now()
    old = make_letter(failed_at=now - timedelta(days=3))
    first, second = make_letter(failed_at=now), make_letter(failed_at=now)

    assert shown(superuser) == [second.pk, first.pk, old.pk]


def test_a_row_tells_what_failed_why_how_often_and_when(
    superuser: Client, make_letter: MakeLetter
) -> None:
    make_letter(
        queue="refunds",
        failure_reason="rejected",
        last_exception="shop.NoStock: none left\n\nTraceback of it",
        attempts_count=7,
        failed_at=timezone.now() - timedelta(hours=3),
    )
    page = text_of(superuser, LIST)

    for text in (
        "refunds",
        "rejected by its handler",
        "shop.NoStock: none left",
        ">7<",
        "(3 h ago)",
    ):
        assert text in page
    assert "Traceback of it" not in page


def test_a_letter_without_an_error_shows_none(superuser: Client, make_letter: MakeLetter) -> None:
    make_letter(failure_reason="expired", exception_class=None, last_exception=None)

    assert '<td class="field-error">-</td>' in text_of(superuser, LIST)


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"queue": "refunds"}, ["refund"]),
        ({"reason": "rejected"}, ["refund"]),
        ({"exception": "shop.NoStock"}, ["refund"]),
        ({"exception": ""}, ["expired"]),
        ({"fingerprint": "f1"}, ["refund"]),
        ({"failed": "hour"}, ["fresh"]),
        ({"failed": "day"}, ["fresh", "expired"]),
        ({"failed": "week"}, ["fresh", "expired", "refund"]),
        ({"failed": "older"}, ["old"]),
        ({"queue": "orders", "failed": "day"}, ["fresh", "expired"]),
        ({"queue": "nowhere"}, []),
    ],
)
def test_filters(
    superuser: Client, make_letter: MakeLetter, params: dict[str, str], found: list[str]
) -> None:
    now = timezone.now()
    letters = {
        "fresh": make_letter(failed_at=now),
        "expired": make_letter(
            failed_at=now - timedelta(hours=5), failure_reason="expired", exception_class=None
        ),
        "refund": make_letter(
            failed_at=now - timedelta(days=2),
            queue="refunds",
            failure_reason="rejected",
            exception_class="shop.NoStock",
            fingerprint="f1",
        ),
        "old": make_letter(failed_at=now - timedelta(days=8)),
    }
    assert shown(superuser, **params) == [letters[name].pk for name in found]


@pytest.mark.parametrize(
    "params",
    [{"reason": "bad luck"}, {"failed": "tomorrow"}, {"queue": "\0"}, {"q": "\0"}],
)
def test_a_value_that_cannot_be_never_shows_all_letters_as_if_they_matched(
    superuser: Client, make_letter: MakeLetter, params: dict[str, str]
) -> None:
    make_letter()
    response = superuser.get(LIST, params)

    assert response.status_code == 302
    assert response["Location"] == f"{LIST}?e=1"


@pytest.mark.parametrize("lookup", ["payload__contains", "last_exception__icontains", "queue__gt"])
def test_lookups_that_no_index_answers_are_refused(superuser: Client, lookup: str) -> None:
    assert superuser.get(LIST, {lookup: "x"}).status_code == 400


def test_the_choices_are_the_queues_and_exceptions_there_are(
    superuser: Client, make_letter: MakeLetter
) -> None:
    for queue in ("b", "a", "b"):
        make_letter(queue=queue, exception_class=f"shop.{queue}")
    queue, _, exception, _ = superuser.get(LIST).context["cl"].filter_specs

    assert queue.lookup_choices == [("a", "a"), ("b", "b")]
    assert exception.lookup_choices == [("shop.a", "shop.a"), ("shop.b", "shop.b"), ("", "(none)")]


def test_fifty_queues_are_offered_and_the_one_in_use(
    superuser: Client, make_letter: MakeLetter
) -> None:
    for number in range(60):
        make_letter(queue=f"queue-{number:02}")
    queue = superuser.get(LIST, {"queue": "queue-59"}).context["cl"].filter_specs[0]

    assert [value for value, _ in queue.lookup_choices] == [
        *(f"queue-{number:02}" for number in range(50)),
        "queue-59",
    ]


@pytest.mark.parametrize(
    "term",
    [
        "00000000-0000-0000-0000-000000000007",
        "00000000000000000000000000000007",
        "checkout-9",
        "cart-3",
        "refunds",
        " refunds ",
    ],
)
def test_search_finds_an_exact_id_or_queue(
    superuser: Client, make_letter: MakeLetter, term: str
) -> None:
    make_letter()
    wanted = make_letter(
        message_id=UUID(int=7), correlation_id="checkout-9", timer_id="cart-3", queue="refunds"
    )
    assert shown(superuser, q=term) == [wanted.pk]


@pytest.mark.parametrize("id_", [7, 2**63 - 1])
def test_search_finds_the_id_of_a_letter(
    superuser: Client, make_letter: MakeLetter, id_: int
) -> None:
    make_letter()
    wanted = make_letter(pk=id_)

    assert shown(superuser, q=str(wanted.pk)) == [wanted.pk]


@pytest.mark.parametrize("term", ["refund", "9" * 5000, "٣", "%", "cart"])
def test_search_finds_nothing_by_parts(
    superuser: Client, make_letter: MakeLetter, term: str
) -> None:
    make_letter(timer_id="cart-3", queue="refunds")

    assert shown(superuser, q=term) == []


def test_a_list_reads_no_payload_and_runs_few_queries(
    superuser: Client, make_letters: Callable[..., None]
) -> None:
    make_letters(120)
    superuser.get(LIST)  # content types are cached
    with CaptureQueriesContext(connection) as queries:
        superuser.get(LIST)

    # Session, user, queues, exceptions, a limit of time in a transaction, count, letters.
    assert len(queries) == 10
    assert not [query["sql"] for query in queries if '"payload"' in query["sql"]]
    assert not [query["sql"] for query in queries if '"headers"' in query["sql"]]


@pytest.mark.parametrize(
    "params",
    [
        {"queue": "orders", "exception": "shop.NoStock"},
        {"reason": "rejected", "exception": "shop.Timeout"},
        {"queue": "orders", "reason": "rejected"},
    ],
)
def test_filters_that_no_letter_passes_together_read_no_table(
    superuser: Client, make_letters: Callable[..., None], params: dict[str, str]
) -> None:
    make_letters(3_000, queue="orders", exception_class="shop.Timeout")
    make_letters(3_000, queue="refunds", exception_class="shop.NoStock", failure_reason="rejected")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_outbox_dead_letter")
    with CaptureQueriesContext(connection) as queries:
        assert shown(superuser, **params) == []
    (page,) = (query["sql"] for query in queries if '"head"' in query["sql"])
    with connection.cursor() as cursor:
        store.read_by_index(cursor, seconds=10)
        cursor.execute(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {page} LIMIT 50")
        plan = "\n".join(line for (line,) in cursor.fetchall())

    assert "Rows Removed by Filter: 6000" not in plan
    assert "django_outbox_dead_time" not in plan
    assert "Seq Scan" not in plan


def test_a_list_that_takes_too_long_is_empty_and_says_so(
    superuser: Client, make_letter: MakeLetter, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = make_letter()
    monkeypatch.setattr(dead_letters, "MOST_SECONDS", 0.2)

    def take_long(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if "left(" in sql.lower() and "last_exception" in sql:
            execute("SELECT pg_sleep(10)", None, *args[1:])
        return execute(sql, *args)

    with connection.execute_wrapper(take_long):
        page = text_of(superuser, LIST, queue="orders")

    assert "The database takes too long to find these letters, so none are shown." in page
    assert "0 dead letters" in page
    assert shown(superuser) == [letter.pk]


def test_the_limit_of_a_list_is_not_that_of_what_follows(
    superuser: Client, make_letter: MakeLetter
) -> None:
    make_letter()
    superuser.get(LIST)
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")

        assert cursor.fetchone() == ("0",)


def test_a_list_of_many_is_counted_to_ten_thousand(
    superuser: Client, make_letters: Callable[..., None]
) -> None:
    make_letters(10_002)

    assert "10,000+" in text_of(superuser, LIST)


@pytest.mark.parametrize("params", [{}, {"queue": HOSTILE}, {"exception": HOSTILE}, {"q": HOSTILE}])
def test_hostile_text_is_text_in_the_list(
    superuser: Client, hostile_letter: DeadLetter, params: dict[str, str]
) -> None:
    page = text_of(superuser, LIST, **params)

    assert escape(HOSTILE) in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page


@pytest.fixture
def hostile_letter(make_letter: MakeLetter) -> DeadLetter:
    return make_letter(
        queue=HOSTILE,
        payload=f'{{"{escape(HOSTILE)}": "</pre>{HOSTILE.replace(chr(34), "")}"}}'.encode(),
        headers={"content-type": "application/json", HOSTILE: HOSTILE},
        correlation_id=HOSTILE,
        timer_id=HOSTILE,
        exception_class=HOSTILE,
        last_exception=f"{HOSTILE}\n\n{HOSTILE}",
        fingerprint="f1",
        ref=f"shop.order:{HOSTILE}",
    )


def test_errors_and_headers_are_cut_too(superuser: Client, make_letter: MakeLetter) -> None:
    letter = make_letter(last_exception="e" * 100_007, headers={"h": "v" * 100_009})
    page = text_of(superuser, change_url(letter))

    assert "e" * 100_000 + "\n… and 7 more characters" in page
    assert "v" * 100_000 + "\n… and 9 more characters" in page


def test_headers_that_are_no_mapping_are_cut_too(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter(headers=["v" * 100_009])

    assert "\n… and 13 more characters<" in text_of(superuser, change_url(letter))


# What Python cannot hold


@pytest.mark.parametrize(
    "column", ["created_at", "first_attempt_at", "last_attempt_at", "failed_at"]
)
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "20000-01-01 00:00Z", "4000-01-01 BC"])
def test_a_moment_that_python_cannot_hold_breaks_no_page_and_no_act(
    superuser: Client, make_letter: MakeLetter, column: str, moment: str
) -> None:
    letter, other = make_letter(), make_letter()
    rewrite(letter, column, moment)
    rewrite(make_letter(message_id=letter.message_id), column, moment)
    in_words = "before all time" if moment in ("-infinity", "4000-01-01 BC") else "never"

    assert sorted(shown(superuser))[:2] == [letter.pk, other.pk]
    assert in_words in text_of(superuser, change_url(letter))
    assert text_of(superuser, FAILING)
    if column == "failed_at":
        assert in_words in text_of(superuser, LIST)
        assert in_words in text_of(superuser, FAILING)
    assert_it_can_be_got_rid_of(superuser, letter)


@pytest.mark.parametrize("headers", ['{"a": 1e5000}', "[" * 3000 + "]" * 3000, '{"a": [1e400]}'])
def test_headers_that_python_cannot_load_break_no_page_and_no_act(
    superuser: Client, make_letter: MakeLetter, headers: str
) -> None:
    letter = make_letter()
    rewrite(letter, "headers", headers)

    assert shown(superuser) == [letter.pk]
    page = text_of(superuser, change_url(letter))
    assert ("[[[[[" if headers.startswith("[") else "000000") in page
    assert_it_can_be_got_rid_of(superuser, letter)


def rewrite(letter: DeadLetter, column: str, value: str) -> None:
    """Write what no model could."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE django_outbox_dead_letter SET {column} = %s WHERE id = %s",
            [value, letter.pk],
        )


def assert_it_can_be_got_rid_of(client: Client, letter: DeadLetter) -> None:
    """Look at its other pages, and replay it as it is."""
    url = f"/admin/django_outbox/deadletter/{letter.pk}"
    for page in ("payload", "history", "edit", "discard"):
        assert client.get(f"{url}/{page}/").status_code == 200
    assert client.post(f"{url}/replay/").status_code == 302
    assert not DeadLetter.objects.filter(pk=letter.pk).exists()


# Permissions


@pytest.mark.parametrize("which", ["list", "failing", "letter", "payload"])
def test_pages_need_the_permission_to_view(
    login: Login, make_letter: MakeLetter, which: str
) -> None:
    letter = make_letter()
    url = {
        "list": LIST,
        "failing": FAILING,
        "letter": change_url(letter),
        "payload": reverse("admin:django_outbox_deadletter_payload", args=[letter.pk]),
    }[which]

    assert login("view_outboxmessage", "replay_deadletter").get(url).status_code == 403
    assert login("view_deadletter").get(url).status_code == 200


@pytest.mark.parametrize("act", ["add", "delete", "change"])
def test_django_neither_adds_changes_nor_deletes_letters_whoever_asks(
    superuser: Client, make_letter: MakeLetter, act: str
) -> None:
    letter = make_letter()
    url = reverse(f"admin:django_outbox_deadletter_{act}", args=[] if act == "add" else [letter.pk])
    assert superuser.post(url, {"post": "yes", "queue": "mine"}).status_code == 403
    assert DeadLetter.objects.get().queue == "orders"


def test_djangos_own_delete_is_no_action(superuser: Client, make_letter: MakeLetter) -> None:
    letter = make_letter()
    superuser.post(
        LIST, {"action": "delete_selected", "_selected_action": letter.pk, "post": "yes"}
    )
    assert DeadLetter.objects.get() == letter
    assert "delete_selected" not in text_of(superuser, LIST)


# One letter


def test_a_letter_shows_its_payload_headers_and_traceback(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter(
        payload=b'{"order_id":7,"who":"J\xc3\xb6rg"}',
        headers={"content-type": "application/json", "tenant": "acme"},
        last_exception="ValueError: no stock\n\nTraceback (most recent call last):\n  line 1",
    )
    page = text_of(superuser, change_url(letter))

    assert escape('{\n  "order_id": 7,\n  "who": "Jörg"\n}') in page
    assert "tenant" in page
    assert "acme" in page
    assert "ValueError: no stock\n\nTraceback (most recent call last):\n  line 1" in page


def test_a_letter_shows_its_own_id_and_in_words_why_it_was_buried(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter(original_id=4242, failed_at=timezone.now() - timedelta(hours=3))
    page = text_of(superuser, change_url(letter))

    assert f'<div class="readonly">{letter.pk}</div>' in page
    assert "orders #4242 (retries exhausted)" in page
    assert page.count("(3 h ago)") == 2  # above, and in the history
    assert "retry_terminal" not in page


def test_a_row_leads_to_its_letter_by_its_id(superuser: Client, make_letter: MakeLetter) -> None:
    letter = make_letter()

    assert f'<a href="{change_url(letter)}">{letter.pk}</a>' in text_of(superuser, LIST)


def test_bytes_show_as_a_hex_dump(superuser: Client, make_letter: MakeLetter) -> None:
    letter = make_letter(payload=b"\x00\xffhi", headers={"content-type": "image/gif"})

    assert "00000000  00 ff 68 69" in text_of(superuser, change_url(letter))


def test_a_lone_surrogate_in_json_shows_as_its_escape(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter(payload=b'{"broken": "\\ud800"}')

    assert "\\ud800" in text_of(superuser, change_url(letter))


def test_headers_that_are_no_mapping_still_show(superuser: Client, make_letter: MakeLetter) -> None:
    letter = make_letter(headers=["by", "hand"])

    assert escape('["by", "hand"]') in text_of(superuser, change_url(letter))


def test_a_large_payload_is_cut_and_can_be_downloaded(
    superuser: Client, make_letter: MakeLetter
) -> None:
    body = b"x" * 150_000
    letter = make_letter(payload=body, headers={"content-type": "text/html"})
    url = reverse("admin:django_outbox_deadletter_payload", args=[letter.pk])
    page = text_of(superuser, change_url(letter))
    sent = superuser.get(url)

    assert "x" * 100_000 in page
    assert "x" * 100_001 not in page
    assert "the first 100,000 of 150,000 bytes" in page
    assert f'href="{url}"' in page
    assert sent.content == body
    assert sent["Content-Type"] == "application/octet-stream"
    assert sent["Content-Disposition"] == f'attachment; filename="dead-letter-{letter.pk}.bin"'
    assert sent["X-Content-Type-Options"] == "nosniff"


def test_a_letter_tells_the_history_of_its_message(
    superuser: Client, make_letter: MakeLetter
) -> None:
    now = timezone.now()
    message_id = uuid4()
    earlier = make_letter(message_id=message_id, original_id=3, failed_at=now - timedelta(days=1))
    letter = make_letter(
        message_id=message_id,
        created_at=now - timedelta(days=2),
        first_attempt_at=now - timedelta(hours=2),
        last_attempt_at=now - timedelta(hours=1),
        failed_at=now - timedelta(hours=1),
        attempts_count=2,
        deliveries_count=1,
    )
    page = text_of(superuser, change_url(letter))
    told = [
        "published",
        f'buried as <a href="{change_url(earlier)}">orders #3 (retries exhausted)</a>',
        "first failed attempt",
        "last failed attempt, number 2",
        "buried as this letter: retries exhausted, after 2 attempts and 1 delivery",
    ]

    places = [page.index(text, page.index("outbox-history")) for text in told]
    assert places == sorted(places)


def test_a_letter_tells_what_operators_did_with_its_message_before(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter()
    superuser.post(f"/admin/django_outbox/deadletter/{letter.pk}/replay/")
    again = make_letter(message_id=letter.message_id)

    assert f"user0: Replayed message {letter.message_id}." in text_of(superuser, change_url(again))


def test_the_newest_of_the_log_are_looked_at_only(
    superuser: Client, make_letter: MakeLetter, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter, other = make_letter(), make_letter()
    superuser.post(f"/admin/django_outbox/deadletter/{letter.pk}/replay/")
    again = make_letter(message_id=letter.message_id)
    superuser.post(f"/admin/django_outbox/deadletter/{other.pk}/replay/")
    monkeypatch.setattr(operators, "LOOK_AT", 1)

    assert "user0: Replayed message" not in text_of(superuser, change_url(again))


def test_a_live_timer_that_keeps_a_letter_from_being_replayed_is_named(
    superuser: Client, make_letter: MakeLetter
) -> None:
    letter = make_letter(timer_id="t")
    assert "has its timer_id" not in text_of(superuser, change_url(letter))

    live = outbox.publish({}, queue="orders", timer_id="t", activate_in=60)
    page = text_of(superuser, change_url(letter))
    assert "It cannot be replayed for now" in page
    assert f"live message {live}" in page


def test_hostile_text_is_text_on_the_page_of_a_letter(
    superuser: Client, hostile_letter: DeadLetter
) -> None:
    page = text_of(superuser, change_url(hostile_letter))

    assert page.count(escape(HOSTILE)) >= 7
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert page.count("</pre>") == 2


@pytest.mark.parametrize("pk", ["0", "9" * 5000, "x", "-1"])
def test_a_letter_that_is_not_there_leads_back(superuser: Client, pk: str) -> None:
    url = reverse("admin:django_outbox_deadletter_change", args=[pk])

    assert superuser.get(url).status_code == 302


def test_a_letter_takes_few_queries(superuser: Client, make_letters: Callable[..., None]) -> None:
    make_letters(100, message_id=UUID(int=7), timer_id="t")
    url = change_url(DeadLetter.objects.all()[0])
    superuser.get(url)
    with CaptureQueriesContext(connection) as queries:
        superuser.get(url)

    # Session, user, letter, its others, log, live timer; Django's view opens a savepoint.
    assert len(queries) <= 8


# What is failing


def test_letters_are_grouped_by_queue_reason_and_fingerprint(
    superuser: Client, make_letter: MakeLetter
) -> None:
    now = timezone.now()
    for ago, error in [(3, "older"), (1, "newest"), (2, "between")]:
        make_letter(
            fingerprint="f1",
            exception_class="shop.NoStock",
            last_exception=f"{error}\n\nTraceback",
            failed_at=now - timedelta(hours=ago),
        )
    make_letter(fingerprint="f1", queue="refunds", failed_at=now - timedelta(days=1))
    make_letter(fingerprint="f1", failure_reason="rejected", failed_at=now - timedelta(days=2))
    make_letter(fingerprint="f2", failed_at=now - timedelta(days=3))
    rows = superuser.get(FAILING).context["groups"].rows

    assert [(row.queue, row.reason, row.letters) for row in rows] == [
        ("orders", "retries exhausted", "3"),
        ("refunds", "retries exhausted", "1"),
        ("orders", "rejected by its handler", "1"),
        ("orders", "retries exhausted", "1"),
    ]
    assert rows[0].exception_class == "shop.NoStock"
    assert rows[0].error == "newest"
    assert rows[0].first_seen == f"{now - timedelta(hours=3):%Y-%m-%d %H:%M}"
    assert rows[0].last_seen == f"{now - timedelta(hours=1):%Y-%m-%d %H:%M}"


@pytest.mark.parametrize(
    ("error", "shown_of_it"),
    [("shop.NoStock: none left", "none left"), ("shop.NoStock", ""), ("none left", "none left")],
)
def test_a_group_says_the_class_of_its_error_once(
    superuser: Client, make_letter: MakeLetter, error: str, shown_of_it: str
) -> None:
    make_letter(exception_class="shop.NoStock", last_exception=f"{error}\n\nTraceback")
    (row,) = superuser.get(FAILING).context["groups"].rows

    assert (row.exception_class, row.error) == ("shop.NoStock", shown_of_it)


def test_a_group_leads_to_its_letters(superuser: Client, make_letter: MakeLetter) -> None:
    wanted = make_letter(queue="a&b", fingerprint="f1")
    make_letter(queue="a&b", fingerprint="f2")
    page = text_of(superuser, FAILING)
    link = "?queue=a%26b&reason=retry_terminal&fingerprint=f1"

    assert f'href="{LIST}{escape(link)}"' in page
    assert [letter.pk for letter in superuser.get(LIST + link).context["cl"].result_list] == [
        wanted.pk
    ]


def test_a_group_without_a_fingerprint_leads_to_its_letters_too(
    superuser: Client, make_letter: MakeLetter
) -> None:
    wanted = make_letter(fingerprint="")
    make_letter(fingerprint="f1")

    assert shown(superuser, queue="orders", fingerprint="") == [wanted.pk]


def test_the_list_leads_to_the_groups(superuser: Client) -> None:
    assert f'<a href="{FAILING}">What is failing</a>' in text_of(superuser, LIST)


def test_more_groups_than_a_page_holds_are_said_and_shown_on_the_next(
    superuser: Client, make_letter: MakeLetter
) -> None:
    for number in range(103):
        make_letter(queue=f"queue-{number:03}", fingerprint=f"f{number}")
    page = text_of(superuser, FAILING)
    following = superuser.get(FAILING).context["groups"].following
    rest = superuser.get(f"{FAILING}?{following}").context["groups"]

    assert "Only the first 100 groups" in page
    assert {row.queue for row in rest.rows} == {"queue-100", "queue-101", "queue-102"}
    assert rest.following is None


def test_the_groups_take_two_queries_of_their_own_without_payloads(
    superuser: Client, make_letter: MakeLetter
) -> None:
    for number in range(30):
        make_letter(fingerprint=f"f{number}")
    with CaptureQueriesContext(connection) as queries:
        superuser.get(FAILING)

    assert len(queries) == 4  # session, user, causes, groups
    assert not [query["sql"] for query in queries if "payload" in query["sql"]]


def test_one_large_group_is_counted_to_ten_thousand(
    superuser: Client, make_letters: Callable[..., None]
) -> None:
    make_letters(10_001, fingerprint="f1")

    assert superuser.get(FAILING).context["groups"].rows[0].letters == "10,000+"


def test_the_more_groups_there_are_the_sooner_counting_stops(
    superuser: Client, make_letter: MakeLetter, make_letters: Callable[..., None]
) -> None:
    make_letters(501, fingerprint="f500")
    for number in range(60):
        make_letter(fingerprint=f"f{number}")
    rows = superuser.get(FAILING).context["groups"].rows

    assert sorted({row.letters for row in rows}) == ["1", "500+"]


def test_nothing_failing_is_said(superuser: Client) -> None:
    assert "There are no dead letters." in text_of(superuser, FAILING)


def test_a_start_that_cannot_be_leads_to_the_first_groups(superuser: Client) -> None:
    response = superuser.get(FAILING, {"queue": "\0"})

    assert (response.status_code, response["Location"]) == (302, FAILING)


def test_hostile_text_is_text_among_the_groups(
    superuser: Client, hostile_letter: DeadLetter
) -> None:
    page = text_of(superuser, FAILING)

    assert page.count(escape(HOSTILE)) == 2  # the queue and the class; the error is the class
    assert "<script>alert" not in page
    assert "<img src=x" not in page
