"""The documentation says what the code does: every option, column and setting, and samples run."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args
from unittest.mock import MagicMock

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.dispatch import Signal
from django.test import override_settings
from model_bakery import baker

from django_outbox import conf, handlers, messages, outbox, pytest_plugin, signals, testing
from django_outbox.models import Counter, DeadLetter, Lease, OutboxMessage, Schedule, Worker
from django_outbox.scheduling import declaring
from django_outbox.scheduling.specs import Cron, parse

from . import support

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted({*DOCS.rglob("*.md")} - {*DOCS.glob("_build/**/*.md")})]
COMMANDS = sorted(name for name, app in get_commands().items() if app == "django_outbox")

READERS_OWN = {"order": MagicMock(pk=7), "outbox": outbox, "transaction": transaction}
"""Names that a sample may use without saying where they come from."""


def page(name: str) -> str:
    return (DOCS / name).read_text()


def section(text: str, heading: str) -> str:
    """Return what stands between a second-level heading and the next one."""
    found = re.search(rf"(?ms)^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text)
    assert found is not None, f"no section {heading!r}"
    return found[1]


def first_cells(text: str) -> list[str]:
    """Return the names in backquotes in the first column of the tables in `text`."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return [name for cell in rows for name in re.findall(r"`([^`]+)`", cell)]


def terms(text: str) -> set[str]:
    """Return the names in backquotes that `text` defines, each followed by a line with a colon."""
    lines = re.findall(r"(?m)^(`.+)\n:", text)
    return {name for line in lines for name in re.findall(r"`([^`]+)`", line)}


def own_options(name: str) -> set[str]:
    """Return the command's options and positionals, without those that every command has."""
    shared = {action.dest for action in BaseCommand().create_parser("", "")._actions}
    parser = load_command_class("django_outbox", name).create_parser("manage.py", name)
    return {
        option
        for action in parser._actions
        if action.dest not in shared
        for option in action.option_strings or [str(action.metavar)]
    }


def blocks(language: str) -> list[Any]:
    """Return each fenced block of the language with an id that says where it stands."""
    found_blocks = []
    for path in PAGES:
        text = path.read_text()
        for found in re.finditer(rf"(?ms)^( *)```{language}\n(.*?)^\1```$", text):
            line = text.count("\n", 0, found.start()) + 2
            code = textwrap.dedent(found[2])
            found_blocks.append(pytest.param(code, id=f"{path.relative_to(ROOT)}:{line}"))
    return found_blocks


# What is there is documented, and what is documented is there.


@pytest.mark.parametrize("environment", ["run -e demo", "run"])
def test_the_readme_has_the_command_on_a_line_of_its_own(environment: str) -> None:
    command = f"python3 -m pip install tox && python3 -m tox {environment}"
    assert command in (ROOT / "README.md").read_text().splitlines()


def test_every_setting_is_documented_with_its_default() -> None:
    rows = re.findall(r"(?m)^\| `([A-Z_]+)` \| `([^`]+)` \|", page("reference/settings.md"))
    assert {name: ast.literal_eval(default) for name, default in rows} == conf.DEFAULTS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_documented(name: str) -> None:
    cells = [cell.split()[0] for cell in first_cells(section(page("reference/commands.md"), name))]
    documented = {cell for cell in cells if cell.startswith("--") or cell.isupper()}
    assert documented == own_options(name) - {"--database"}


def test_every_command_takes_the_database() -> None:
    assert all("--database" in own_options(name) for name in COMMANDS)


def test_every_command_is_documented_and_no_other() -> None:
    headings = re.findall(r"(?m)^## (\w+)$", page("reference/commands.md"))
    assert sorted(headings) == COMMANDS


@pytest.mark.parametrize("model", [OutboxMessage, DeadLetter, Schedule, Lease, Worker, Counter])
def test_every_column_is_documented(model: Any) -> None:
    text = section(page("reference/models.md"), model.__name__)
    text = text.partition("| `failure_reason` | means |")[0]
    assert sorted(first_cells(text)) == sorted(field.column for field in model._meta.fields)
    assert model._meta.db_table in text


def test_every_reason_is_documented() -> None:
    text = section(page("reference/models.md"), "DeadLetter")
    table = text.partition("| `failure_reason` | means |")[2]
    assert sorted(first_cells(table)) == sorted(DeadLetter.Reason.values)
    assert sorted(DeadLetter.Reason.values) == sorted(get_args(messages.Reason))


@pytest.mark.parametrize("name", outbox.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    reference = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    assert re.search(rf"(?m)(`|outbox\.|^## .*\b){name}\b", reference)


ALSO = (ValueError, TransactionManagementError)
"""What an exception of the package may also be."""


def test_every_exception_is_documented_as_what_it_is() -> None:
    rows = re.findall(r"(?m)^\| `(\w+)` \| (?:`(\w+)`)? ?\|", page("reference/errors.md"))
    offered = {name: getattr(outbox, name) for name in outbox.__all__}
    errors = {
        name: next((other.__name__ for other in kind.__mro__ if other in ALSO), "")
        for name, kind in offered.items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert dict(rows) == errors


def test_every_check_is_documented() -> None:
    modules = (ROOT / "django_outbox").glob("*checks.py")
    source = "".join(module.read_text() for module in modules)
    ids = set(re.findall(r"django_outbox\.[EWI]\d{3}", source))
    assert set(first_cells(page("reference/checks.md"))) >= ids
    assert ids == set(re.findall(r"django_outbox\.[EWI]\d{3}", page("reference/checks.md")))


def test_every_signal_is_documented() -> None:
    names = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert set(first_cells(page("reference/signals.md"))) == names


def test_every_argument_of_publish_is_documented() -> None:
    text = section(page("reference/publishing.md"), "publish")
    assert terms(text) == set(inspect.signature(outbox.publish).parameters)


def test_every_option_of_a_handler_is_documented() -> None:
    text = page("reference/handlers.md").partition("## ")[0]
    assert terms(text) == set(inspect.signature(outbox.handler).parameters)


def test_every_attribute_of_a_message_is_documented() -> None:
    attributes = {name for name in outbox.Message.__dataclass_fields__ if name[0] != "_"}
    assert set(first_cells(section(page("reference/handlers.md"), "Message"))) == attributes


def test_every_event_in_the_log_is_documented() -> None:
    package = (ROOT / "django_outbox").rglob("*.py")
    used = {e for path in package for e in re.findall(r'"event": "(\w+)"', path.read_text())}
    table = section(page("reference/worker.md"), "Log records").partition("`phase` is")[0]
    assert set(first_cells(table)) - {"event"} == used


@pytest.mark.parametrize("name", testing.__all__)
def test_every_name_of_the_testing_kit_is_documented(name: str) -> None:
    assert f"`{name}`" in page("reference/testing.md")


@pytest.mark.parametrize(
    "name", ["drain", "published", "assert_published", "tick_schedules", "FakeOutbox"]
)
def test_the_testing_kit_takes_the_documented_arguments(name: str) -> None:
    text = section(page("reference/testing.md"), name)
    found = re.search(rf"(?m)^{name}\((.*)\)", text)
    assert found is not None
    documented = [part.partition("=")[0].strip(" *") for part in found[1].split(",")]
    parameters = inspect.signature(getattr(testing, name)).parameters
    assert [part for part in documented if part] == list(parameters)


def test_what_a_fake_outbox_has_is_documented() -> None:
    text = section(page("reference/testing.md"), "FakeOutbox")
    public = {name for name in dir(testing.FakeOutbox()) if not name.startswith("_")}
    assert terms(text) == public


def test_what_a_stored_message_has_besides_is_documented() -> None:
    text = section(page("reference/testing.md"), "published")
    stored = testing.StoredMessage.__dataclass_fields__.keys()
    assert all(f"`{name}`" in text for name in stored - outbox.Message.__dataclass_fields__.keys())


def test_every_fixture_is_documented() -> None:
    fixtures = re.findall(r"@pytest\.fixture\ndef (\w+)", inspect.getsource(pytest_plugin))
    assert terms(section(page("reference/testing.md"), "Fixtures")) == set(fixtures)


def test_every_answer_to_a_timer_conflict_is_documented() -> None:
    [*conflicts] = get_args(outbox.TimerConflict)
    head = next(line for line in page("reference/timers.md").splitlines() if "| `" in line)
    assert re.findall(r"`(\w+)`", head) == conflicts


def test_every_argument_of_schedule_is_documented() -> None:
    text = section(page("reference/schedules.md"), "schedule")
    assert terms(text) == set(inspect.signature(outbox.schedule).parameters)


@pytest.mark.parametrize("name", ["schedule", "unschedule", "scheduled", "run_schedules"])
def test_the_functions_of_schedules_take_the_documented_arguments(name: str) -> None:
    text = section(page("reference/schedules.md"), name)
    found = re.search(rf"(?ms)^```text\n@?outbox\.{name}\((.*?)\)( ->|$)", text)
    assert found is not None
    documented = [part.partition("=")[0].strip(" *\n") for part in found[1].split(",")]
    parameters = inspect.signature(getattr(outbox, name)).parameters
    assert [part for part in documented if part] == list(parameters)


def test_what_a_stop_token_has_is_documented() -> None:
    text = section(page("reference/schedules.md"), "StopToken")
    documented = {name.partition("(")[0] for name in terms(text)}
    assert documented == {name for name in dir(outbox.StopToken) if not name.startswith("_")}


DAYS_OF_CHANGE = re.findall(
    r"(?m)^\| `(@cron [^`]+)` \| (\d{4}-\d\d-\d\d) \| (.+) \|$", page("reference/schedules.md")
)


@pytest.mark.parametrize(("spec", "day", "documented"), DAYS_OF_CHANGE)
def test_the_boundaries_on_a_day_of_change_are_as_documented(
    spec: str, day: str, documented: str
) -> None:
    cron = parse(spec, default_zone="UTC")
    assert isinstance(cron, Cron)
    boundaries = list(boundaries_of_day(cron, date.fromisoformat(day)))
    if documented.endswith(" times"):
        assert documented == f"{len(boundaries)} times"
        return
    shown = [f"{b:%H:%MZ} ({b.astimezone(cron.zone):%H:%M %Z})" for b in boundaries]
    assert re.findall(r"[\d:]+Z \([^)]+\)", documented) == shown


def boundaries_of_day(cron: Cron, day: date) -> Iterator[datetime]:
    boundary = datetime.combine(day, time(), cron.zone).astimezone(UTC) - timedelta(microseconds=1)
    while (boundary := cron.after(boundary)).astimezone(cron.zone).date() == day:
        yield boundary


def test_every_page_is_linked_where_it_says() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in PAGES
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", path.read_text())
        if not (path.parent / target).exists()
    ]
    assert broken == []


FAILURES = {
    found[1]: re.findall(r"`([\w/]+\.py)::(\w+)`", found[2])
    for found in re.finditer(r"(?m)^\| ([A-L]\d\d) \|(.+)$", page("explanation/public-failures.md"))
}
"""The tests that are said to hold each kind of failure, as file and name."""


@pytest.mark.parametrize("failure", FAILURES)
def test_every_failure_of_others_has_tests_that_are_there(failure: str) -> None:
    named = FAILURES[failure]

    assert named
    for file, name in named:
        assert re.search(rf"(?m)^ *(async )?def {name}\(", (ROOT / "tests" / file).read_text())


def test_every_failure_that_a_test_names_is_in_the_table() -> None:
    comments = "".join(
        re.sub(r"(?m)^[^#\n]*(#?)", r"\1", path.read_text())
        for path in (ROOT / "tests").rglob("test_*.py")
    )

    assert {*re.findall(r"\b[A-L]\d\d\b", comments)} <= FAILURES.keys()


# Samples run.


SHOP = ("models", "services", "devices", "outbox_handlers")
"""The modules of the samples' app."""


class Samples:
    """A place to run samples in: an app `shop` that has whatever is imported from it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("shop", *(f"shop.{n}" for n in SHOP)):
            module: Any = ModuleType(name)
            module.__getattr__ = lambda _: MagicMock()
            module.__path__ = []
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(handlers.registry, "_by_queue", {})
        monkeypatch.setattr(declaring, "_declared", {})

    def run(self, code: str) -> dict[str, Any]:
        """Run the code as a module of the app and return its names."""
        names = {"__name__": "shop.sample", "__package__": "shop", **READERS_OWN}
        exec(compile(code, "sample", "exec", dont_inherit=True), names)
        return names


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> Samples:
    return Samples(monkeypatch)


@pytest.mark.django_db
@pytest.mark.parametrize("code", blocks("python"))
def test_a_python_sample_runs(code: str, samples: Samples) -> None:
    if "models.Model" in code:
        pytest.skip("Django lets no test define a model of an app that is not installed")
    baker.make(DeadLetter, queue="orders", payload=b"{}", headers={})
    names = samples.run(code)
    given = names.get("OUTBOX", {})
    assert not given.keys() - conf.DEFAULTS.keys()
    with override_settings(OUTBOX=given):
        declaring.declarations()


@pytest.mark.parametrize("code", blocks("python"))
def test_what_a_python_sample_calls_takes_these_arguments(code: str) -> None:
    for call in outbox_calls(ast.parse(code)):
        name = call.func.attr  # type: ignore[attr-defined]
        keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        inspect.signature(getattr(outbox, name)).bind(*call.args, **keywords)


def outbox_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "outbox"
        ):
            yield node


class Heartbeats:
    """What the samples of the page on heartbeats define, and the one device there is."""

    def __init__(self, samples: Samples) -> None:
        self.device = SimpleNamespace(pk=7, last_seen=None, is_online=False, save=lambda: None)
        self.look = MagicMock(return_value=self.device)
        models: Any = sys.modules["shop.models"]
        models.Device = MagicMock()
        models.Device.objects.select_for_update.return_value.get = self.look
        first, *others = blocks_of("how-to/heartbeats.md")
        self.names = vars(sys.modules["shop.devices"])
        self.names |= samples.run(first)
        for code in others:
            self.names |= samples.run(code)

    def drain(self) -> int:
        return testing.drain(advance=2 * self.names["SILENCE"])


def blocks_of(name: str) -> list[str]:
    return [block.values[0] for block in blocks("python") if f"docs/{name}:" in block.id]


@pytest.fixture
def heartbeats(samples: Samples) -> Heartbeats:
    return Heartbeats(samples)


@pytest.mark.django_db
def test_the_heartbeats_of_the_page_end_in_one_message(heartbeats: Heartbeats) -> None:
    ping = heartbeats.names["ping"]
    assert ping(7) == ping(7)
    assert heartbeats.device.is_online
    assert heartbeats.drain() == 1
    assert not heartbeats.device.is_online
    assert testing.published() == []


@pytest.mark.django_db
def test_the_handler_of_the_page_sees_a_ping_that_fell_into_the_gap(heartbeats: Heartbeats) -> None:
    ping = heartbeats.names["ping"]
    ping(7)
    answers: list[Any] = []

    def ping_first(pk: int) -> Any:
        heartbeats.look.side_effect = None
        answers.append(ping(pk))
        return heartbeats.device

    heartbeats.look.side_effect = ping_first
    assert heartbeats.drain() == 2
    assert answers == [None]
    assert not heartbeats.device.is_online


@pytest.mark.django_db
def test_the_page_publishes_again_what_fell_into_the_gap(heartbeats: Heartbeats) -> None:
    expiries: list[int] = []

    @outbox.handler("session-idle")
    def expire(message: outbox.Message) -> None:
        expiries.append(message.id)
        if len(expiries) == 1:
            heartbeats.names["session_seen"]("s")

    heartbeats.names["session_seen"]("s")
    assert heartbeats.drain() == 3
    assert len(set(expiries)) == 2


@pytest.mark.django_db
@pytest.mark.parametrize("query", blocks("sql"))
def test_a_query_runs(query: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(query)
        assert cursor.fetchall() == []


@pytest.mark.parametrize("text", blocks("(?:console|ini|text|yaml)"))
def test_a_command_line_can_be_parsed(text: str) -> None:
    for line in re.findall(r"manage\.py (outbox_\w+[^|\n]*)", text.replace('", "', " ")):
        name, *arguments = shlex.split(line.partition('"]')[0].removesuffix("&"))
        parser = load_command_class("django_outbox", name).create_parser("manage.py", name)
        parser.parse_args(arguments)


@support.committed
def test_the_example_of_the_readme_delivers(samples: Samples) -> None:
    code = blocks("python")[0].values[0]
    names = samples.run(code)
    mailed: list[Any] = []
    names["mail_customer"] = mailed.append
    names["Order"] = MagicMock()
    names["Order"].objects.create.return_value.pk = 7
    names["place_order"]("Ada", ["a lamp"])
    support.drain("orders")
    assert mailed == [7]
    assert not OutboxMessage.objects.exists()


@support.committed
def test_the_status_as_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    from django.core.management import call_command

    support.publish({"order_id": 7})
    call_command("outbox_status", "--json")
    table = section(page("reference/commands.md"), "outbox_status")
    keys = re.findall(r"(?m)^\| `[\w ]+` \| `(\w+)` \|", table)
    [queue] = [q for q in json.loads(capsys.readouterr().out)["queues"] if q["queue"] == "orders"]
    assert set(queue) == {*keys, "queue", "has_handler"}
