"""Copies of deliveries for a developer's own server. Nothing here depends on its answers."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import aiohttp

TIMEOUT_S: Final = 10.0
MAX_AT_ONCE: Final = 8
MAX_ANSWER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What a copy was answered; no status when there was no answer."""

    http: int | None
    detail: str
    duration_ms: float


class Forwarder:
    """Sends copies to one address, some at once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._gate = asyncio.Semaphore(MAX_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Forwarder":
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=MAX_AT_ONCE)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def send(self, headers: Mapping[str, str], body: bytes) -> Forwarded:
        """Send a copy. Whatever goes wrong is told, and nothing is sent twice."""
        async with self._gate:
            began_s = time.monotonic()
            try:
                http, detail = await self._post(headers, body)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                http, detail = None, str(error) or "no answer in time"
            return Forwarded(http, detail, round((time.monotonic() - began_s) * 1000, 1))

    async def _post(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        assert self._session is not None
        async with self._session.post(
            self._url, data=body, headers=headers, allow_redirects=False
        ) as response:
            await response.content.read(MAX_ANSWER_BYTES)
            return response.status, response.reason or ""
