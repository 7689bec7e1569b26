"""Names and texts stay text: in SQL, in logs, at a terminal, whatever they look like.

One name stands for everything that somebody can choose: queue, timer, header, correlation id,
payload, error, schedule and worker.
"""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from django_outbox import outbox
from django_outbox.models import DeadLetter, OutboxMessage, Schedule
from tests.security.hostile import HOSTILE
from tests.support import committed, drain, make_due, message_row, publish, session

pytestmark = [committed, pytest.mark.usefixtures("registry")]

each = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)

CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def printed(*command: str, **options: Any) -> str:
    out = StringIO()
    call_command(*command, stdout=out, stderr=out, no_color=True, **options)
    return out.getvalue()


@each
def test_a_message_is_delivered_retried_buried_and_replayed_as_it_was(name: str) -> None:
    got: list[outbox.Message[Any]] = []

    @outbox.handler(name, retry=outbox.ConstantRetry(3600, max_attempts=2))
    def handle(message: outbox.Message[Any]) -> None:
        got.append(message)
        if len(got) < 3:
            raise ValueError(name)

    id_ = publish(
        {name: name}, queue=name, timer_id=name, headers={name: name}, correlation_id=name
    )
    drain(worker_id=name)
    assert name in (message_row(id_).last_error or "").replace("\ufffd", "")
    make_due(id_)
    drain(worker_id=name)
    letter = DeadLetter.objects.get(queue=name, timer_id=name)
    assert (letter.exception_class, letter.failure_reason) == ("ValueError", "retry_terminal")
    assert printed("outbox_replay", "--queue", name).startswith("Replayed 1")
    drain(worker_id=name)

    for message in got:
        assert (message.queue, message.timer_id, message.correlation_id) == (name, name, name)
        assert (message.payload, message.headers[name]) == ({name: name}, name)
    assert [message.attempt for message in got] == [1, 2, 1]
    assert not OutboxMessage.objects.exists()


@each
def test_a_timer_is_moved_and_cancelled_and_no_other(name: str) -> None:
    for timer in (name, "other"):
        publish(1, queue=name, timer_id=timer, activate_in=60)

    id_ = publish(2, queue=name, timer_id=name, timer_conflict="replace", activate_in=90)
    assert bytes(message_row(id_).payload) == b"2"
    assert outbox.cancel_timer(queue=name, timer_id=name)

    assert [message.timer_id for message in OutboxMessage.objects.all()] == ["other"]


@each
def test_a_schedule_is_written_fired_and_deleted(name: str) -> None:
    outbox.schedule(name, "@every 1h", queue=name, payload=name, headers={name: name})
    outbox.schedule("other", "@every 1h", queue="other")
    Schedule.objects.filter(name=name).update(next_run_at="2026-01-01T00:00:00Z")

    call_command("outbox_scheduler", "--once", verbosity=0)

    fired = OutboxMessage.objects.filter(queue=name)
    assert {message.headers["schedule"] for message in fired} == {name}
    assert {bytes(message.payload) for message in fired} == {json_of(name)}
    assert outbox.unschedule(name)
    assert [schedule.name for schedule in Schedule.objects.all()] == ["other"]


def json_of(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


@each
def test_a_line_of_a_file_is_published(name: str, tmp_path: Path) -> None:
    line = {"queue": name, "payload": name, "timer_id": name, "headers": {name: name}}
    file = tmp_path / "lines"
    file.write_text(json.dumps(line) + "\n")

    assert printed("outbox_publish", str(file)) == "Published 1 message(s).\n"

    row = OutboxMessage.objects.get()
    assert (row.queue, row.timer_id, row.headers[name]) == (name, name, name)


@each
def test_a_log_line_is_one_line_and_moves_no_cursor(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "django_outbox")

    @outbox.handler(name, retry=outbox.ConstantRetry(3600))
    def handle(message: outbox.Message[Any]) -> None:
        if message.payload == "reject":
            raise outbox.Reject("no")
        if message.payload == "fail":
            raise ValueError("no")

    for payload in ("done", "reject", "fail"):
        publish(payload, queue=name)
    drain()
    outbox.schedule(name, "@every 1h", queue=name)
    with session() as other:
        other.execute("UPDATE django_outbox_schedule SET spec = '@every 0s', next_run_at = now()")
    call_command("outbox_scheduler", "--once", verbosity=0)

    lines = [record.getMessage() for record in caplog.records if record.name == "django_outbox"]
    assert any("could not be fired" in line for line in lines)
    assert [line for line in lines if CONTROLS.search(line) or "\n" in line] == []


@each
def test_a_terminal_is_shown_no_control_characters(name: str) -> None:
    publish(queue=name)
    outbox.schedule(name, "@every 1h", queue=name)
    with session() as other:
        other.execute(
            "INSERT INTO django_outbox_lease VALUES ('__scheduler', %s, now(), now() + '1 h')",
            [name],
        )
        other.execute("UPDATE django_outbox_schedule SET last_error = %s", [name])

    shown = printed("outbox_status")
    report = json.loads(printed("outbox_status", "--json"))

    assert CONTROLS.search(shown) is None
    assert report["queues"][0]["queue"] == name
    assert (report["schedules"][0]["schedule"], report["leader"]) == (name, name)
