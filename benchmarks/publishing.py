"""Measure publishing against bare statements: `python -m benchmarks.publishing`.

A bare statement is what a project would write by hand: a cursor of Django's, and an INSERT of the
same columns. `statement` is the package's own statement executed in that way, which parts what
PostgreSQL does from what Python does; `bare that encodes` also makes JSON of the payload, as
whoever has an object to store must. All run in turns, in a random order, so that what else the
machine does is shared by all; ratios are of medians.

`publish`, in one transaction and each in its own, is given as how often the time of a bare INSERT
it takes. `publish_many` is given as the share of a bare INSERT's messages a second that it reaches.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from benchmarks.claims import Recorder, show
from benchmarks.common import PAYLOAD
from benchmarks.databases import Databases, databases

JSON = {"content-type": "application/json"}
OBJECT = {
    "items": [
        {"id": n, "name": f"the thing number {n}", "price": 12.5, "tags": ["new", "blue"]}
        for n in range(60)
    ]
}

BARE = """
INSERT INTO django_outbox_message
    (queue, payload, headers, correlation_id, ref, max_attempts, next_attempt_at)
VALUES (%s, %s, %s::jsonb, %s, %s, %s, clock_timestamp())
RETURNING id
"""

BARE_MANY = """
INSERT INTO django_outbox_message
    (queue, payload, headers, correlation_id, max_attempts, next_attempt_at, expires_at)
SELECT %s, body, headers::jsonb, correlation_id, %s, clock_timestamp(), %s
FROM unnest(%s::bytea[], %s::text[], %s::text[]) AS draft (body, headers, correlation_id)
RETURNING id
"""


class Message(NamedTuple):
    """What is published."""

    name: str
    payload: Any
    headers: Mapping[str, str] | None = None

    @property
    def body(self) -> bytes:
        return json.dumps(self.payload, separators=(",", ":")).encode()

    @property
    def stored_headers(self) -> str:
        return json.dumps({**(self.headers or {}), **JSON})


MESSAGES = (
    Message("256 bytes", PAYLOAD),
    Message("an object of 4 KB", OBJECT),
    Message("256 bytes, 3 headers", PAYLOAD, {"tenant": "acme", "source": "shop", "kind": "new"}),
)

Way = Callable[[], None]


def main() -> None:
    options = parsed()
    with databases(postgres=options.postgres, server=options.server) as made:
        rows = list(measured(made, rounds=options.rounds, messages=options.messages))
        found = {"PostgreSQL": made.version, "publishing": rows}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"PostgreSQL {found['PostgreSQL']}, {options.rounds} rounds of {options.messages:,}\n")
    show(rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--postgres", type=int, choices=(16, 18), default=18, help="embedded")
    where.add_argument("--server", metavar="URL", help="a server to make a database on, instead")
    parser.add_argument("--rounds", type=positive, default=5, metavar="N")
    parser.add_argument("--messages", type=positive, default=500, metavar="N", help="in a round")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    return parser.parse_args()


def positive(text: str) -> int:
    """Return the number, which must be one at least."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def measured(made: Databases, *, rounds: int, messages: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each message and each way to publish it."""
    for message in MESSAGES:
        with made.fresh() as url, django_on(url):
            single = {
                "bare": bare(message),
                "encoding": bare(message, encoding=True),
                "statement": own(message),
                "publish": one(message),
            }
            many = {
                "bare": bare_many(message, messages),
                "encoding": bare_many(message, messages, encoding=True),
                "statement": own_many(message, messages),
                "publish": publish_many(message, messages),
            }
            for case, each in (("in one transaction", False), ("each in its own", True)):
                took = [in_turns(single, messages, each=each) for _ in range(rounds)]
                yield figures(f"publish, {case}", message, took)
            took = [in_turns(many, 1, each=True) for _ in range(rounds)]
            yield figures(f"publish_many of {messages:,}", message, took, share=True)


def figures(
    case: str, message: Message, took: list[dict[str, float]], *, share: bool = False
) -> dict[str, Any]:
    """Return the medians of the rounds' ratios, and the worst of them."""

    def ratios(way: str, base: str) -> list[float]:
        each = [a_round[way] / a_round[base] for a_round in took]
        return [1 / ratio for ratio in each] if share else each

    to_bare = ratios("publish", "bare")
    return {
        "case": case,
        "message": message.name,
        "bare µs": statistics.median(a_round["bare"] for a_round in took) * 1e6,
        "to bare": statistics.median(to_bare),
        "to bare that encodes": statistics.median(ratios("publish", "encoding")),
        "worst": min(to_bare) if share else max(to_bare),
        "to statement": statistics.median(ratios("publish", "statement")),
        "statement to bare": statistics.median(ratios("statement", "bare")),
    }


def in_turns(ways: Mapping[str, Way], times: int, *, each: bool) -> dict[str, float]:
    """Go each way so many times, in turns, and return the median seconds of each."""
    from django.db import connection, transaction

    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_outbox_message")
    took: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    with nullcontext() if each else transaction.atomic():
        for _ in range(times):
            random.shuffle(names)
            for name in names:
                began = time.perf_counter()
                with transaction.atomic() if each else nullcontext():
                    ways[name]()
                took[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


@contextmanager
def django_on(url: str) -> Iterator[None]:
    """Let Django's connection be one to this database until the block ends."""
    from django.db import connection

    usual = connection.settings_dict["NAME"]
    connection.settings_dict["NAME"] = urlsplit(url).path.removeprefix("/")
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = usual


# Ways to publish


def bare(message: Message, *, encoding: bool = False) -> Way:
    """Write a message as a project would by hand; with `encoding` from the object each time."""
    body, headers = message.body, message.stored_headers

    def way() -> None:
        stored = message.body if encoding else body
        execute(BARE, ("bench", stored, headers, str(uuid4()), None, None))

    return way


def own(message: Message) -> Way:
    """Execute the statement of the package, with what it would be given."""
    from django_outbox.store.messages import insert

    recorder = Recorder()
    insert(recorder, drafts(message, 1)[0], notify=True)
    statement, params = recorder.executed[0]
    return lambda: execute(statement, {**params, "correlation_id": str(uuid4())})


def one(message: Message) -> Way:
    from django_outbox import outbox

    def way() -> None:
        outbox.publish(message.payload, queue="bench", headers=message.headers)

    return way


def bare_many(message: Message, count: int, *, encoding: bool = False) -> Way:
    """Write many messages by hand, in one statement."""
    bodies, headers = [message.body] * count, [message.stored_headers] * count

    def way() -> None:
        ids = [str(uuid4()) for _ in range(count)]
        stored = [message.body for _ in range(count)] if encoding else bodies
        execute(BARE_MANY, ("bench", None, None, stored, headers, ids))

    return way


def own_many(message: Message, count: int) -> Way:
    from django_outbox.store.messages import insert_many

    recorder = Recorder()
    insert_many(recorder, drafts(message, count), notify=True)
    statement, params = recorder.executed[0]
    return lambda: execute(statement, params)


def publish_many(message: Message, count: int) -> Way:
    from django_outbox import outbox

    payloads = [message.payload] * count

    def way() -> None:
        outbox.publish_many(payloads, queue="bench", headers=message.headers)

    return way


def drafts(message: Message, count: int) -> list[Any]:
    from django_outbox.messages import Draft

    headers = json.loads(message.stored_headers)
    return [
        Draft(queue="bench", body=message.body, headers=headers, correlation_id=str(uuid4()))
        for _ in range(count)
    ]


def execute(statement: str, params: Any) -> None:
    """Run a statement as a project does, and fetch all that it returns."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        cursor.fetchall()


if __name__ == "__main__":
    main()
