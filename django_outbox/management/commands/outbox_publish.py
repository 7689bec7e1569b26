"""Publish messages from JSON Lines."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from django.core.management.base import CommandError, CommandParser
from django.db import Error as DatabaseError
from django.db import transaction
from django.utils.dateparse import parse_datetime, parse_duration

from ...errors import summary
from ...names import validate_queue
from ...publishing import publish
from ..base import OutboxCommand, number

OPTIONS = frozenset(
    {
        "payload",
        "queue",
        "headers",
        "correlation_id",
        "activate_in",
        "activate_at",
        "timer_id",
        "timer_conflict",
        "expires_in",
        "max_attempts",
    }
)


class Line(NamedTuple):
    """A line that is not blank, with its number in the file."""

    number: int
    text: bytes


class BadLine(Exception):
    """A line that cannot be published, and why."""

    def __init__(self, number: int, reason: object) -> None:
        super().__init__(f"Line {number}: {reason}")


class Command(OutboxCommand):
    help = (
        "Publish messages from a file or standard input, one JSON object a line: "
        '{"queue": "orders", "payload": {"order_id": 7}}. The keys are the arguments of '
        "outbox.publish(); activate_in and expires_in are seconds or an ISO 8601 duration, "
        "activate_at is an ISO 8601 moment with its offset. A bad line stops the command, names "
        "itself, and leaves nothing of its transaction behind."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "file",
            nargs="?",
            default="-",
            metavar="FILE",
            help="The file to read; standard input without one, or for '-'.",
        )
        parser.add_argument(
            "--queue", metavar="NAME", help="The queue of the lines that do not name one."
        )
        parser.add_argument(
            "--raw",
            action="store_true",
            help="Each line is a payload itself, any JSON value; needs --queue.",
        )
        parser.add_argument(
            "--batch",
            type=number(int, least=1, what="positive whole number"),
            metavar="N",
            help="Commit every N lines, instead of all lines in one transaction.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["raw"] and options["queue"] is None:
            raise CommandError("--raw lines name no queue; give one with --queue.")
        if options["queue"] is not None:
            _check_queue(options["queue"])
        alias = self.ready_database(options["database"])
        progress = Progress(self.stderr if options["verbosity"] > 0 else None)
        committed = 0
        try:
            with _opened(options["file"]) as file:
                for batch in _batches(_lines(file), options["batch"]):
                    with ExitStack() as commit:
                        with transaction.atomic(using=alias):
                            for line in batch:
                                arguments = _arguments(line, options["queue"], raw=options["raw"])
                                progress.note(_published(line, arguments, using=alias))
                            commit.enter_context(_undisturbed())
                        committed = progress.total
        except (BadLine, DatabaseError) as error:
            progress.clear()
            raise CommandError(f"{summary(error)}\n{_what_is_stored(committed)}") from error
        except OSError as error:
            progress.clear()
            raise CommandError(
                f"{options['file']} cannot be read: {error.strerror}.\n{_what_is_stored(committed)}"
            ) from error
        except KeyboardInterrupt:
            progress.clear()
            raise CommandError(
                f"Interrupted. {_what_is_stored(committed)}", returncode=130
            ) from None
        progress.clear()
        if options["verbosity"] > 0:
            self.stdout.write(_summary(progress))


class Progress:
    """Counts, shown while they grow if there is a terminal to show them on."""

    def __init__(self, stream: Any) -> None:
        self.total = 0
        self.ignored = 0
        self._stream = stream if stream is not None and stream.isatty() else None
        self._shown_at = 0.0

    def note(self, message_id: int | None) -> None:
        """Count one line; one whose timer is there already has no new id."""
        self.total += 1
        self.ignored += message_id is None
        if self._stream is not None and time.monotonic() - self._shown_at > 0.1:
            self._shown_at = time.monotonic()
            self._stream.write(f"\r{self.total:,} published", ending="")
            self._stream.flush()

    def clear(self) -> None:
        """Take the progress off the terminal."""
        if self._stream is not None and self._shown_at:
            self._stream.write("\r" + " " * 40 + "\r", ending="")


def _check_queue(queue: str) -> None:
    try:
        validate_queue(queue)
    except ValueError as error:
        raise CommandError(f"--queue: {error}") from error


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        if sys.stdin is None:
            raise CommandError("Standard input is closed; name a file.")
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file


def _lines(file: IO[bytes]) -> Iterator[Line]:
    for n, text in enumerate(file, start=1):
        if stripped := text.removeprefix(b"\xef\xbb\xbf" if n == 1 else b"").strip():
            yield Line(n, stripped)


def _batches(lines: Iterator[Line], size: int | None) -> Iterator[Iterable[Line]]:
    """Yield all lines as one batch, or batches of `size`, without reading ahead."""
    if size is None:
        yield lines
        return
    while batch := list(islice(lines, size)):
        yield batch


def _arguments(line: Line, queue: str | None, *, raw: bool) -> dict[str, Any]:
    value = _parsed(line)
    if raw:
        return {"payload": value, "queue": queue}
    if not isinstance(value, dict):
        raise BadLine(line.number, f"not an object but a {type(value).__name__}; see --raw.")
    if unknown := value.keys() - OPTIONS:
        raise BadLine(
            line.number,
            f"unknown key(s) {', '.join(sorted(map(repr, unknown)))}; "
            f"the keys are {', '.join(sorted(OPTIONS))}.",
        )
    if "payload" not in value:
        raise BadLine(line.number, "no payload; for lines that are payloads themselves see --raw.")
    if value.get("queue", queue) is None:
        raise BadLine(line.number, "no queue; name it in the line or with --queue.")
    return {"queue": queue, **value, **_moments(line, value)}


def _parsed(line: Line) -> Any:
    try:
        return json.loads(
            line.text.decode(),
            parse_constant=_refuse_constant,
            object_pairs_hook=_object_without_doubles,
        )
    except (ValueError, RecursionError) as error:
        raise BadLine(line.number, f"not JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _object_without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; JSON itself would quietly keep the last of two equal keys."""
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {double!r} stands twice in one object")
    return value


_EXAMPLES = {
    "activate_at": "write it in ISO 8601 with its offset, such as 2026-12-24T10:00+01:00",
    "activate_in": "write seconds, or ISO 8601 such as PT5M",
    "expires_in": "write seconds, or ISO 8601 such as PT5M",
}


def _parse_duration(text: str) -> timedelta | None:
    """Return a duration, None for a text without a number, which Django takes for zero."""
    return parse_duration(text) if any(character.isdigit() for character in text) else None


def _moments(line: Line, value: dict[str, Any]) -> dict[str, Any]:
    """Return the options that JSON can only write as text, as what they mean."""
    meant = {}
    for name, parse in (
        ("activate_at", parse_datetime),
        ("activate_in", _parse_duration),
        ("expires_in", _parse_duration),
    ):
        text = value.get(name)
        if isinstance(text, str):
            try:
                meant[name] = parse(text)
            except (ValueError, OverflowError) as error:
                raise BadLine(line.number, f"{name} {text!r}: {error}.") from error
            if meant[name] is None:
                raise BadLine(line.number, f"{name} {text!r} cannot be read; {_EXAMPLES[name]}.")
    moment = meant.get("activate_at")
    if isinstance(moment, datetime) and moment.utcoffset() is None:
        raise BadLine(
            line.number,
            f"activate_at {value['activate_at']!r} has no offset; {_EXAMPLES['activate_at']}.",
        )
    return meant


def _published(line: Line, arguments: dict[str, Any], *, using: str) -> int | None:
    payload = arguments.pop("payload")
    try:
        return publish(payload, using=using, **arguments)
    except (ValueError, TypeError) as error:
        raise BadLine(line.number, error) from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put a CTRL-C off to the end of the block, so that what is counted is what is stored."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: came.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and before is not signal.SIG_IGN:
        raise KeyboardInterrupt


def _what_is_stored(committed: int) -> str:
    if committed:
        return f"The {committed:,} message(s) of earlier batches are stored, nothing after them."
    return "Nothing was stored."


def _summary(progress: Progress) -> str:
    ignored = (
        f", {progress.ignored:,} of them left out because their timer is there already"
        if progress.ignored
        else ""
    )
    return f"Published {progress.total:,} message(s){ignored}."
