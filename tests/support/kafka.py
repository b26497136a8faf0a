"""A Kafka for the tests: the one that is named, a real one of their own, or an imitation.

In this order: KAFKA_BOOTSTRAP in the environment; Apache Kafka, one node on loopback, from its
Maven artifacts; librdkafka's mock cluster. The summary of the run says which one it was.
"""

import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.support import fork_server
from tests.support.kafka_artifacts import VERSION, NoArtifactsError, kafka_jars
from tests.support.tools import free_port

BOOTSTRAP_VARIABLE: Final = "KAFKA_BOOTSTRAP"
START_TIMEOUT_S: Final = 240.0
START_ATTEMPTS: Final = 3
STOP_TIMEOUT_S: Final = 20.0
LOG_WARNINGS: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
LOOK_AGAIN_S: Final = 0.1
CLUSTER: Final = "paidonceTestsCluster00"
"""22 characters of base64, which is what an id of a cluster is."""

_QUIET: Final = logging.getLogger("tests.librdkafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False

# Sessions are short, so that a broker that was killed is let in again soon.
_PROPERTIES: Final = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=200
log.cleaner.enable=false
"""


class BrokerStartError(Exception):
    """The broker ended, or did not answer in time. The message has its log."""


class Broker(Protocol):
    """A Kafka that answers."""

    bootstrap: str
    told: str
    """What it is, for the summary of the run."""
    is_ours: bool
    """Whether a test may stop, kill and start it."""


class NamedBroker:
    """Somebody else's."""

    is_ours = False

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.told = f"the broker that {BOOTSTRAP_VARIABLE} names"


class MockBroker:
    """librdkafka's own imitation, in this process. It knows no administration."""

    is_ours = False

    def __init__(self, reason: str) -> None:
        self._owner = Producer({"test.mock.num.brokers": 1, "logger": _QUIET})
        brokers = self._owner.list_topics(timeout=START_TIMEOUT_S).brokers.values()
        self.bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        self.told = f"librdkafka's mock cluster, because {reason}; broker kills are not tried"

    def add_topics(self, names: Sequence[str]) -> None:
        """It makes a topic of each name that it is asked for."""
        for name in names:
            self._owner.list_topics(name, timeout=START_TIMEOUT_S)


class OwnBroker:
    """A real one, in a process that may be killed and started again on its data and its port."""

    is_ours = True

    def __init__(self, jars: Path, folder: Path) -> None:
        self._jars = jars
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = folder / "server.properties"
        self.bootstrap = ""
        self.told = f"Apache Kafka {VERSION}, one node"

    def start_on_free_ports(self) -> None:
        """Start it for the first time. Another process may take a port just before."""
        for attempts_left in reversed(range(START_ATTEMPTS)):
            self._format()
            try:
                self.start()
            except BrokerStartError:
                self.end()
                if not attempts_left:
                    raise
            else:
                return

    def _format(self) -> None:
        """Choose ports and make empty storage."""
        port, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        text = _PROPERTIES.format(port=port, controller=controller, folder=self._folder)
        self._properties.write_text(text, encoding="utf-8")
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        options = ("format", "-t", CLUSTER, "-c", str(self._properties))
        command = self._java("128m", "kafka.tools.StorageTool", *options)
        subprocess.run(command, check=True, timeout=START_TIMEOUT_S, capture_output=True)

    def start(self) -> None:
        """Start it and return when it answers."""
        self.begin()
        self.wait_until_ready()

    def begin(self) -> None:
        """Start it and return at once."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java("384m", "kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self) -> None:
        client = AdminClient({"bootstrap.servers": self.bootstrap}, logger=_QUIET)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._running.poll() is None:
            try:
                client.list_topics(timeout=1)
            except KafkaException:
                time.sleep(LOOK_AGAIN_S)
            else:
                return
        code, log = self._running.poll(), (self._folder / "log").read_text()
        raise BrokerStartError(f"Kafka did not start (exit code {code}):\n{log}")

    def kill(self) -> None:
        """Without a goodbye."""
        self._running.kill()
        self._running.wait(STOP_TIMEOUT_S)

    def freeze(self) -> None:
        """From now on it answers nothing, and its connections stay open."""
        self._running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Its data is not needed any more."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "it was not started"
        return self._process

    def _java(self, heap: str, main: str, *arguments: str) -> list[str]:
        quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", LOG_WARNINGS)
        return ["java", f"-Xmx{heap}", *quick, "-cp", f"{self._jars}/*", main, *arguments]


@contextmanager
def running_broker() -> Iterator[NamedBroker | OwnBroker | MockBroker]:
    """The first that can be had. What was started for it is ended."""
    if named := os.environ.get(BOOTSTRAP_VARIABLE):
        yield NamedBroker(named)
        return
    try:
        jars = kafka_jars()
    except NoArtifactsError as error:
        yield MockBroker(str(error))
        return
    with own_broker(jars) as broker:
        yield broker


@contextmanager
def own_broker(jars: Path) -> Iterator[OwnBroker]:
    """A real broker in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="paidonce-kafka-"))
    fork_server.remove_at_the_end(folder)
    broker = OwnBroker(jars, folder)
    try:
        broker.start_on_free_ports()
        yield broker
    finally:
        broker.end()
        shutil.rmtree(folder, ignore_errors=True)


def fresh_name(name: str) -> str:
    """A name that no other test uses: one broker serves them all."""
    return f"{name}-{uuid4().hex[:8]}"
