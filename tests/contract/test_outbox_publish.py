"""`outbox_publish`: what it takes from its lines, and what it stores when one of them is bad."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_outbox.models import OutboxMessage
from tests.process.stage import ROOT, url_of_the_test_database
from tests.support import committed, wait_until

from .helpers import PATIENCE, database_clock, stored_payload

GOOD = '{"queue": "orders", "payload": 1}'

Run = Callable[..., str]


@pytest.fixture
def publish(tmp_path: Path) -> Run:
    """Give a function that publishes these lines from a file and returns what the command says."""

    def publish(*lines: str | bytes, options: tuple[str, ...] = (), end: bytes = b"\n") -> str:
        file = tmp_path / "lines.jsonl"
        file.write_bytes(
            b"".join((line if isinstance(line, bytes) else line.encode()) + end for line in lines)
        )
        said = io.StringIO()
        call_command("outbox_publish", str(file), *options, stdout=said)
        return said.getvalue()

    return publish


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Give a function that puts bytes into standard input."""

    def stdin(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return stdin


@pytest.fixture
def terminal() -> Iterator[tuple[io.TextIOWrapper, Callable[[], str]]]:
    """Give a terminal to write to, and a function that tells what it has got."""
    master, slave = pty.openpty()
    stream = os.fdopen(slave, "w")

    def shown() -> str:
        stream.flush()
        os.write(slave, b"(the end)")
        text = b""
        while not text.endswith(b"(the end)"):
            text += os.read(master, 4096)
        return text.decode().removesuffix("(the end)")

    yield stream, shown
    stream.close()
    os.close(master)


def payloads() -> list[Any]:
    return [
        stored_payload(id_)
        for id_ in OutboxMessage.objects.order_by("id").values_list("pk", flat=True)
    ]


def only() -> OutboxMessage:
    return OutboxMessage.objects.get()


pytestmark = pytest.mark.django_db


class TestWhereLinesComeFrom:
    def test_each_line_of_a_file_is_a_message(self, publish: Run) -> None:
        said = publish(
            '{"queue": "orders", "payload": {"order_id": 7}}',
            '{"payload": [1, "zwei", null], "queue": "refunds"}',
        )

        stored = OutboxMessage.objects.order_by("id")
        assert [message.queue for message in stored] == ["orders", "refunds"]
        assert payloads() == [{"order_id": 7}, [1, "zwei", None]]
        assert said == "Published 2 message(s).\n"

    @pytest.mark.parametrize("arguments", [(), ("-",)], ids=["no file", "a dash"])
    def test_without_a_file_standard_input_is_read(
        self, stdin: Callable[[bytes], None], arguments: tuple[str, ...]
    ) -> None:
        stdin(f"{GOOD}\n{GOOD}".encode())

        call_command("outbox_publish", *arguments, stdout=io.StringIO())

        assert payloads() == [1, 1]

    def test_a_file_without_lines_publishes_nothing(self, publish: Run) -> None:
        assert publish() == "Published 0 message(s).\n"

    def test_standard_input_that_is_closed_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stdin", None)  # as Python has it after <&-

        with pytest.raises(CommandError, match="Standard input is closed"):
            call_command("outbox_publish")

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("missing.jsonl", "No such file"),
            (".", "Is a directory"),
            ("/proc/self/mem", "Input/output error"),
        ],
        ids=["missing", "a folder", "fails when read"],
    )
    def test_a_file_that_cannot_be_read_is_named(
        self, tmp_path: Path, name: str, reason: str
    ) -> None:
        if name.startswith("/") and not Path(name).exists():
            pytest.skip(f"there is no {name} on this system")
        path = str(tmp_path / name)

        with pytest.raises(CommandError, match=reason) as refusal:
            call_command("outbox_publish", path)
        assert path in str(refusal.value)

    @pytest.mark.django_db(databases=["default", "orders"])
    def test_database_names_where_the_messages_go(self, publish: Run) -> None:
        publish(GOOD, options=("--database", "orders"))

        assert OutboxMessage.objects.using("orders").count() == 1
        assert not OutboxMessage.objects.exists()


class TestLines:
    def test_blank_lines_are_passed_over(self, publish: Run) -> None:
        said = publish("", GOOD, "   ", "\t", GOOD, "")

        assert payloads() == [1, 1]
        assert said == "Published 2 message(s).\n"

    def test_a_byte_order_mark_is_passed_over(self, publish: Run) -> None:
        publish(b"\xef\xbb\xbf" + GOOD.encode())

        assert payloads() == [1]

    def test_a_file_with_nothing_but_a_byte_order_mark_is_empty(self, publish: Run) -> None:
        assert publish(b"\xef\xbb\xbf", end=b"") == "Published 0 message(s).\n"

    @pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
    def test_lines_may_end_as_they_do_on_either_system(self, publish: Run, end: bytes) -> None:
        publish(GOOD, "", GOOD, end=end)

        assert payloads() == [1, 1]

    def test_the_last_line_need_not_end(self, publish: Run) -> None:
        publish(f"{GOOD}\n{GOOD}", end=b"")

        assert payloads() == [1, 1]

    def test_other_line_separators_of_unicode_end_no_line(self, publish: Run) -> None:
        publish('{"queue": "orders", "payload": "a\u2028b\u0085c"}')

        assert payloads() == ["a\u2028b\u0085c"]

    def test_a_payload_of_null_is_a_payload(self, publish: Run) -> None:
        publish('{"queue": "orders", "payload": null}')

        assert payloads() == [None]


class TestOptionsOfALine:
    def test_every_argument_of_publish_can_be_given(self, publish: Run) -> None:
        publish(
            '{"queue": "orders", "payload": 1, "headers": {"tenant": "acme"},'
            ' "correlation_id": "checkout-7", "timer_id": "t", "timer_conflict": "extend",'
            ' "activate_at": "2100-01-31T10:00:00+01:00", "expires_in": 60, "max_attempts": 3}'
        )

        stored = only()
        assert stored.headers == {"tenant": "acme", "content-type": "application/json"}
        assert (stored.correlation_id, stored.timer_id) == ("checkout-7", "t")
        assert stored.next_attempt_at == datetime(2100, 1, 31, 9, tzinfo=UTC)
        assert stored.expires_at == datetime(2100, 1, 31, 9, 1, tzinfo=UTC)
        assert stored.max_attempts == 3

    @pytest.mark.parametrize(
        ("duration", "seconds"),
        [
            ("90", 90),
            ("1.5", 1.5),
            ('"90"', 90),
            ('"PT1M30S"', 90),
            ('"P2DT3H"', 2 * 86400 + 3 * 3600),
            ('"00:01:30"', 90),
        ],
    )
    @pytest.mark.parametrize("option", ["activate_in", "expires_in"])
    def test_a_duration_is_seconds_or_iso_8601(
        self, publish: Run, option: str, duration: str, seconds: float
    ) -> None:
        before = database_clock()
        publish(f'{{"queue": "orders", "payload": 1, "{option}": {duration}}}')
        after = database_clock()

        stored = only()
        moment = stored.next_attempt_at if option == "activate_in" else stored.expires_at
        assert moment is not None
        assert seconds <= (moment - before).total_seconds()
        assert (moment - after).total_seconds() <= seconds

    def test_null_means_not_given(self, publish: Run) -> None:
        publish(
            '{"queue": "orders", "payload": 1, "headers": null, "activate_in": null,'
            ' "activate_at": null, "timer_id": null, "expires_in": null, "max_attempts": null}'
        )

        stored = only()
        assert (stored.timer_id, stored.expires_at, stored.max_attempts) == (None, None, None)

    def test_lines_whose_timer_is_there_already_are_counted_as_left_out(self, publish: Run) -> None:
        timer = '{"queue": "orders", "payload": %d, "timer_id": "t", "activate_in": 60}'

        said = publish(timer % 1, timer % 2, timer % 3, GOOD)

        assert payloads() == [1, 1]
        assert "Published 4 message(s), 2 of them left out" in said


class TestQueue:
    def test_it_is_the_queue_of_the_lines_that_name_none(self, publish: Run) -> None:
        publish('{"payload": 1}', '{"payload": 2, "queue": "own"}', options=("--queue", "orders"))

        stored = OutboxMessage.objects.order_by("id")
        assert [message.queue for message in stored] == ["orders", "own"]

    @pytest.mark.parametrize("queue", ["", "__mine", "q" * 256, "a\x00b", "\udcff"], ids=ascii)
    def test_one_that_cannot_be_used_is_refused_whatever_the_lines(
        self, publish: Run, queue: str
    ) -> None:
        with pytest.raises(CommandError, match="--queue"):
            publish(options=("--queue", queue))

    def test_a_line_without_one_is_refused_where_there_is_none(self, publish: Run) -> None:
        with pytest.raises(CommandError, match=r"Line 2: no queue.*--queue"):
            publish(GOOD, '{"payload": 1}')


class TestRaw:
    def test_each_line_is_a_payload(self, publish: Run) -> None:
        publish(
            "1",
            '"text"',
            "null",
            "[1, [2]]",
            '{"payload": 1, "queue": "not this"}',
            options=("--raw", "--queue", "orders"),
        )

        assert payloads() == [1, "text", None, [1, [2]], {"payload": 1, "queue": "not this"}]
        assert {message.queue for message in OutboxMessage.objects.all()} == {"orders"}

    def test_it_needs_a_queue(self, publish: Run) -> None:
        with pytest.raises(CommandError, match="--queue"):
            publish("1", options=("--raw",))

    @pytest.mark.parametrize("line", ["{", "NaN", '{"a": 1, "a": 2}', "text", '"\\ud800"'])
    def test_a_line_that_is_no_payload_is_refused(self, publish: Run, line: str) -> None:
        with pytest.raises(CommandError, match="Line 2: "):
            publish("1", line, options=("--raw", "--queue", "orders"))
        assert not OutboxMessage.objects.exists()


class TestBadLines:
    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("{", "not JSON"),
            ("text", "not JSON"),
            (GOOD + GOOD, "not JSON"),
            (b"\xef\xbb\xbf" + GOOD.encode(), "not JSON"),  # only the first line may have it
            (b'{"queue": "orders", "payload": "\xff"}', "utf-8"),
            ('{"queue": "orders", "payload": "\\ud800"}', "surrogate"),
            ('{"queue": "orders", "payload": NaN}', "NaN"),
            ('{"queue": "orders", "payload": -Infinity}', "-Infinity"),
            ('{"queue": "orders", "payload": [1, 1e999]}', r"\[1\]"),
            ('{"queue": "orders", "payload": ' + "9" * 5000 + "}", "not JSON"),
            ('{"queue": "orders", "payload": ' + "[" * 100_000 + "}", "not JSON"),
            ('{"queue": "orders", "queue": "refunds", "payload": 1}', "'queue' stands twice"),
            ('{"queue": "orders", "payload": {"a": 1, "a": 2}}', "'a' stands twice"),
            ("[1]", "--raw"),
            ("7", "--raw"),
            ("null", "--raw"),
            ("{}", "no payload.*--raw"),
            ('{"queue": "orders"}', "no payload"),
            ('{"payload": 1}', "no queue"),
            ('{"payload": 1, "queue": null}', "no queue"),
            ('{"queue": "orders", "payload": 1, "activate_inn": 5}', "'activate_inn'"),
            ('{"queue": "orders", "payload": 1, "using": "default"}', "'using'"),
        ],
        ids=lambda value: ascii(value)[:60],
    )
    def test_a_line_that_is_no_message_is_refused(
        self, publish: Run, line: str | bytes, reason: str
    ) -> None:
        with pytest.raises(CommandError, match=f"Line 3: .*{reason}") as refusal:
            publish(GOOD, "", line, GOOD)

        assert "Nothing was stored" in str(refusal.value)
        assert not OutboxMessage.objects.exists()

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("queue", "7"),
            ("queue", '""'),
            ("queue", '"__mine"'),
            ("queue", '["orders"]'),
            ("headers", "[]"),
            ("headers", '""'),
            ("headers", "0"),
            ("headers", "false"),
            ("headers", '{"tenant": 1}'),
            ("headers", '{"tenant": "\\u0000"}'),
            ("headers", '{"content-type": "text/plain"}'),
            ("correlation_id", "7"),
            ("correlation_id", '""'),
            ("activate_in", "true"),
            ("activate_in", "[1]"),
            ("activate_in", '"soon"'),
            ("activate_in", '""'),
            ("activate_in", '"P"'),
            ("activate_in", '"PT"'),
            ("activate_in", "1e999"),
            ("activate_in", "1e300"),
            ("activate_in", '"99999999999999 00:00:00"'),
            ("activate_in", '"P1M"'),
            ("activate_at", "1700000000"),
            ("activate_at", '"tomorrow"'),
            ("activate_at", '"2100-01-31T10:00:00"'),
            ("activate_at", '"2100-01-31"'),
            ("activate_at", '"2100-02-31T10:00:00Z"'),
            ("timer_id", "7"),
            ("timer_id", '""'),
            ("timer_conflict", '"extend"'),
            ("timer_conflict", '"never"'),
            ("timer_conflict", "[]"),
            ("timer_conflict", "null"),
            ("expires_in", "0"),
            ("expires_in", "-1"),
            ("expires_in", '"PT0S"'),
            ("expires_in", '"-PT5M"'),
            ("expires_in", "{}"),
            ("max_attempts", "0"),
            ("max_attempts", "1.5"),
            ("max_attempts", "true"),
            ("max_attempts", '"3"'),
            ("max_attempts", "1000001"),
        ],
    )
    def test_an_option_that_cannot_be_used_is_named(
        self, publish: Run, option: str, value: str
    ) -> None:
        queue = "" if option == "queue" else '"queue": "orders", '
        line = f'{{{queue}"payload": 1, "{option}": {value}}}'

        named = "content-type" if "content-type" in value else option.rstrip("s")
        with pytest.raises(CommandError, match=f"Line 2: .*{named}"):
            publish(GOOD, line)

        assert not OutboxMessage.objects.exists()

    def test_delay_and_moment_together_are_refused(self, publish: Run) -> None:
        with pytest.raises(CommandError, match=r"Line 1: .*not both"):
            publish(
                '{"queue": "orders", "payload": 1, "activate_in": 5,'
                ' "activate_at": "2100-01-31T10:00:00Z"}'
            )

    def test_a_moment_without_an_offset_is_shown_how_to_be_written(self, publish: Run) -> None:
        with pytest.raises(CommandError, match=r"no offset.*\+01:00"):
            publish('{"queue": "orders", "payload": 1, "activate_at": "2100-01-31T10:00:00"}')

    def test_an_error_of_the_database_leaves_nothing_either(self, publish: Run) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "ALTER TABLE django_outbox_message"
                " ADD CONSTRAINT uncursed CHECK (queue <> 'cursed')"
            )

        with pytest.raises(CommandError, match="uncursed") as refusal:
            publish(GOOD, '{"queue": "cursed", "payload": 1}')

        assert "Nothing was stored" in str(refusal.value)
        assert not OutboxMessage.objects.exists()


class TestBatch:
    def test_what_was_committed_before_a_bad_line_stays(self, publish: Run) -> None:
        lines = [f'{{"queue": "orders", "payload": {n}}}' for n in range(1, 6)]
        lines[3] = "bad"  # the second one of the second batch

        with pytest.raises(CommandError, match="Line 4: ") as refusal:
            publish(*lines, options=("--batch", "2"))

        assert payloads() == [1, 2]
        assert "The 2 message(s) of earlier batches are stored" in str(refusal.value)

    def test_a_bad_line_in_the_first_batch_leaves_nothing(self, publish: Run) -> None:
        with pytest.raises(CommandError, match="Nothing was stored"):
            publish(GOOD, "bad", GOOD, options=("--batch", "2"))

        assert not OutboxMessage.objects.exists()

    def test_a_batch_that_is_not_full_is_stored_too(self, publish: Run) -> None:
        said = publish(GOOD, GOOD, GOOD, options=("--batch", "2"))

        assert payloads() == [1, 1, 1]
        assert said == "Published 3 message(s).\n"

    @pytest.mark.parametrize("size", ["0", "-1", "1.5", "many", "99999999999999999999"])
    def test_a_size_that_makes_no_sense_is_refused(self, publish: Run, size: str) -> None:
        with pytest.raises(CommandError, match="--batch"):
            publish(GOOD, options=(f"--batch={size}",))


class TestProgress:
    def test_it_is_shown_on_a_terminal_and_taken_off_at_the_end(
        self,
        stdin: Callable[[bytes], None],
        terminal: tuple[io.TextIOWrapper, Callable[[], str]],
    ) -> None:
        stream, shown = terminal
        stdin(f"{GOOD}\n{GOOD}".encode())

        call_command("outbox_publish", stdout=io.StringIO(), stderr=stream)

        text = shown()
        assert "1 published" in text
        assert text.rpartition("\r")[2] == ""

    def test_it_is_not_shown_where_nobody_asked_for_words(
        self,
        stdin: Callable[[bytes], None],
        terminal: tuple[io.TextIOWrapper, Callable[[], str]],
    ) -> None:
        stream, shown = terminal
        stdin(GOOD.encode())

        call_command("outbox_publish", verbosity=0, stdout=io.StringIO(), stderr=stream)

        assert shown() == ""

    def test_it_is_not_written_into_a_file(self, stdin: Callable[[bytes], None]) -> None:
        stdin(GOOD.encode())
        stderr = io.StringIO()

        call_command("outbox_publish", stdout=io.StringIO(), stderr=stderr)

        assert stderr.getvalue() == ""


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command as a process of its own on the test database."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "outbox_publish", *arguments],
        env={
            **os.environ,
            "DATABASE_URL": url_of_the_test_database(),
            "DJANGO_SETTINGS_MODULE": "tests.settings_worker",
        },
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@committed
def test_a_bad_line_ends_the_process_with_1_and_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text(f"{GOOD}\nbad\n")

    process = started(str(file))
    _, said = process.communicate(timeout=PATIENCE)

    assert process.returncode == 1
    assert "Line 2: not JSON" in said
    assert "Traceback" not in said
    assert not OutboxMessage.objects.exists()


@committed
def test_an_interruption_says_what_is_stored() -> None:
    process = started("--batch", "2", stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(f"{GOOD}\n" * 3)  # the third one waits for a fourth
        process.stdin.flush()
        wait_until(lambda: OutboxMessage.objects.count() == 2)

        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130
    assert "Interrupted" in said
    assert "The 2 message(s) of earlier batches are stored, nothing after them." in said
    assert "Traceback" not in said
    assert OutboxMessage.objects.count() == 2
