"""Many connections that deliver, deliver twice, and deliver again what was not acknowledged."""

import asyncio
import random
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

import aiohttp

from tests.faults.ledger import Ledger, Said
from tests.support.service import signature

CONNECTIONS: Final = 32
DUPLICATES: Final = 0.1  # so often something is delivered that was delivered before
ANSWER_TIMEOUT_S: Final = 120.0
RETRY_PAUSE_S: Final = 0.05
PATIENCE_S: Final = 120.0
"""For how long the same thing is delivered again and again before the experiment has failed."""


class Load:
    """Senders of a bounded number of new events, over one ledger. An async context."""

    def __init__(
        self, port: int, ledger: Ledger, limit: int, *, pause_s: float = 0.0, seed: int = 0
    ) -> None:
        self.ledger = ledger
        self._url = f"http://127.0.0.1:{port}/webhooks/payments"
        self._left = limit
        self._pause_s = pause_s
        self._dice = random.Random(seed)
        self._changed = asyncio.Event()
        self._senders: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self.acknowledged = 0

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
        )
        self._senders = [asyncio.create_task(self._send()) for _ in range(CONNECTIONS)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the senders at once. Deliveries in progress count as not acknowledged."""
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        assert self._session is not None
        await self._session.close()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something holds that only the answers can change. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                self._changed.clear()
                await self._changed.wait()

    async def until_acknowledged(self, number: int) -> None:
        """Wait until so many deliveries of this load were acknowledged. Raises TimeoutError."""
        await self.until(lambda: self.acknowledged >= number)

    async def finish(self, *, early: bool = False) -> None:
        """Wait until everything within the limit, or all that has begun, was acknowledged."""
        if early:
            assert self._left > 0, "the load was over already; raise its limit"
            self._left = 0
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._senders)

    async def deliver(self, said: Said) -> None:
        """Deliver until it is acknowledged. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self._is_acknowledged(said):
                await asyncio.sleep(RETRY_PAUSE_S)
        self.acknowledged += 1
        self._changed.set()

    async def _send(self) -> None:
        while self._left > 0:
            earlier = self.ledger.earlier() if self._dice.random() < DUPLICATES else None
            if earlier is None:
                self._left -= 1
            await self.deliver(earlier or self.ledger.new())
            await asyncio.sleep(self._pause_s)

    async def _is_acknowledged(self, said: Said) -> bool:
        assert self._session is not None
        known = bool(self.ledger.told[said.event].words)
        headers = {"content-type": "application/json", "x-signature": signature(said.body)}
        try:
            async with self._session.post(self._url, data=said.body, headers=headers) as answer:
                body, http, named = await answer.read(), answer.status, answer.headers
        except (OSError, aiohttp.ClientError):
            self.ledger.lose()
            return False
        finally:
            self._changed.set()
        if http == 200:
            self.ledger.acknowledge(said, body, known=known)
        else:
            self.ledger.refuse(said, http, {key.lower(): value for key, value in named.items()})
        return http == 200


async def deliver_all(port: int, ledger: Ledger, said: Iterable[Said] | None = None) -> None:
    """Deliver all of these at once, or everything that was ever sent once more."""
    async with Load(port, ledger, limit=0) as load:
        left = iter(list(ledger.said if said is None else said))

        async def sender() -> None:
            for one in left:
                await load.deliver(one)

        await asyncio.gather(*(sender() for _ in range(CONNECTIONS)))
