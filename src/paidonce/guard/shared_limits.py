"""Rate limit counts that several machines share through Redis, in the background.

Every process counts and enforces its own limits. A moment later it sends its counts to Redis, many
at once, and gets the sum of all processes. While Redis is unavailable, each process uses its own.
"""

import asyncio
import time
from contextlib import suppress
from typing import Final

from limits.aio.storage import RedisStorage
from limits.errors import ConfigurationError as LimitsConfigurationError

from paidonce.errors import ConfigurationError
from paidonce.guard.limits import Limit
from paidonce.runtime.bounded import Bounded
from paidonce.runtime.service import Service
from paidonce.telemetry import logger

log = logger(__name__)

PAUSE_S: Final = 0.05
"""What is counted meanwhile goes together."""
AWAY_PAUSE_S: Final = 1.0
TIMEOUT_S: Final = 1.0
MAX_UNTOLD: Final = 10_000


class SharedCounts(Service):
    """One for each process."""

    def __init__(self, url: str) -> None:
        """Raises ConfigurationError."""
        super().__init__("shared limits")
        try:
            self._storage = RedisStorage(
                f"async+{url}",
                implementation="redispy",
                key_prefix="paidonce",
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
            )
        except (LimitsConfigurationError, ValueError):
            raise ConfigurationError(
                "limits.storage (hidden): cannot be used; write redis://host:6379/0, and install "
                "the client: pip install 'paidonce[redis]'"
            ) from None
        self._untold: Bounded[tuple[Limit, str], int] = Bounded(MAX_UNTOLD)
        self._forgotten: Bounded[tuple[Limit, str], None] = Bounded(MAX_UNTOLD)
        self._is_well = True

    def add(self, limit: Limit, key: str) -> None:
        """One was counted here."""
        self._untold[limit, key] = self._untold.pop((limit, key), 0) + 1
        if len(self._untold) > MAX_UNTOLD:
            self._untold.popitem(last=False)
        self._listener.wake()

    def forget(self, limit: Limit, key: str) -> None:
        """Somebody begins anew, here and everywhere."""
        self._untold.pop((limit, key), None)
        self._forgotten.put((limit, key), None)
        self._listener.wake()

    async def run(self) -> None:
        """Exchange counts until asked to finish."""
        try:
            while not self.is_finishing:
                await self._listener.wait()
                await self.pause(PAUSE_S if await self._try_once() else AWAY_PAUSE_S)
        finally:
            with suppress(Exception):
                await self._storage.bridge.storage.aclose()  # type: ignore[attr-defined]

    async def _try_once(self) -> bool:
        try:
            await self.run_once()
        except Exception as error:  # whatever the client of a Redis raises, no request meets it
            self._note(is_well=False, error=type(error).__name__)
            return False
        self._note(is_well=True)
        return True

    async def run_once(self) -> None:
        """Send the counts since the last call. Counts that cannot be sent are dropped."""
        untold, self._untold = self._untold, Bounded(MAX_UNTOLD)
        forgotten, self._forgotten = self._forgotten, Bounded(MAX_UNTOLD)
        for limit, key in forgotten:
            async with asyncio.timeout(TIMEOUT_S):
                await self._storage.clear(limit.item.key_for(limit.name, key))
        for (limit, key), number in untold.items():
            async with asyncio.timeout(TIMEOUT_S):
                await self._exchange(limit, key, number)

    async def _exchange(self, limit: Limit, key: str, number: int) -> None:
        name = limit.item.key_for(limit.name, key)
        count = await self._storage.incr(name, limit.window_s, number)
        # The clock that `get_expiry` adds to.
        left_s = await self._storage.get_expiry(name) - time.time()  # noqa: TID251
        limit.learn(key, count + self._untold.get((limit, key), 0), left_s)

    def _note(self, *, is_well: bool, error: str = "") -> None:
        if self._is_well and not is_well:
            log.warning(
                "limits_not_shared", error=error, detail="each process counts for itself meanwhile"
            )
        elif is_well and not self._is_well:
            log.info("limits_shared_again")
        self._is_well = is_well
