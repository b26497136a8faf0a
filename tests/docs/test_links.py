"""Links in the documentation lead to files and headings, and files that it names exist."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
NAMED: Final = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|sql|md|toml|yml))`")
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


def test_the_index_of_the_decisions_lists_every_record() -> None:
    """USE-6"""
    folder = ROOT / "docs" / "decisions"
    records = {path.name for path in folder.glob("0*.md")}
    assert set(_links(folder / "README.md")) == {*records, "../glossary.md"}


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
