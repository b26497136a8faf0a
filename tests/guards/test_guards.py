"""A test of the tests: each guard is taken away, and a test is seen to go red."""

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

import paidonce
from tests.guards.table import GUARDS, Guard
from tests.support.postgres import SERVER_VARIABLE, TEMPLATE, TEMPLATE_VARIABLE

log = logging.getLogger(__name__)

PACKAGE: Final = Path(paidonce.__file__).parent
ROOT: Final = Path(__file__).parents[2]
AT_ONCE: Final = min(os.cpu_count() or 1, 4)
TIMEOUT_S: Final = 180.0
UNUSED_PLUGINS: Final = ("cacheprovider", "hypothesispytest", "schemathesis", "cov", "anyio")
"""They would take half of the time of a run."""

MIGRATIONS: Final = "db/migrations/"
"""Without a guard of the schema, a copy needs a template of its own."""

UNCHANGED: Final = "unchanged"
RED: Final = 1
"""pytest's exit code when tests have failed, and not it itself."""
BROKEN: Final = ("NameError", "SyntaxError", "ImportError", "TypeError", "AttributeError")
"""What tells that the copy cannot run, which says nothing of the guard."""


@dataclass(frozen=True, slots=True)
class Run:
    """How the tests of a copy ended."""

    code: int
    failures: Sequence[str]
    told: str
    took_s: float


Runs = dict[str, Future[Run]]


@pytest.fixture(scope="module")
def runs(
    postgres: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    """All that this module was asked for, under way: a copy of the package for each guard."""
    chosen = _chosen(request.session.items)
    is_soak = request.config.getoption("--soak")
    with ThreadPoolExecutor(AT_ONCE) as pool:

        def begin(name: str, guard: Guard | None, tests: Sequence[str]) -> Future[Run]:
            return pool.submit(_run, tmp_path_factory.mktemp(name), guard, tests, postgres)

        begun = {guard.name: begin("without", guard, [guard.test]) for guard in chosen}
        if is_soak:
            begun[UNCHANGED] = begin(UNCHANGED, None, sorted({guard.test for guard in chosen}))
        yield begun


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "guard" in metafunc.fixturenames:
        all_of_them = metafunc.config.getoption("--soak")
        guards = [guard for guard in GUARDS if all_of_them or not guard.is_kin]
        metafunc.parametrize("guard", guards, ids=lambda guard: guard.name)


def test_without_the_guard_a_test_fails(guard: Guard, runs: Runs) -> None:
    """REL-1"""
    run = runs[guard.name].result()
    log.info("%s: %.1f s: %s", guard.name, run.took_s, run.failures)
    assert run.code == RED, run.told
    assert run.failures, f"the test did not even begin:\n{run.told}"
    assert not any(failure.startswith(BROKEN) for failure in run.failures), run.told


@pytest.mark.soak
def test_with_every_guard_the_same_tests_pass(runs: Runs) -> None:
    """REL-1: on a copy too, which nobody has changed."""
    run = runs[UNCHANGED].result()
    assert run.code == 0, run.told


def test_each_guard_has_a_name_of_its_own() -> None:
    """REL-1"""
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)


def test_each_guard_stands_where_the_table_says_and_its_test_too() -> None:
    """REL-1: of those too that are taken away in the long run only."""
    for guard in GUARDS:
        _without(guard, PACKAGE)
        file, _, test = guard.test.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")


def test_what_replaces_a_guard_uses_only_names_that_exist(tmp_path: Path) -> None:
    """REL-1: a NameError within a broad `except` would look like a guard that does not matter."""
    for number, guard in enumerate(GUARDS):
        changed = tmp_path / f"without_{number}.py"
        if guard.file.endswith(".py"):
            changed.write_text(_without(guard, PACKAGE), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--quiet"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def _chosen(items: Sequence[pytest.Item]) -> list[Guard]:
    """The guards that this run of the tests was asked for."""
    specs = [getattr(item, "callspec", None) for item in items if item.path == Path(__file__)]
    return [spec.params["guard"] for spec in specs if spec is not None]


def _run(folder: Path, guard: Guard | None, tests: Sequence[str], server: str) -> Run:
    """Run the tests on a copy of the package, without the guard if one is named."""
    package = folder / "paidonce"
    shutil.copytree(PACKAGE, package)
    if guard is not None:
        _take_away(guard, package)
    report = folder / "report.xml"
    plugins = [option for name in UNUSED_PLUGINS for option in ("-p", f"no:{name}")]
    options = ["-x", "-q", *plugins, f"--basetemp={folder / 'tmp'}", f"--junitxml={report}"]
    environment = {**os.environ, "PYTHONPATH": str(folder), SERVER_VARIABLE: server}
    if guard is None or not guard.file.startswith(MIGRATIONS):
        environment[TEMPLATE_VARIABLE] = TEMPLATE
    started_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    took_s = time.monotonic() - started_s
    return Run(done.returncode, _failures(report), done.stdout, took_s)


def _take_away(guard: Guard, package: Path) -> None:
    file = package / guard.file
    file.write_text(_without(guard, package), encoding="utf-8")
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()  # it may seem to be up to date: the copy keeps the times of the files


def _without(guard: Guard, package: Path) -> str:
    """The text of the guard's file without it."""
    text = (package / guard.file).read_text(encoding="utf-8")
    found = text.count(guard.old)
    assert found == 1, f"{guard.name}: {guard.file} has it {found} times; mend the table"
    return text.replace(guard.old, guard.new)


def _failures(report: Path) -> list[str]:
    """What the tests that failed said; one that could not begin is an error and none of these."""
    if not report.exists():
        return []
    found = ElementTree.parse(report).iter("failure")
    return [one.get("message", "") for one in found]
