"""A client that sends forged deliveries as fast as it can, in its own process.

It uses its own address and opens a new connection whenever one is closed. When its standard input
ends, it stops and prints how often it got each answer.
"""

import argparse
import asyncio
import sys
from collections import Counter

import orjson
import uvloop

from benchmarks.load import HOST, build_requests
from benchmarks.workload import SignedEvent, random_events

ADDRESS = "127.0.0.2"
CONNECTIONS = 8
LONGEST_S = 600.0
MAX_ANSWER = 65_536
FORGED = 64
LOST = "lost"
PAUSE_S = 0.01  # after a connection that could not be made


class Forger:
    """Keeps its connections busy and counts the answers."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self._port = port
        self._requests = requests
        self.answers: Counter[str] = Counter()

    async def press(self, number: int) -> None:
        """Send on one connection after another until cancelled."""
        request = self._requests[number % len(self._requests)]
        while True:
            try:
                await self._send_until_closed(request)
            except OSError:
                self.answers[LOST] += 1
                await asyncio.sleep(PAUSE_S)

    async def _send_until_closed(self, request: bytes) -> None:
        reader, writer = await asyncio.open_connection(
            HOST, self._port, local_addr=(ADDRESS, 0), limit=MAX_ANSWER
        )
        try:
            while True:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(_length(head))
                self.answers[head[9:12].decode()] += 1
                if b"connection: close" in head:
                    return
        except asyncio.IncompleteReadError:
            self.answers[LOST] += 1
        finally:
            writer.close()


def _length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0])


async def run(port: int, path: str) -> Counter[str]:
    """Send until standard input ends."""
    real = random_events(users=1, count=FORGED)
    forged = (SignedEvent(one.body, "0" * len(one.signature)) for one in real)
    forger = Forger(port, build_requests(forged, path=path))
    presses = [asyncio.create_task(forger.press(number)) for number in range(CONNECTIONS)]
    try:
        async with asyncio.timeout(LONGEST_S):
            await asyncio.to_thread(sys.stdin.read)
    except TimeoutError:
        pass
    finally:
        for press in presses:
            press.cancel()
        await asyncio.gather(*presses, return_exceptions=True)
    return forger.answers


def main() -> None:
    """Print a line at the start, and the counts at the end."""
    parser = argparse.ArgumentParser(prog="benchmarks.forger", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True)
    options = parser.parse_args()
    answers = uvloop.run(run(options.port, options.path))
    print(orjson.dumps(answers).decode(), flush=True)


if __name__ == "__main__":
    main()
