"""The reference lists every command, setting, code and kind of notification that exists."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import typer.main
from pydantic import BaseModel

from paidonce.bus.consumer import Consumer
from paidonce.cli import app
from paidonce.core.events import Code
from paidonce.core.notifications import NotificationKind
from paidonce.settings import Settings

DOCS: Final = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_command_is_listed() -> None:
    """USE-6 USE-2"""
    listed = set(_listed_commands(page("reference/commands.md")))
    assert {" ".join(path) for path in _commands(typer.main.get_command(app))} - listed == set()


def test_no_command_is_listed_that_does_not_exist() -> None:
    """USE-6 USE-2"""
    existing = {" ".join(path) for path in _commands(typer.main.get_command(app))}
    assert set(_listed_commands(page("reference/commands.md"))) - existing == set()


def test_every_setting_is_listed() -> None:
    """USE-6 USE-3"""
    words = set(re.findall(r"`(?:[a-z_.]*\.)?([a-z_]+)`", page("reference/settings.md")))
    assert set(_settings(Settings)) - words == set()


def test_every_code_of_an_event_is_listed() -> None:
    """USE-6"""
    text = page("reference/outcomes.md")
    assert [code for code in Code if f"`{code}`" not in text] == []


@pytest.mark.parametrize("name", ["howto/get-notified.md", "reference/settings.md"])
def test_every_kind_of_notification_is_listed(name: str) -> None:
    """USE-6 OBS-5"""
    text = page(name)
    assert [kind for kind in NotificationKind if f"`{kind}`" not in text] == []


def test_the_consumer_that_is_shown_can_be_made() -> None:
    """USE-6 BUS-1"""
    (code,) = re.findall(r"```python\n(.*?)```", page("reference/messages.md"), re.DOTALL)
    calls = [one for one in ast.walk(_parsed(code)) if isinstance(one, ast.Call)]
    (made,) = [one for one in calls if ast.unparse(one.func) == "Consumer"]
    named: dict[str, object] = {one.arg: None for one in made.keywords if one.arg}
    inspect.signature(Consumer).bind(*made.args, **named)


def _parsed(code: str) -> ast.AST:
    """Code in which `await` may stand outside of a function."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree: ast.AST = compile(code, "page", "exec", flags)
    return tree


def _commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all commands; a group that does something by itself is one, too."""
    subcommands = getattr(command, "commands", {})
    if path and (not subcommands or getattr(command, "invoke_without_command", False)):
        yield path
    for name, subcommand in subcommands.items():
        yield from _commands(subcommand, (*path, name))


def _listed_commands(text: str) -> Iterator[str]:
    """The commands in the first column of the tables; `list\\|show` stands for two."""
    for row in re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE):
        for code in re.findall(r"`([^`]+)`", row):
            words = re.split(r" (?=[\[A-Z0-9-])", code.replace("\\|", "|"))[0].split()
            *group, last = [word for word in words if re.fullmatch(r"[a-z|-]+", word)]
            for name in last.split("|"):
                yield " ".join([*group, name])


def _settings(model: type[BaseModel]) -> Iterator[str]:
    """The names of all settings, as they are written in the file."""
    for name, field in model.model_fields.items():
        nested = _models(field.annotation)
        if not nested:
            yield field.alias or name
        for one in nested:
            yield from _settings(one)


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [one for part in getattr(annotation, "__args__", ()) for one in _models(part)]
