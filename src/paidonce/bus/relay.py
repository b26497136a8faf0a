"""Publishes the outbox: in order for each key, each message at least once (BUS-1).

One relay at a time does it, as leader: the connection that marks messages as published is fenced.
When a relay is killed between publishing and marking, the next one publishes the same messages
again; consumers recognise them by their ids.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from paidonce.bus import outbox
from paidonce.bus.contract import Bus
from paidonce.db.queries import Connection
from paidonce.errors import BusUnavailableError
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.runtime.leader import Leader, Leadership
from paidonce.runtime.service import POLLING, Delays, Service
from paidonce.runtime.wakeup import Wakeup
from paidonce.telemetry import logger, metrics

log = logger(__name__)

ROLE: Final = "relay"
MAX_BATCH: Final = 1_000
PUBLISH_TIMEOUT_S: Final = 60.0
PAUSE_AFTER_FAILURE_S: Final = 0.5


class Relay(Service):
    """Publishes the outbox in batches, as long as this process leads."""

    def __init__(
        self, bus: Bus, leader: Leader, wakeup: Wakeup | None = None, max_batch: int = MAX_BATCH
    ) -> None:
        super().__init__("relay")
        self._bus = bus
        self._leader = leader
        self._wakeup = wakeup or Wakeup()
        self._listener = self._wakeup.listener()
        self._max_batch = max_batch
        self._limit = max_batch
        self._delays = Delays(POLLING)
        self._require: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Publish while this process leads; follow the leader otherwise."""
        await self._leader.follow(ROLE, self, self._lead)

    async def _lead(self, leadership: Leadership) -> None:
        connection = await leadership.session()
        self._require = leadership.require
        try:
            while not self.is_finishing:
                leadership.require()
                await self._work(connection)
        finally:
            connection.terminate()

    async def run_once(self, connection: Connection) -> int:
        """Publish one batch; returns how many messages it was. Only the leader may do it.

        Raises BusUnavailableError.
        """
        positions = await self._publish(connection)
        if not positions:
            return 0
        maybe_crash(CrashPoint.PUBLISHED)
        await outbox.mark_published(connection, positions)
        self._wakeup.wake()
        metrics.BUS_PUBLISHED.inc(len(positions))
        return len(positions)

    async def _publish(self, connection: Connection) -> Sequence[int]:
        """Give the bus the next messages; returns their positions in the outbox."""
        if self._bus.is_outbox:
            return await outbox.unpublished_positions(connection, self._limit)
        messages = await outbox.unpublished(connection, self._limit)
        if messages:
            maybe_crash(CrashPoint.RELAY_READ)
            self._require()  # the rows may have been read before this process was frozen
            try:
                async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                    await self._bus.publish(list(messages.values()))
            except TimeoutError:
                raise BusUnavailableError(f"no answer for {PUBLISH_TIMEOUT_S:.0f} s") from None
        return list(messages)

    async def _work(self, connection: Connection) -> None:
        try:
            published = await self.run_once(connection)
        except BusUnavailableError as error:
            log.warning("bus_unavailable", detail=str(error))
            self._limit = max(self._limit // 2, 1)  # a slow bus may manage a smaller batch
            await self.pause(PAUSE_AFTER_FAILURE_S)
            return
        self._limit = min(self._limit * 2, self._max_batch)
        if published:
            self._delays.reset()
        else:
            await self._listener.wait(self._delays.next_s())
