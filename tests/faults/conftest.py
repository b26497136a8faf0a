"""What the experiments share: their size, and the page that a full run writes."""

from collections.abc import Iterator

import pytest

from tests.faults.report import Findings, write_page
from tests.flow.conftest import shared, shared_database

__all__ = ["findings", "full", "shared", "shared_database"]


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether the experiments run at their full size."""
    return bool(pytestconfig.getoption("--soak"))


@pytest.fixture(scope="session")
def findings(full: bool) -> Iterator[Findings]:
    """Where experiments that passed say what they did; all of them together make the page."""
    findings = Findings()
    yield findings
    if full and findings.is_complete:
        write_page(findings)
