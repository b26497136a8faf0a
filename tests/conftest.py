"""A real PostgreSQL for all tests, a fresh database for each, and real server processes."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from tests.support.databases import _logging, processor, shop, worker
from tests.support.kafka import MockBroker, NamedBroker, OwnBroker, running_broker
from tests.support.postgres import (
    data_dir,
    database,
    database_url,
    module_database,
    postgres,
    server,
    shared_database,
)
from tests.support.servers import service, shared, start_service, start_worker

__all__ = [
    "_logging",
    "data_dir",
    "database",
    "database_url",
    "module_database",
    "postgres",
    "processor",
    "server",
    "service",
    "shared",
    "shared_database",
    "shop",
    "start_service",
    "start_worker",
    "worker",
]

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Some environments forbid compiled files. The tests start hundreds of processes, and each would
# compile the whole package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

gc.set_threshold(20_000)
"""Importing and collecting make much and drop little."""

BROKERS: Final = pytest.StashKey[set[str]]()
"""Which brokers the tests of this run had."""


LONGEST_FIRST: Final = (
    "faults", "guards", "model", "hooks", "bus", "scenarios", "runtime", "cli", "reconciliation",
    "lookup", "api", "payouts", "payments", "processing",
)  # fmt: skip
"""The folders with long tests. Begun last, they would leave the cores idle."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long tests at their full size")


def pytest_configure(config: pytest.Config) -> None:
    brokers: set[str] = set()
    config.stash[BROKERS] = brokers
    # A shell that runs tests in the background ignores Ctrl-C for them; the tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first: workers take a file at a time, in this order."""
    if not config.getoption("--soak"):
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]
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
    """Twice as many as there are cores: a worker often waits for the processes it started."""
    return (os.cpu_count() or 1) * 2


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
def kafka(pytestconfig: pytest.Config) -> Iterator[NamedBroker | OwnBroker | MockBroker]:
    """A Kafka that answers, shared by the tests of this process."""
    with running_broker() as broker:
        pytestconfig.stash[BROKERS].add(broker.told)
        yield broker
