"""Any text is a spec that goes on and on, or is refused with what to write."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from django_outbox import outbox
from django_outbox.scheduling.specs import Spec, parse

START = datetime(2026, 3, 1, tzinfo=UTC)

numbers = st.integers(-1, 100).map(str) | st.sampled_from(["00", "007", "9" * 30, "٣", "1.5", ""])
names = st.sampled_from(
    ["*", "?", "L", "W", "1W", "MON", "sun", "JAN", "7", "FOO", "1#2", "H", "R", "*/*", ","]
)
atoms = numbers | names
ranges = st.builds("{}-{}".format, atoms, atoms) | atoms
steps = st.builds("{}/{}".format, ranges, numbers) | ranges
fields = st.lists(steps, min_size=1, max_size=3).map(",".join)
zones = st.sampled_from(
    [
        *("", "UTC", "America/New_York", "Australia/Lord_Howe", "Europe/berlin", "Factory", "../x"),
        *("/etc/passwd", "posix/UTC", "Nowhere/Land", "CON", "\x00", "UTC UTC", "é", "a" * 300),
    ]
)
crons = st.builds(
    "{}{} {}".format,
    st.sampled_from(["@cron ", "@cron  ", "@CRON ", "", "@cron\t", "@cron\n"]),
    st.lists(fields, min_size=3, max_size=7).map(" ".join),
    zones,
)
everies = st.builds(
    "{}{}{}".format,
    st.sampled_from(["@every ", "@every", "@every  ", "@every -", "@every +", "every "]),
    numbers,
    st.sampled_from(["s", "m", "h", "d", "ms", "w", "S", "", "s ", " s", "\n", "s\n"]),
)
texts = everies | crons | st.text(st.characters(), max_size=300)


def read(text: str) -> tuple[Spec | None, str]:
    """Return the spec, or why it is refused."""
    try:
        return parse(text, default_zone="UTC"), ""
    except outbox.InvalidSpec as error:
        return None, str(error)


@given(texts)
@example("@cron 0 0 29 2 MON")
@example("@cron 0 0 31 2,4,6,9,11 *")
@example("@cron */7 */5 */3 */2 */2 Australia/Lord_Howe")
@example("@every 9" + "0" * 4300 + "d")
def test_any_text_is_a_spec_or_refused_in_no_time(text: str) -> None:
    began = time.monotonic()
    spec, refusal = read(text)

    if spec is None:
        assert re.search("@every|@cron|zone", refusal)
        assert refusal.isprintable()
        assert len(refusal) < 1000
    else:
        boundaries = [START]
        for _ in range(5):
            boundaries.append(spec.after(boundaries[-1]))
        assert boundaries == sorted(set(boundaries))
    assert time.monotonic() - began < 2


@given(texts, st.timedeltas(timedelta(), timedelta(days=3000)))
def test_the_first_boundary_is_after_the_start(text: str, later: timedelta) -> None:
    spec, _ = read(text)

    if spec is not None:
        assert spec.first(START + later) > START + later
