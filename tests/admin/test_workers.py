"""The list of workers: to be read, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from django_outbox.models import Worker
from tests.contract.helpers import database_clock

from .conftest import Login

pytestmark = pytest.mark.django_db

LIST = "/admin/django_outbox/worker/"


def make(worker_id: str = "w1", *, silent_for: float = 0.0, **columns: object) -> Worker:
    now = database_clock()
    return Worker.objects.create(
        **{
            "id": uuid4(),
            "worker_id": worker_id,
            "kind": "worker",
            "host": "web-1",
            "pid": 42,
            "queues": ["orders", "mail"],
            "concurrency": 8,
            "running": 3,
            "started_at": now - timedelta(hours=2),
            "last_seen_at": now - timedelta(seconds=silent_for),
            **columns,
        }
    )


def test_a_worker_is_shown_with_what_it_serves_and_whether_it_lives(login: Login) -> None:
    worker = make()
    make("w2", silent_for=61)
    client = login("view_worker")

    page = client.get(LIST).content.decode()

    for text in ("web-1:42", "orders, mail", "3 of 8", ">alive<", ">lost<", "(2 h ago)"):
        assert text in page
    assert client.get(f"{LIST}{worker.pk}/change/").status_code == 200


def test_nothing_can_be_done_to_a_worker_not_even_by_a_superuser(superuser: Client) -> None:
    worker = make()

    assert superuser.get(f"{LIST}add/").status_code == 403
    assert superuser.post(f"{LIST}{worker.pk}/delete/", {"post": "yes"}).status_code == 403
    assert superuser.post(f"{LIST}{worker.pk}/change/", {"host": "x"}).status_code == 403
    assert Worker.objects.get().host == "web-1"


def test_without_the_permission_there_is_no_list(login: Login) -> None:
    assert login("view_outboxmessage").get(LIST).status_code == 403


def test_hostile_names_are_text_and_odd_queues_are_none(superuser: Client) -> None:
    make("<script>alert(1)</script>", host="<b>", queues={"no": "list"})

    page = superuser.get(LIST).content.decode()

    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.parametrize(
    "assignment",
    [
        "last_seen_at = 'infinity'",
        "last_seen_at = '-infinity'",
        "started_at = 'infinity'",
        "started_at = '20000-01-01 00:00Z'",
        "queues = '[1e5000]'",
        f"queues = '{'[' * 3000}{']' * 3000}'",
        """queues = '["orders", 7, null, {"a": 1}]'""",
    ],
)
def test_what_python_cannot_hold_breaks_no_page(superuser: Client, assignment: str) -> None:
    worker = make()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE django_outbox_worker SET {assignment}")

    assert superuser.get(LIST).status_code == 200
    page = superuser.get(f"{LIST}{worker.pk}/change/")
    assert page.status_code == 200
    assert ("never" in page.content.decode()) == (
        "'infinity'" in assignment or "20000" in assignment
    )


@pytest.mark.parametrize(
    ("filters", "status"),
    [
        ("kind__exact=worker", 200),
        ("kind__exact=odd", 200),
        ("kind__exact=%00", 400),
        ("host__regex=(", 400),
        ("queues__contains=x", 400),
        ("pid=x", 400),
        ("q=%00", 200),
    ],
)
def test_the_list_is_filtered_by_its_filter_and_by_nothing_else(
    superuser: Client, filters: str, status: int
) -> None:
    make()

    assert superuser.get(f"{LIST}?{filters}").status_code == status


def test_the_number_of_queries_does_not_grow_with_the_workers(
    superuser: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for n in range(3):
        make(f"w{n}")
    superuser.get(LIST)
    with django_assert_num_queries(4):
        superuser.get(LIST)
    for n in range(30):
        make(f"v{n}")

    with django_assert_num_queries(4):
        superuser.get(LIST)
