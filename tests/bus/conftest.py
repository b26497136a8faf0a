"""Quiet logs where much fails on purpose; a bus on this run's Kafka, a topic for each test."""

from collections.abc import AsyncIterator, Callable
from typing import Final

import pytest
import pytest_asyncio
import structlog

from paidonce.bus.kafka.bus import KafkaBus
from paidonce.bus.kafka.options import kafka_options
from paidonce.bus.model import TOPIC_PREFIX
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.settings.sections import BusSettings
from tests.support.kafka import MockBroker, NamedBroker, OwnBroker, fresh_name

GROUP: Final = "readers"
OTHER_GROUP: Final = "others"
SHORT_SESSION: Final = {"session.timeout.ms": "2000", "heartbeat.interval.ms": "500"}
"""What a reader had that is gone is given to others soon; an ordinary broker does not allow it."""

OpenBus = Callable[[], KafkaBus]


@pytest.fixture(autouse=True, scope="session")
def _logging() -> None:
    """Plain tracebacks: those that structlog draws by itself take seconds each."""
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[plain])


@pytest_asyncio.fixture(loop_scope="session")
async def connection(database: Database) -> AsyncIterator[Connection]:
    async with database.connection() as one:
        yield one


@pytest.fixture
def about(kafka: NamedBroker | OwnBroker | MockBroker) -> str:
    """What the messages of this test are about."""
    name = fresh_name("thing")
    if isinstance(kafka, MockBroker):
        topic = TOPIC_PREFIX + name
        kafka.add_topics([topic, *(f"{topic}.{group}.dlq" for group in (GROUP, OTHER_GROUP))])
    return name


@pytest.fixture
def own_broker(kafka: NamedBroker | OwnBroker | MockBroker) -> OwnBroker:
    """A broker that the test may kill."""
    if not isinstance(kafka, OwnBroker):
        pytest.skip(f"it cannot be killed: {kafka.told}")
    return kafka


@pytest_asyncio.fixture(loop_scope="session")
async def open_bus(kafka: NamedBroker | OwnBroker | MockBroker) -> AsyncIterator[OpenBus]:
    """Opens buses as processes of their own would, and closes them."""
    opened: list[KafkaBus] = []
    own = SHORT_SESSION if kafka.is_ours else {}
    settings = BusSettings(url=f"kafka://{kafka.bootstrap}", kafka=own)

    def open_one() -> KafkaBus:
        opened.append(KafkaBus(kafka_options(settings)))
        return opened[-1]

    yield open_one
    for bus in opened:
        await bus.close()


@pytest.fixture
def bus(open_bus: OpenBus) -> KafkaBus:
    return open_bus()
