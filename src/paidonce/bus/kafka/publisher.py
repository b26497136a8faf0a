"""Writes records to Kafka: either the whole batch is confirmed, or it is sent again."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from paidonce.bus.cloud_events import Record
from paidonce.bus.kafka.options import KafkaOptions
from paidonce.bus.kafka.topics import Topics, unavailable
from paidonce.errors import BusUnavailableError
from paidonce.runtime.daemon_thread import DaemonThread

PUBLISH_TIMEOUT_S: Final = 10.0
FLUSH_S: Final = 0.1
CLOSE_TIMEOUT_S: Final = 1.0


class Publisher:
    """One idempotent producer, replaced after every failure.

    Requests of the old producer may still arrive, even after those of the new one. That is safe:
    the predecessors of the records in a request have all arrived, so the first copies of all
    records are in order, and readers skip the other copies.
    """

    def __init__(self, options: KafkaOptions, topics: Topics) -> None:
        self._options = options
        self._topics = topics
        self._thread = DaemonThread("kafka-publisher")
        self._producer: Producer | None = None

    async def publish(self, records: Sequence[Record]) -> None:
        """Return when all are confirmed. Raises BusUnavailableError: some may be written."""
        is_cancelled = threading.Event()
        try:
            await self._thread.run(lambda: self._send(records, is_cancelled))
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            await self._thread.finish(self._discard, CLOSE_TIMEOUT_S)

    def _send(self, records: Sequence[Record], is_cancelled: threading.Event) -> None:
        self._topics.ensure({record.topic for record in records})
        reports: list[KafkaError | None] = []
        try:
            producer = self._producer = self._producer or Producer(self._options.producer())
            for one in records:
                producer.produce(
                    one.topic,
                    one.body,
                    one.key,
                    headers=list(one.headers),
                    on_delivery=lambda error, _: reports.append(error),
                )
            _wait_until_sent(producer, is_cancelled)
        except (KafkaException, BufferError) as error:
            self._discard()
            raise unavailable(error) from None
        failed = [report for report in reports if report is not None]
        if failed or len(reports) < len(records):
            self._topics.forget()
            self._discard()
            if failed:
                raise BusUnavailableError(f"Kafka refused a batch: {failed[0].name()}")
            raise BusUnavailableError(
                f"Kafka did not confirm a batch within {PUBLISH_TIMEOUT_S:.0f} s"
            )

    def _discard(self) -> None:
        """Drop the producer and all records that it has not sent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaException):  # the producer may be broken
                producer.purge()
                producer.flush(0)


def _wait_until_sent(producer: Producer, is_cancelled: threading.Event) -> None:
    """Wait until all records are reported, the call is cancelled, or the timeout is over."""
    deadline_s = time.monotonic() + PUBLISH_TIMEOUT_S
    while producer.flush(FLUSH_S) and not is_cancelled.is_set():
        if time.monotonic() > deadline_s:
            return
