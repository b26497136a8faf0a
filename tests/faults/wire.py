"""Bytes as they go over the wire, with nothing in between that would mend them."""

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tests.support.service import SECRET, signature

ANSWER_TIMEOUT_S: Final = 120.0
MAX_ANSWER_BYTES: Final = 1 << 20
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass(frozen=True, slots=True)
class Heard:
    """All that came back on one connection before it was closed."""

    received: bytes

    @property
    def statuses(self) -> list[int]:
        return [int(found) for found in _STATUS.findall(self.received)]

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the answers; each has its length in its headers."""
        found, rest = [], self.received
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            size = int(length[1]) if length else 0
            found.append(rest[:size])
            rest = rest[size:]
        return found


def request(
    body: bytes,
    *,
    source: str = "payments",
    signed: bool = True,
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    """A whole delivery."""
    named = [("host", "x"), ("content-type", "application/json"), *headers]
    named.append(("x-signature", signature(body, SECRET if signed else "a guess")))
    named.append(("content-length", str(len(body))))
    lines = "".join(f"{name}: {value}\r\n" for name, value in named)
    return f"POST /webhooks/{source} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def converse(port: int, raw: bytes) -> Heard:
    """Send everything, say that it was everything, and listen until the server closes.

    Raises TimeoutError when it does not.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            with suppress(ConnectionError):
                writer.write(raw)
                await writer.drain()
                writer.write_eof()
            return Heard(await _all_of(reader))
    finally:
        writer.close()


async def converse_all(port: int, raws: Iterable[bytes], connections: int) -> list[Heard]:
    """The same for many, over so many connections at a time, in the order given."""
    room = asyncio.Semaphore(connections)

    async def one(raw: bytes) -> Heard:
        async with room:
            return await converse(port, raw)

    return await asyncio.gather(*map(one, raws))


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    received = b""
    with suppress(ConnectionError):
        while part := await reader.read(65_536):
            received += part
            assert len(received) <= MAX_ANSWER_BYTES, "the server talks without end"
    return received


async def rest_of(reader: asyncio.StreamReader) -> Heard:
    """Listen until the server closes. Raises TimeoutError when it does not."""
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        return Heard(await _all_of(reader))
