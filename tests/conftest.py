"""A real PostgreSQL for all tests, a fresh database for each, and real server processes."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from paidonce.store.db import Database, open_database
from paidonce.store.embedded import EmbeddedPostgres
from paidonce.store.schema import migrate
from tests.brokers.kafka import MockBroker, NamedBroker, OwnBroker, running_broker
from tests.roomy import roomy_directory
from tests.service import Service, started_service, started_worker

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Some environments forbid compiled files. The tests start hundreds of processes, and each would
# compile the whole package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

gc.set_threshold(20_000)
"""Importing and collecting make much and drop little."""

TEMPLATE: Final = f"template_{os.getpid()}"
SERVER_VARIABLE: Final = "TEST_POSTGRES"
"""The URL of a server that runs already, for tests that are run by a test."""
BROKERS: Final = pytest.StashKey[set[str]]()
"""Which brokers the tests of this run had."""


LONGEST_FIRST: Final = ("faults", "guards", "flow", "scenarios", "gateways", "services", "bus")
"""The folders whose tests start real processes. Begun last, they would leave the cores idle."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long tests at their full size")


def pytest_configure(config: pytest.Config) -> None:
    brokers: set[str] = set()
    config.stash[BROKERS] = brokers
    # A shell that runs tests in the background ignores Ctrl-C for them; the tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first: workers take a file at a time, in this order."""
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(order)))


def pytest_collection_finish() -> None:
    """Let what was imported and collected be: looking through it at each collection costs much."""
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        brokers: set[str] = session.config.stash[BROKERS]
        output["brokers"] = sorted(brokers)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as there are cores: a worker often waits for the processes it started."""
    return (os.cpu_count() or 1) * 3 // 2


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended."""
    node.config.stash[BROKERS].update(getattr(node, "workeroutput", {}).get("brokers", ()))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    brokers: set[str] = config.stash[BROKERS]
    for told in sorted(brokers):
        terminalreporter.write_line(f"Kafka was {told}")


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Path]:
    """A folder that the unprivileged user of an embedded PostgreSQL can reach."""
    folder = Path(tempfile.mkdtemp(prefix="paidonce-tests-", dir=roomy_directory()))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(data_dir: Path) -> AsyncIterator[str]:
    """The URL of a running PostgreSQL: an embedded one, or the one that was handed over."""
    if given := os.environ.get(SERVER_VARIABLE):
        yield given
        return
    embedded = EmbeddedPostgres(data_dir / "shared")
    url = await embedded.start()
    await _forgo_the_disk(url)
    yield url
    await embedded.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres(server: str) -> AsyncIterator[str]:
    """The URL of a running PostgreSQL that has a migrated template database."""
    await _create(server, TEMPLATE)
    template = await open_database(_url_of(server, TEMPLATE))
    await migrate(template)
    await template.close()
    yield server
    await _drop(server, TEMPLATE)


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Iterator[NamedBroker | OwnBroker | MockBroker]:
    """A Kafka that answers, shared by the tests of this process."""
    with running_broker() as broker:
        pytestconfig.stash[BROKERS].add(broker.told)
        yield broker


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(postgres: str) -> AsyncIterator[str]:
    """The URL of a fresh, migrated database."""
    async with fresh_database(postgres) as url:
        yield url


@asynccontextmanager
async def fresh_database(postgres: str) -> AsyncIterator[str]:
    """A copy of the template, dropped at the end."""
    name = f"test_{uuid4().hex[:12]}"
    await _create(postgres, name, TEMPLATE)
    try:
        yield _url_of(postgres, name)
    finally:
        await _drop(postgres, name)


@pytest_asyncio.fixture(loop_scope="session")
async def database(database_url: str) -> AsyncIterator[Database]:
    """A fresh, migrated database, opened."""
    opened = await open_database(database_url)
    yield opened
    await opened.close()


StartService = Callable[..., Service]


@pytest.fixture
def start_service(database_url: str, tmp_path: Path) -> Iterator[StartService]:
    """Starts real `paidonce serve` processes on this test's database, and ends them."""
    services: list[Service] = []

    def start(
        config: str = "", *, port: int = 0, arguments: Sequence[str] = (), **environment: str | None
    ) -> Service:
        folder = tmp_path / f"service-{len(services)}"
        folder.mkdir()
        service = started_service(
            folder, database_url, config, environment, port=port, arguments=arguments
        )
        services.append(service)
        return service

    yield start
    for service in services:
        service.end()


@pytest.fixture
def start_worker(database_url: str, tmp_path: Path) -> Iterator[StartService]:
    """Starts real `paidonce work` processes on this test's database, and ends them."""
    workers: list[Service] = []

    def start(config: str = "", **environment: str) -> Service:
        folder = tmp_path / f"worker-{len(workers)}"
        folder.mkdir()
        workers.append(started_worker(folder, database_url, config, environment))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


@pytest.fixture
def service(start_service: StartService) -> Service:
    """A running server with source `payments` (tilda) and plan `monthly` (990.00 RUB, 30 days)."""
    return start_service()


async def _forgo_the_disk(url: str) -> None:
    """Tests end processes and never the machine: what the kernel has is safe enough."""
    connection = await asyncpg.connect(url)
    await connection.execute("ALTER SYSTEM SET fsync = off")
    await connection.execute("ALTER SYSTEM SET max_wal_size = '256MB'")  # it may be in memory
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


async def _create(url: str, name: str, template: str = "template1") -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    await connection.close()


async def _drop(url: str, name: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await connection.close()


def _url_of(url: str, name: str) -> str:
    """The same server, another database."""
    return url.replace("/paidonce?", f"/{name}?")
