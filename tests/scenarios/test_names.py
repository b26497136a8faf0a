"""Every scenario of S3 is named by a test of this room."""

import ast
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
NAMES: Final = (HERE / "scenarios.txt").read_text(encoding="utf-8").splitlines()


def test_every_scenario_is_named_by_the_docstring_of_a_test() -> None:
    """S3: a scenario that no test names has been forgotten; a name that is none is misspelled."""
    named = {title for path in HERE.glob("test_*.py") for title in _titles(path)}
    assert len(NAMES) == len(set(NAMES)) == 23
    assert set(NAMES) - named == set()
    assert named - set(NAMES) == set()


def _titles(path: Path) -> set[str]:
    """What stands between `S3 ` and the colon in the docstrings of a module's tests."""
    tests = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    told = [" ".join((ast.get_docstring(test) or "").split()) for test in tests]
    return {one[3:].partition(":")[0] for one in told if one.startswith("S3 ")}
