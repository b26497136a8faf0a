"""Links in the documentation lead to files and headings, and files that it names exist."""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
NAMED: Final = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|sql|md|toml|yml))`")
OBSERVED: Final = re.compile(
    r"`((?:[a-z]+_)+(?:total|seconds|ms|bytes|pending))(?:\{[a-z_,]*\})?`|\blog \(?`([a-z_]+)`"
)
"""Names of metrics and of log events."""
CODE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """USE-6"""
    broken = [link for link in _links(page) if not _leads_somewhere(page, link)]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    """USE-6"""
    named = set(NAMED.findall(CODE.sub("", page.read_text(encoding="utf-8"))))
    package = ROOT / "src" / "paidonce"
    folders = (ROOT, package, package / "providers")
    assert [
        name for name in sorted(named) if not any((one / name).exists() for one in folders)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_metrics_and_log_events_that_a_page_names_exist(page: Path) -> None:
    """USE-6 OBS-1 OBS-2"""
    found = OBSERVED.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    names = {metric or event for metric, event in found}
    assert [name for name in sorted(names) if f'"{name}"' not in _program()] == []


def test_the_index_of_the_decisions_lists_every_record() -> None:
    """USE-6"""
    folder = ROOT / "docs" / "decisions"
    records = {path.name for path in folder.glob("0*.md")}
    assert set(_links(folder / "README.md")) == {*records, "../glossary.md"}


@cache
def _program() -> str:
    """All modules of the package as one text."""
    modules = (ROOT / "src" / "paidonce").rglob("*.py")
    return "\n".join(module.read_text(encoding="utf-8") for module in modules)


def _links(page: Path) -> list[str]:
    found = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return [link for link in found if not link.startswith(("http://", "https://"))]


def _leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
