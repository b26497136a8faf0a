"""Every scenario of S3, and every line of S1, is named by a test of this room."""

import ast
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
LISTS: Final = {"S3": "scenarios.txt", "S1": "scenarios_s1.txt"}


@pytest.mark.parametrize("seed", LISTS)
def test_every_scenario_is_named_by_the_docstring_of_a_test(seed: str) -> None:
    """A scenario that no test names has been forgotten; a name that is none is misspelled."""
    names = (HERE / LISTS[seed]).read_text(encoding="utf-8").splitlines()
    named = {title for path in HERE.glob("test_*.py") for title in _titles(path, seed)}
    assert names
    assert len(names) == len(set(names))
    assert set(names) - named == set()
    assert named - set(names) == set()


def _titles(path: Path, seed: str) -> set[str]:
    """What stands between the seed's name and the colon in the docstrings of a module's tests."""
    tests = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    told = [" ".join((ast.get_docstring(test) or "").split()) for test in tests]
    return {one[3:].partition(":")[0] for one in told if one.startswith(f"{seed} ")}
