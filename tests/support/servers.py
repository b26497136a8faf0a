"""Real server processes for tests: one for each test, or one that a module shares."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.service import Service, started_service, started_worker
from tests.support.tools import Row, rows

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


@dataclass(frozen=True)
class Shared:
    """One server process and the database behind it."""

    service: Service
    database_url: str

    def rows(self, sql: str, *values: object) -> list[Row]:
        return rows(self.database_url, sql, *values)


@pytest.fixture(scope="module")
def shared(
    request: pytest.FixtureRequest,
    shared_database: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shared]:
    """A server for one module; the module's `CONFIG`, where it has one, is its configuration."""
    config: str = getattr(request.module, "CONFIG", "")
    service = started_service(tmp_path_factory.mktemp("flow"), shared_database, config)
    yield Shared(service, shared_database)
    service.end()
