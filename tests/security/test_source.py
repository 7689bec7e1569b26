"""What the package's own source never does, whatever is stored: run it, import it, or trust it.

Read from the source itself, so that a line that nobody's test reaches is held to it too.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import django_outbox

PACKAGE = Path(django_outbox.__path__[0])
SOURCES = sorted(PACKAGE.rglob("*.py"))
TEMPLATES = sorted(PACKAGE.rglob("*.html"))

UNTRUSTING = {
    "cloudpickle",
    "code",
    "dill",
    "jsonpickle",
    "marshal",
    "pickle",
    "pickletools",
    "runpy",
    "shelve",
    "yaml",
}
"""Modules that make objects or code of bytes."""

RUNNING = {"__import__", "compile", "eval", "exec", "execfile"}
"""Builtins that run text."""

IMPORTING = {"autodiscover_modules", "import_module", "import_string", "load_module"}
"""Functions that import what they are given the name of."""


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[Path, Any]]:
    """Return every node of these kinds in the package, with its file."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kinds):
                yield path, node


def called(call: ast.Call) -> str:
    """Return the last part of the name that is called."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def test_the_package_was_found() -> None:
    assert {"codecs.py", "store/leases.py"} <= {str(s.relative_to(PACKAGE)) for s in SOURCES}
    assert TEMPLATES


# Code


def test_nothing_is_imported_that_makes_objects_of_bytes() -> None:
    imported = {
        place(path, node): names
        for path, node in nodes(ast.Import, ast.ImportFrom)
        if (
            names := {
                name.partition(".")[0]
                for name in (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""] * (node.level == 0)
                )
            }
            & UNTRUSTING
        )
    }
    assert imported == {}


def test_no_text_is_run() -> None:
    run = [
        place(path, call)
        for path, call in nodes(ast.Call)
        if isinstance(call.func, ast.Name) and call.func.id in RUNNING
    ]
    assert run == []


def test_only_settings_and_apps_name_what_is_imported() -> None:
    importers = {path.name for path, call in nodes(ast.Call) if called(call) in IMPORTING}
    assert importers == {"apps.py", "conf.py"}


def test_no_shell_is_started() -> None:
    for path, call in nodes(ast.Call):
        assert called(call) not in {"popen", "system"}, place(path, call)
        assert not any(keyword.arg == "shell" for keyword in call.keywords), place(path, call)


# SQL


def is_constant(node: ast.expr) -> bool:
    """Tell whether it is a name in capitals, a text, or a function's answer to such."""
    match node:
        case ast.Name(id=name):
            return name.isupper()
        case ast.Call(args=given, keywords=[]):
            return all(map(is_constant, given))
    return isinstance(node, ast.Constant)


def test_every_statement_is_a_constant_of_the_store() -> None:
    run = [
        (path, call)
        for path, call in nodes(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"execute", "executemany"}
        if not (isinstance(call.func.value, ast.Call) and called(call.func.value) == "super")
    ]
    elsewhere = {str(path.relative_to(PACKAGE)) for path, _ in run if "store" not in path.parts}
    composed = [
        place(path, call)
        for path, call in run
        if "store" in path.parts and not is_constant(call.args[0])
    ]
    # LISTEN takes no parameter, and a migration's limits to its waiting are constants.
    assert elsewhere == {"worker/database.py", "migration_operations.py"}
    # Which of its own five statements `store.schema` runs.
    assert [one.partition(":")[0] for one in composed] == ["store/schema.py"]


def test_what_is_joined_into_a_statement_is_a_constant() -> None:
    joined = [
        (place(path, value), ast.unparse(value.value))
        for path, string in nodes(ast.JoinedStr)
        if "store" in path.parts and re.search("SELECT|INSERT|UPDATE|DELETE", ast.unparse(string))
        for value in string.values
        if isinstance(value, ast.FormattedValue) and not is_constant(value.value)
    ]
    assert joined == []


def test_the_orm_is_given_no_sql() -> None:
    raw = [
        place(path, call)
        for path, call in nodes(ast.Call)
        if called(call) in {"RawSQL", "extra", "raw"}
    ]
    assert raw == []


# HTML


def test_only_constants_are_marked_safe() -> None:
    for path, call in nodes(ast.Call):
        if called(call) in {"SafeString", "mark_safe"}:
            assert isinstance(call.args[0], ast.Constant), place(path, call)
        if called(call) in {"format_html", "format_html_join"}:
            text = call.args[called(call) == "format_html_join"]
            assert isinstance(text, ast.Constant), place(path, call)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_turns_escaping_off(template: Path) -> None:
    text = template.read_text()

    assert "autoescape" not in text
    assert "|safe" not in text.replace(" ", "")
    assert "<script>" not in text


# Files


def test_only_a_person_at_a_command_line_names_a_file() -> None:
    openers = {
        path.name
        for path, call in nodes(ast.Call)
        if called(call) in {"open", "read_bytes", "read_text", "write_bytes", "write_text"}
    }
    assert openers == {"outbox_publish.py"}


# Reprs

SECRETS = {"bodies", "body", "headers", "payload"}
"""Fields that hold what somebody else wrote."""


def kept_values() -> list[Any]:
    """Return the package's dataclasses and named tuples that have such a field."""
    found = []
    for module in pkgutil.walk_packages(django_outbox.__path__, "django_outbox."):
        if "migrations" in module.name or "pytest_plugin" in module.name:
            continue
        for _, kind in inspect.getmembers(import_module(module.name), inspect.isclass):
            if kind.__module__ == module.name and fields_of(kind) & SECRETS:
                found.append(pytest.param(kind, id=kind.__qualname__))
    return found


def fields_of(kind: type) -> set[str]:
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    return set(getattr(kind, "_fields", ()))


@pytest.mark.parametrize("kind", kept_values())
def test_no_repr_shows_what_somebody_else_wrote(kind: Any) -> None:
    values = {name: "SECRET-XYZ" if name in SECRETS else 0 for name in fields_of(kind)}
    if hasattr(kind, "_make"):
        value: Any = kind(**values)
    else:
        value = object.__new__(kind)
        for name, secret in values.items():
            object.__setattr__(value, name, secret)

    assert "SECRET-XYZ" not in repr(value)
