"""A connection with an absolute deadline for each request's headers and body (SEC-8).

uvicorn calls an application only when the headers are whole and keeps no deadline for what a
client sends slowly, so this is done one level below, in its protocol.
"""

from asyncio import TimerHandle
from typing import Any, ClassVar, Final

from uuid_utils.compat import uuid7
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paidonce import telemetry
from paidonce.web.problems import Problem

MAX_HEADER_BYTES: Final = 64 * 1024

_TOO_SLOW: Final = Problem(408, "TOO_SLOW", "The request did not arrive in time.")
_HEADERS_TOO_LARGE: Final = Problem(431, "HEADERS_TOO_LARGE", "The headers are too large.")


class GuardedConnection(HttpToolsProtocol):
    """uvicorn's connection, closed when a request takes too long or its headers too much."""

    request_timeout_s: ClassVar[float] = 10.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: TimerHandle | None = None
        self._header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        self._start_clock()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_message_complete(self) -> None:
        self._stop_clock()
        super().on_message_complete()

    def _start_clock(self) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(self.request_timeout_s, self._refuse, _TOO_SLOW)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _count(self, number: int) -> None:
        self._header_bytes += number
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(_HEADERS_TOO_LARGE)

    def _refuse(self, problem: Problem) -> None:
        """Answer and close, unless an answer has begun already."""
        self._stop_clock()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            telemetry.REQUESTS.labels("unknown", problem.status).inc()
            self.transport.write(_raw(problem))
        self.transport.close()


def _raw(problem: Problem) -> bytes:
    body = problem.body(str(uuid7()))
    head = f"HTTP/1.1 {problem.status} Refused\r\nconnection: close\r\n"
    head += f"content-type: application/problem+json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
