"""Puts records into Kafka: all of a batch are known to be safe, or the batch is sent again."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from paidonce.bus.client_thread import ClientThread
from paidonce.bus.cloud_events import Headers
from paidonce.bus.kafka_options import KafkaOptions
from paidonce.bus.kafka_topics import Topics, away
from paidonce.errors import BusAwayError

PUBLISH_TIMEOUT_S: Final = 10.0
LOOK_AGAIN_S: Final = 0.1
CLOSE_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Record:
    """What is written, as Kafka sees it."""

    topic: str
    key: bytes | None
    headers: Headers
    body: bytes | None


class Publisher:
    """One idempotent producer, made anew whenever it is in doubt.

    A producer that is in doubt may still have requests on their way, and they may arrive after
    those of the next. That does no harm: a request is a run of records whose predecessors have
    arrived, so that the first copies of all records stand in their order, and readers pass over
    the others.
    """

    def __init__(self, options: KafkaOptions, topics: Topics) -> None:
        self._options = options
        self._topics = topics
        self._thread = ClientThread("kafka-publisher")
        self._producer: Producer | None = None

    async def publish(self, records: Sequence[Record]) -> None:
        """Return when every record is safe. Raises BusAwayError: any part of them may be safe."""
        is_given_up = threading.Event()
        try:
            await self._thread.run(lambda: self._send(records, is_given_up))
        except asyncio.CancelledError:
            is_given_up.set()
            raise

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._thread.run(self._discard)
        except TimeoutError:
            pass
        finally:
            self._thread.end()

    def _send(self, records: Sequence[Record], is_given_up: threading.Event) -> None:
        self._topics.ensure({record.topic for record in records})
        reports: list[KafkaError | None] = []
        try:
            producer = self._ready()
            for record in records:
                _produce(producer, record, reports)
            _wait_until_sent(producer, is_given_up)
        except (KafkaException, BufferError) as error:
            self._discard()
            raise away(error) from None
        failed = [report for report in reports if report is not None]
        if failed or len(reports) < len(records):
            self._topics.forget()
            self._discard()
            raise _why(failed)

    def _ready(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(self._options.producer())
        return self._producer

    def _discard(self) -> None:
        """Let go of all that it has not sent. Nothing waits for it any more."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaException):  # it may be what it is discarded for
                producer.purge()
                producer.flush(0)


def _produce(producer: Producer, record: Record, reports: list[KafkaError | None]) -> None:
    def report(error: KafkaError | None, _: Any) -> None:
        reports.append(error)

    producer.produce(
        record.topic, record.body, record.key, headers=list(record.headers), on_delivery=report
    )


def _wait_until_sent(producer: Producer, is_given_up: threading.Event) -> None:
    """Until all are reported, or for as long as somebody waits for it, but not for ever."""
    deadline_s = time.monotonic() + PUBLISH_TIMEOUT_S
    while producer.flush(LOOK_AGAIN_S) and not is_given_up.is_set():
        if time.monotonic() > deadline_s:
            return


def _why(failed: Sequence[KafkaError]) -> BusAwayError:
    if not failed:
        return BusAwayError(f"Kafka did not take a batch in {PUBLISH_TIMEOUT_S:.0f} s")
    return BusAwayError(f"Kafka did not take a batch: {failed[0].name()}")
