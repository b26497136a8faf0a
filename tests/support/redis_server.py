"""As much of a Redis as counting takes: a server on a real socket, in a thread of its own.

It speaks RESP3 and knows the commands that the client sends for counters with an expiry; the script
that counts is known by its number of keys and arguments.
"""

import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase


class RedisLike(socketserver.ThreadingTCPServer):
    """Counters with an expiry, for whoever connects."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Conversation)
        self.counts: dict[bytes, tuple[int, float]] = {}
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server_address[1]}/0"

    def add(self, key: bytes, expiry_s: int, amount: int) -> int:
        with self.lock:
            count, ends_s = self.counts.get(key, (0, 0.0))
            if ends_s <= time.monotonic():
                count, ends_s = 0, time.monotonic() + expiry_s
            self.counts[key] = count + amount, ends_s
            return count + amount

    def ttl(self, key: bytes) -> int:
        _, ends_s = self.counts.get(key, (0, 0.0))
        return max(round(ends_s - time.monotonic()), 0)


class _Conversation(socketserver.StreamRequestHandler):
    server: RedisLike

    def handle(self) -> None:
        while (words := _command(self.rfile)) is not None:
            self.wfile.write(self._answer(words))

    def _answer(self, words: list[bytes]) -> bytes:
        match [words[0].upper(), *words[1:]]:
            case [b"HELLO", *_]:
                return b"%2\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n"
            case [b"EVALSHA", _, b"1", key, expiry_s, amount]:
                return b":%d\r\n" % self.server.add(key, int(expiry_s), int(amount))
            case [b"TTL", key]:
                return b":%d\r\n" % self.server.ttl(key)
            case [b"DEL", key]:
                return b":%d\r\n" % (self.server.counts.pop(key, None) is not None)
            case _:
                return b"+OK\r\n"


def _command(sent: BufferedIOBase) -> list[bytes] | None:
    """A command as an array of texts; None when there are no more."""
    head = sent.readline()
    if not head.startswith(b"*"):
        return None
    words = []
    for _ in range(int(head[1:])):
        length = int(sent.readline()[1:])
        words.append(sent.read(length + 2)[:-2])
    return words


@contextmanager
def redis_like(port: int = 0) -> Iterator[RedisLike]:
    """A server that runs as long as the body does."""
    with RedisLike(port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
