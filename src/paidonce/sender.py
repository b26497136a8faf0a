"""Sends test webhooks and shows what was answered."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp
import orjson

from paidonce.errors import PaidonceError

TIMEOUT_S: Final = 30.0


class UnreachableError(PaidonceError):
    """Nobody listens there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one delivery was answered."""

    http: int
    status: str
    event_id: str | None
    detail: str
    duration_ms: float


async def send(
    url: str, headers: Mapping[str, str], body: bytes, times: int, concurrency: int
) -> list[Answer]:
    """POST the same bytes so many times, so many at once. Raises UnreachableError."""
    gate = asyncio.Semaphore(concurrency)
    connector = aiohttp.TCPConnector(limit=concurrency)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def once() -> Answer:
            async with gate:
                return await _post(session, url, headers, body)

        try:
            return list(await asyncio.gather(*(once() for _ in range(times))))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(
                f"{url} cannot be reached ({error or 'no answer in time'}); is `paidonce serve` "
                f"running there? --url names another place"
            ) from None


async def _post(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], body: bytes
) -> Answer:
    started_s = time.monotonic()
    async with session.post(url, data=body, headers=headers) as response:
        text = await response.read()
    duration_ms = round((time.monotonic() - started_s) * 1000, 3)
    try:
        said = orjson.loads(text)
    except ValueError:
        said = {}
    word = said.get("status") if response.status == 200 else said.get("code")
    detail = said.get("detail", "")
    return Answer(response.status, str(word or ""), said.get("event_id"), detail, duration_ms)
