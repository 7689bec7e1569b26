"""Every page of the admin shows hostile names and texts as text."""

from __future__ import annotations

from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage, Schedule, Worker
from tests.security.hostile import HOSTILE

pytestmark = pytest.mark.django_db

each = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)


def page(client: Client, view: str, *args: Any, query: dict[str, str] | None = None) -> str:
    url = reverse(f"admin:django_outbox_{view}", args=args)
    response = client.get(f"{url}?{urlencode(query)}" if query else url)
    assert response.status_code == 200
    return response.content.decode()


@each
def test_the_admin_shows_it_as_text(name: str, admin_client: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_outbox_message (queue, payload, headers, correlation_id, timer_id,"
            " ref, last_error, attempts_count, lease_token, lease_expires_at, leased_by) VALUES"
            " (%(name)s, %(body)s, jsonb_build_object(%(name)s::text, %(name)s::text), %(name)s,"
            " %(name)s, %(ref)s, %(name)s, 1, gen_random_uuid(), now() + '1 h', %(name)s)",
            {"name": name, "body": name.encode(), "ref": f"testapp.order:{name}"},
        )
        cursor.execute(
            "INSERT INTO django_outbox_dead_letter (original_id, message_id, queue, payload,"
            " headers, correlation_id, timer_id, created_at, failure_reason, exception_class,"
            " last_exception, fingerprint, ref) VALUES (1, gen_random_uuid(), %(name)s, %(body)s,"
            " jsonb_build_object(%(name)s::text, %(name)s::text), %(name)s, %(name)s, now(),"
            " 'rejected', %(name)s, %(name)s, left(%(name)s, 64), %(name)s)",
            {"name": name, "body": name.encode()},
        )
        cursor.execute(
            "INSERT INTO django_outbox_worker (id, worker_id, kind, host, pid, queues) VALUES"
            " (gen_random_uuid(), %(name)s, 'worker', %(name)s, 1,"
            " jsonb_build_array(%(name)s::text))",
            {"name": name},
        )
    outbox.schedule(
        name, "@every 1h", queue=name, payload=name, headers={name: name}, expires_in=timedelta(1)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_outbox_schedule"
            " SET last_error = %(name)s, spec = %(name)s, timezone = left(%(name)s, 64)",
            {"name": name},
        )
    message, letter = OutboxMessage.objects.get(), DeadLetter.objects.get()
    schedule = Schedule.objects.get()

    pages = [
        admin_client.get(reverse("admin:app_list", args=["django_outbox"])).content.decode(),
        page(admin_client, "outboxmessage_changelist"),
        page(admin_client, "outboxmessage_changelist", query={"queue": name}),
        page(admin_client, "outboxmessage_changelist", query={"q": name}),
        page(admin_client, "outboxmessage_change", message.pk),
        page(admin_client, "outboxmessage_history", message.pk),
        page(admin_client, "deadletter_changelist"),
        page(admin_client, "deadletter_changelist", query={"q": name}),
        page(admin_client, "deadletter_change", letter.pk),
        page(admin_client, "deadletter_failing"),
        page(admin_client, "schedule_changelist"),
        page(admin_client, "schedule_changelist", query={"q": name}),
        page(admin_client, "schedule_change", schedule.pk),
        page(admin_client, "schedule_delete", schedule.pk),
        page(admin_client, "worker_changelist"),
        page(admin_client, "worker_change", Worker.objects.get().pk),
    ]

    if "<script>" in name:
        assert [text for text in pages if "<script>alert(1)" in text or "<img src=x" in text] == []
    for text in (pages[4], pages[8], pages[12]):
        assert name.strip("\r\n ")[:20] in unescape(text).replace("\ufffd", "")


@each
def test_a_download_has_a_name_of_our_own(name: str, admin_client: Client) -> None:
    with transaction.atomic():
        id_ = outbox.publish(
            name.encode(), queue=name, headers={"content-type": "text/html", name: name}
        )

    response = admin_client.get(reverse("admin:django_outbox_outboxmessage_payload", args=[id_]))

    assert response.headers["Content-Disposition"] == f'attachment; filename="message-{id_}.bin"'
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Content-Type"] == "application/octet-stream"
