"""docs/requirements.md and the tests name the same requirements."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
PAGE: Final = TESTS.parent / "docs" / "requirements.md"
LINE: Final = re.compile(r"^- \*\*([A-Z]{3}-\d+)\*\*( \*\(planned\)\*)?", re.MULTILINE)
SECTIONS: Final = re.compile(r"^## .* \(([A-Z, ]+)\)$", re.MULTILINE)


def test_every_requirement_that_a_test_names_is_documented() -> None:
    """USE-6"""
    prefixes = {prefix for names in SECTIONS.findall(_page()) for prefix in names.split(", ")}
    named = {each for each in _named_by_tests() if each.partition("-")[0] in prefixes}
    assert named - _documented().keys() == set()


def test_every_requirement_has_a_test_unless_it_is_planned() -> None:
    """USE-6"""
    built = {each for each, is_planned in _documented().items() if not is_planned}
    assert built - _named_by_tests() == set()


def test_a_planned_requirement_has_no_test() -> None:
    """USE-6"""
    planned = {each for each, is_planned in _documented().items() if is_planned}
    assert planned & _named_by_tests() == set()


def test_every_requirement_stands_once_in_its_section() -> None:
    """USE-6"""
    named = [name for name, _ in LINE.findall(_page())]
    assert len(named) == len(set(named))
    for section in _page().split("\n## ")[1:]:
        prefixes = re.findall(r"\b[A-Z]{3}\b", section.partition("\n")[0])
        assert {name.partition("-")[0] for name, _ in LINE.findall(section)} == set(prefixes)


def _page() -> str:
    return PAGE.read_text(encoding="utf-8")


def _documented() -> dict[str, bool]:
    """Every requirement of the page, and whether it is planned."""
    return {name: bool(planned) for name, planned in LINE.findall(_page())}


def _named_by_tests() -> set[str]:
    return set(re.findall(r"\b[A-Z]{3}-\d+\b", "\n".join(_docstrings())))


def _docstrings() -> Iterator[str]:
    """The docstrings of all test functions."""
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (node.name.startswith("test_") and ast.get_docstring(node)) or ""
