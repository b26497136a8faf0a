"""Attackers in a process of their own: `python -m tests.faults.crowd PORT WHAT NUMBER SECONDS`.

`slow` keeps so many connections open that each send a part of a request and then nothing; a closed
one is replaced. `ahead` sends requests on each of them and reads no answers.
"""

import asyncio
import resource
import socket
import sys
from contextlib import suppress
from typing import Final

PAUSE_S: Final = 1.0
AT_ONCE: Final = 200
"""How many connections are being opened at a time."""
PARTS: Final = (
    b"",
    b"POST /webhooks/pay",
    b"GET /readyz HTTP/1.1\r\nhost: x\r\nx-note: ",
    b"POST /api/v1/users HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
    b"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + b"x" * 9_000,
)
PIPELINED: Final = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 5_000


async def main(port: int, what: str, number: int, seconds: float) -> None:
    """Attack, say when all were open once, and stop after so many seconds."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    room, opened = asyncio.Semaphore(AT_ONCE), 0

    async def one(place: int) -> None:
        nonlocal opened
        while True:
            with suppress(OSError):
                async with room:
                    reader, writer = await asyncio.open_connection(sock=await connected(port))
                opened += 1
                if opened == number:
                    sys.stdout.write("all were open\n")
                    sys.stdout.flush()
                try:
                    await (send_ahead(writer) if what == "ahead" else wait(reader, writer, place))
                finally:
                    writer.transport.abort()
            await asyncio.sleep(PAUSE_S)

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(one(place) for place in range(number)))


async def connected(port: int) -> socket.socket:
    """A connection for which the kernel keeps few answers."""
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    except BaseException:
        made.close()
        raise
    return made


async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: int) -> None:
    """Send a part of a request, and nothing more until the server closes."""
    writer.write(PARTS[place % len(PARTS)])
    await reader.read(-1)


async def send_ahead(writer: asyncio.StreamWriter) -> None:
    """Send requests as long as the server takes them."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    while True:
        writer.write(PIPELINED)
        await writer.drain()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
