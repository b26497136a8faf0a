"""What the experiments share: their size, a server to attack, and the page of a full run."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest
import pytest_asyncio

from tests.faults.hostility import CONFIG, USERS, Besieged
from tests.faults.ledger import Ledger
from tests.faults.report import Findings, table, write_page
from tests.support.postgres import fresh_database
from tests.support.service import started_service

FINDINGS: Final = pytest.StashKey[Findings]()


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether the experiments run at their full size."""
    return bool(pytestconfig.getoption("--soak"))


@pytest.fixture(scope="session")
def findings(full: bool, pytestconfig: pytest.Config) -> Iterator[Findings]:
    """Where experiments that passed say what they did; all of them together make the page."""
    findings = pytestconfig.stash[FINDINGS] = Findings()
    yield findings
    if full and findings.is_complete:
        write_page(findings)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """After a full run, tell what is on the page, or would be."""
    findings = config.stash.get(FINDINGS, None)
    if findings is not None and config.getoption("--soak"):
        terminalreporter.section("what the experiments found")
        terminalreporter.write("\n".join(table(findings)) + "\n")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def besieged(
    postgres: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Besieged]:
    """A server for all attacks. What the honest have delivered has to survive all of them."""
    async with fresh_database(postgres) as url:
        service = started_service(tmp_path_factory.mktemp("besieged"), url, CONFIG)
        besieged = Besieged(service, url, Ledger("honest", USERS))
        await besieged.warm_up()
        yield besieged
        service.end()
    assert service.log_lines(event="edge_failed") == []
