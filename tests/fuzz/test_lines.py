"""Any lines are published as they say, or refused with their number and nothing stored."""

from __future__ import annotations

import json
import re
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_outbox.models import OutboxMessage

KEYS = [
    *("headers", "correlation_id", "activate_in", "activate_at", "timer_id", "timer_conflict"),
    *("expires_in", "max_attempts", "queue", "unknown"),
]


def as_bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


texts = st.text(st.characters(), max_size=300)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(texts, below, max_size=3),
    max_leaves=8,
)
odd_values: list[Any] = [
    *("", "orders", "__reserved", "extend", "replace", "PT5M", "P99999999999D", "-PT1S", "1e400"),
    *("2026-12-24T10:00+01:00", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00+12:00"),
    *("2026-13-01", 0, -1, 1, 1e300, 2**31, 2**63, 10**400, True),
    *({"a": "b"}, {"content-type": "text/plain"}),
]
objects = st.fixed_dictionaries(
    {"payload": json_values},
    optional=dict.fromkeys(KEYS, st.sampled_from(odd_values) | json_values),
).map(lambda value: {"queue": "orders", **value})
lines = (
    (objects | json_values).map(json.dumps).map(as_bytes)
    | objects.map(partial(json.dumps, ensure_ascii=False)).map(as_bytes)
    | st.binary(max_size=100).map(lambda line: line.replace(b"\n", b""))
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines") / "lines"


@pytest.mark.django_db
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.lists(lines, min_size=1, max_size=3))
@example([b'{"payload": ' + b"[" * 100_000, b""])
@example([b'{"payload": ' + b"9" * 5_000 + b', "queue": "orders"}'])
@example([b'{"payload": "\\ud800", "queue": "orders"}'])
@example([b'{"payload": 1, "queue": "orders", "headers": {"a": "\\u0000"}}'])
@example([b'{"payload": 1, "queue": "orders", "activate_in": 1e999}'])
def test_any_lines_are_published_or_refused(file: Path, given_lines: list[bytes]) -> None:
    file.write_bytes(b"\n".join(given_lines))
    before = OutboxMessage.objects.count()

    refusal, said = run(file)

    stored = OutboxMessage.objects.count() - before
    if refusal is None:
        published = re.match(r"Published (\d+) message\(s\)(?:, (\d+) of them left out|\.)", said)
        assert published is not None, said
        assert stored <= int(published[1]) - int(published[2] or 0)
    else:
        assert re.match(r"Line [1-3]: .", refusal), refusal
        assert refusal.endswith("\nNothing was stored.")
        assert refusal.encode()
        assert len(refusal) < 2000
        assert stored == 0


def run(file: Path) -> tuple[Any, str]:
    """Return why the command refused the lines, if it did, and what it printed."""
    out = StringIO()
    try:
        call_command("outbox_publish", str(file), stdout=out)
    except CommandError as error:
        return str(error), out.getvalue()
    return None, out.getvalue()
