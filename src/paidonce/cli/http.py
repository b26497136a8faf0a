"""HTTP clients of `paidonce send` and `paidonce listen`."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp
import orjson

from paidonce.errors import PaidonceError

SEND_TIMEOUT_S: Final = 30.0
FORWARD_TIMEOUT_S: Final = 10.0
MAX_AT_ONCE: Final = 8
MAX_RESPONSE_BYTES: Final = 64 * 1024


class UnreachableError(PaidonceError):
    """The service does not answer."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """The response to one delivery."""

    http: int
    status: str
    event_id: str | None
    detail: str
    duration_ms: float


def client_session(concurrency: int, timeout_s: float) -> aiohttp.ClientSession:
    """A client with so many connections, to be closed by the caller."""
    connector = aiohttp.TCPConnector(limit=concurrency)
    return aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=timeout_s)
    )


async def post_many(
    url: str, headers: Mapping[str, str], body: bytes, times: int, concurrency: int
) -> list[SendResult]:
    """POST the same bytes `times` times, `concurrency` at once. Raises UnreachableError."""
    gate = asyncio.Semaphore(concurrency)
    async with client_session(concurrency, SEND_TIMEOUT_S) as session:

        async def once() -> SendResult:
            async with gate:
                return await _post(session, url, headers, body)

        try:
            return list(await asyncio.gather(*(once() for _ in range(times))))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(
                f"{url} cannot be reached ({error or 'no response in time'}); is `paidonce serve` "
                f"running there? Use --url for another address"
            ) from None


async def _post(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], body: bytes
) -> SendResult:
    started_s = time.monotonic()
    async with session.post(url, data=body, headers=headers) as response:
        text = await response.read()
    duration_ms = round((time.monotonic() - started_s) * 1000, 3)
    try:
        fields = orjson.loads(text)
    except ValueError:
        fields = {}
    status = fields.get("status") if response.status == 200 else fields.get("code")
    detail = fields.get("detail", "")
    return SendResult(
        response.status, str(status or ""), fields.get("event_id"), detail, duration_ms
    )


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The response to a copy; no status if there was none."""

    http: int | None
    detail: str
    duration_ms: float


class Forwarder:
    """Sends copies to one URL, some at once."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session
        self._gate = asyncio.Semaphore(MAX_AT_ONCE)

    async def send(self, headers: Mapping[str, str], body: bytes) -> Forwarded:
        """Send a copy, once; an error is part of the result."""
        async with self._gate:
            started_s = time.monotonic()
            try:
                http, detail = await self._post(headers, body)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                http, detail = None, str(error) or "no response in time"
            return Forwarded(http, detail, round((time.monotonic() - started_s) * 1000, 1))

    async def _post(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        async with self._session.post(
            self._url, data=body, headers=headers, allow_redirects=False
        ) as response:
            await response.content.read(MAX_RESPONSE_BYTES)
            return response.status, response.reason or ""
