"""What the outbox holds about an object, on the object's own page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.checks import run_checks
from django.db import connection, transaction
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_outbox import outbox
from django_outbox.admin import OutboxTrailInline, trail
from django_outbox.models import DeadLetter, OutboxMessage
from example_project.shop.models import Customer, Order, Product

from .conftest import Login

pytestmark = pytest.mark.django_db

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(1)</script>'
NOTHING = "No message about this object waits, and none is a dead letter."
VIEW_ORDER = ("shop", "view_order")
CHANGE_ORDER = ("shop", "change_order")


@pytest.fixture
def order() -> Order:
    customer = Customer.objects.create(name="Ada", email="ada@example.org")
    product = Product.objects.create(name="Kettle", price="20.00", stock=3)
    return Order.objects.create(customer=customer, product=product)


@pytest.fixture
def seer(login: Login) -> Callable[..., Client]:
    """Log in somebody with these permissions of the outbox who may view or change orders too."""

    def log_in(*codenames: str, order: tuple[str, str] = VIEW_ORDER) -> Client:
        client = login(*codenames)
        user = User.objects.latest("pk")
        app, codename = order
        user.user_permissions.add(
            Permission.objects.get(content_type__app_label=app, codename=codename)
        )
        return client

    return log_in


def page_of(order: Order) -> str:
    return reverse("admin:shop_order_change", args=[order.pk])


def publish(order: Any, queue: str = "orders", **options: Any) -> int:
    with transaction.atomic():
        id_ = outbox.publish(None, queue=queue, ref=order, **options)
    assert id_ is not None
    return id_


def bury(order: Order, *, error: str = "ValueError: no", **columns: Any) -> DeadLetter:
    return DeadLetter.objects.create(
        **{
            "original_id": 7,
            "message_id": uuid4(),
            "queue": "orders",
            "payload": b"{}",
            "correlation_id": "c",
            "ref": f"shop.order:{order.pk}",
            "created_at": "2026-01-01T00:00:00Z",
            "failure_reason": "rejected",
            "last_exception": error,
            **columns,
        }
    )


def text_of(client: Client, where: str) -> str:
    response = client.get(where)
    assert response.status_code == 200
    return response.content.decode()


def rows(client: Client, order: Order) -> list[trail.Step]:
    """Return the rows of the trail that the page shows."""
    response = client.get(page_of(order))
    [inline] = response.context["inline_admin_formsets"]
    steps: list[trail.Step] = inline.formset.read_trail().steps
    return steps


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "20000-01-01 00:00Z"])
def test_moments_that_python_cannot_hold_break_no_page(
    superuser: Client, order: Order, moment: str
) -> None:
    bury(order)
    publish(order)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_outbox_dead_letter SET failed_at = %s", [moment])
        cursor.execute(
            "UPDATE django_outbox_message SET created_at = %s, next_attempt_at = %s,"
            " expires_at = %s, lease_token = gen_random_uuid(), lease_expires_at = %s",
            [moment] * 4,
        )
    assert len(rows(superuser, order)) == 2
    text = text_of(superuser, page_of(order))
    assert ("before all time" if moment == "-infinity" else "never") in text


def test_an_outbox_that_cannot_be_read_costs_the_trail_and_not_the_page(
    superuser: Client, order: Order
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_outbox_dead_letter RENAME TO elsewhere")
    response = superuser.get(page_of(order))
    assert response.status_code == 200
    assert "The database &#x27;default&#x27; cannot be read." in response.content.decode()
    assert Order.objects.get() == order  # the transaction that the page was in goes on


def test_an_order_shows_its_messages_timers_and_dead_letters_the_newest_first(
    superuser: Client, order: Order
) -> None:
    letter = bury(order, failed_at="2026-01-02T00:00:00Z", timer_id="buried")
    first = publish(order)
    timer = publish(order, queue="mails", timer_id="remind-1", activate_in=timedelta(hours=1))
    publish(Order(pk=order.pk + 1))
    shown = rows(superuser, order)
    assert [(step.number, step.queue, step.timer_id) for step in shown] == [
        (timer, "mails", "remind-1"),
        (first, "orders", None),
        (7, "orders", "buried"),
    ]
    text = text_of(superuser, page_of(order))
    assert reverse("admin:django_outbox_outboxmessage_change", args=[timer]) in text
    assert '"outbox-word outbox-wait">scheduled</span>' in text
    assert '"outbox-word outbox-good">ready</span>' in text
    assert '"outbox-word outbox-bad">dead</span>' in text
    assert letter.pk is not None
    assert "ValueError: no" in text


def test_of_an_error_the_first_line_is_shown(superuser: Client, order: Order) -> None:
    id_ = publish(order)
    OutboxMessage.objects.filter(pk=id_).update(last_error="\nKeyError: 'a'\n  File secret")
    text = text_of(superuser, page_of(order))
    assert "KeyError: &#x27;a&#x27;" in text
    assert "secret" not in text


def test_an_order_without_messages_says_so(superuser: Client, order: Order) -> None:
    assert NOTHING in text_of(superuser, page_of(order))


def test_the_page_to_add_an_order_has_nothing_to_show_and_saves(
    superuser: Client, order: Order
) -> None:
    where = reverse("admin:shop_order_add")
    assert NOTHING in text_of(superuser, where)
    posted = {"customer": order.customer_id, "product": order.product_id, "quantity": 2}
    assert superuser.post(where, posted).status_code == 302
    assert Order.objects.count() == 2


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"outbox-trail-TOTAL_FORMS": "1", "outbox-trail-INITIAL_FORMS": "1"},
        {
            "outbox-trail-TOTAL_FORMS": "odd",
            "outbox-trail-0-id": "1",
            "outbox-trail-0-DELETE": "on",
        },
    ],
)
def test_the_page_is_saved_as_if_the_trail_were_not_there(
    superuser: Client, order: Order, extra: dict[str, str]
) -> None:
    id_ = publish(order)
    posted = {"customer": order.customer_id, "product": order.product_id, "quantity": 5, **extra}
    with CaptureQueriesContext(connection) as queries:
        response = superuser.post(page_of(order), posted)
    assert response.status_code == 302
    assert not any("django_outbox_message" in query["sql"] for query in queries)
    order.refresh_from_db()
    assert order.quantity == 5
    assert OutboxMessage.objects.filter(pk=id_).exists()


def test_a_page_with_an_error_in_its_form_still_shows_the_trail(
    superuser: Client, order: Order
) -> None:
    id_ = publish(order)
    response = superuser.post(page_of(order), {"quantity": "odd"})
    assert response.status_code == 200
    assert f"#{id_}" in response.content.decode()


def test_a_method_that_saves_formsets_its_own_way_meets_one_that_saves_nothing(
    order: Order,
) -> None:
    request = RequestFactory().get("/")
    request.user = type("Anyone", (), {"has_perm": lambda self, name: True})()
    inline = OutboxTrailInline(Order, admin.site)
    formset = inline.get_formset(request, order)(instance=order)
    assert formset.is_valid()
    assert formset.save(commit=False) == []
    formset.save_m2m()
    assert formset.deleted_objects == []
    assert not formset.has_changed()


def test_each_kind_is_shown_to_those_who_may_view_it(seer: Any, order: Order) -> None:
    id_ = publish(order)
    bury(order)
    assert [step.number for step in rows(seer("view_outboxmessage"), order)] == [id_]
    assert [step.number for step in rows(seer("view_deadletter"), order)] == [7]
    both = seer("view_outboxmessage", "view_deadletter")
    assert [step.number for step in rows(both, order)] == [7, id_]


@pytest.mark.parametrize("permission", [VIEW_ORDER, CHANGE_ORDER])
def test_nothing_is_shown_to_those_who_may_view_neither(
    seer: Any, order: Order, permission: tuple[str, str]
) -> None:
    publish(order)
    client = seer(order=permission)
    with CaptureQueriesContext(connection) as queries:
        text = text_of(client, page_of(order))
    assert "outbox-trail" not in text
    assert not any("django_outbox_message" in query["sql"] for query in queries)


def test_the_newest_fifty_are_shown_and_that_there_are_more(
    superuser: Client, order: Order
) -> None:
    ids = [publish(order) for _ in range(30)]
    letters = [bury(order, original_id=n, failed_at="2026-01-02T00:00:00Z") for n in range(21)]
    assert "These are the newest 50; there are more." in text_of(superuser, page_of(order))
    shown = [step.number for step in rows(superuser, order)]
    assert shown[:30] == ids[::-1]
    assert len(shown) == 50
    letters[0].delete()
    assert "there are more" not in text_of(superuser, page_of(order))


def test_the_trail_is_two_queries_and_reads_no_payload(superuser: Client, order: Order) -> None:
    for _ in range(5):
        publish(order)
        bury(order)
    with CaptureQueriesContext(connection) as queries:
        superuser.get(page_of(order))
    own = [query["sql"] for query in queries if "django_outbox" in query["sql"]]
    assert len(own) == 2
    assert not any("payload" in sql for sql in own)


def test_no_text_of_a_message_is_markup(superuser: Client, order: Order) -> None:
    id_ = publish(order, queue=HOSTILE, timer_id=HOSTILE)
    OutboxMessage.objects.filter(pk=id_).update(last_error=HOSTILE)
    bury(order, error=HOSTILE, queue=HOSTILE, timer_id=HOSTILE)
    text = text_of(superuser, page_of(order))
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert") == 6


def test_an_object_that_no_message_can_be_about_shows_nothing() -> None:
    request = RequestFactory().get("/")
    request.user = type("Anyone", (), {"has_perm": lambda self, name: True})()
    unsaved = trail.Trail(Order(), request, admin.site)
    assert unsaved.read() == trail.ReadTrail([], has_more=False)


def test_an_admin_with_the_trail_passes_the_checks() -> None:
    assert run_checks(tags=["admin"]) == []
    assert OutboxTrailInline(Customer, admin.site).check() == []
