"""The example of `docs/howto/add-a-provider.md` applies and passes the suite."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DIFF: Final = ROOT / "docs" / "howto" / "add-a-provider.diff"
COPIED: Final = ("src", "tests", "docs/howto")
"""With the page that other cases are read from."""
SUITE: Final = ("tests/providers/test_conformance.py", "tests/providers/test_lemonsqueezy.py")
TIMEOUT_S: Final = 120.0


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository, as far as the example concerns it."""
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.skipif(shutil.which("git") is None, reason="git is needed to apply the diff")
def test_the_example_provider_applies_and_passes_the_suite(copy: Path) -> None:
    """PRV-9"""
    applied = _run(copy, "git", "apply", str(DIFF))
    if applied.returncode != 0:
        pytest.fail(f"it does not apply any more, mend {DIFF.relative_to(ROOT)}: {applied.stdout}")
    options = ("-p", "no:cacheprovider", "-k", "lemonsqueezy")
    tested = _run(copy, sys.executable, "-m", "pytest", *options, *SUITE)
    if tested.returncode != 0:
        pytest.fail(f"it fails, mend {DIFF.relative_to(ROOT)}:\n{tested.stdout}")


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """In the folder, with its package before the one that is installed."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Within a repository, git would leave out what is not below its own folder, and say nothing.
    alone = {"GIT_CEILING_DIRECTORIES": str(folder.parent), "PYTHONPATH": str(folder / "src")}
    return subprocess.run(
        command,
        cwd=folder,
        env=usual | alone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
