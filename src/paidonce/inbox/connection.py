"""A connection of the server: uvicorn's, with limits that hold while a request arrives (SEC-8).

uvicorn calls an application when the headers are complete, and limits neither them nor the time of
a slow client. Here each request has a deadline, from its first byte to its last, and limits
(`framing.py`). The next request is read when there is room for its answer, so requests that are
sent ahead cost nothing. All connections share what `capacity.py` counts.
"""

import re
from asyncio import TimerHandle
from http import HTTPStatus
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paidonce.api.problems import Problem, ProblemError
from paidonce.ids import new_id
from paidonce.inbox.capacity import OVERLOADED, Capacity
from paidonce.inbox.edge import TOO_SLOW, WebhookResponse
from paidonce.inbox.framing import INVALID, Framing, RequestLimits
from paidonce.telemetry import metrics

MIN_WATCH_S: Final = 0.05
LINGER_S: Final = 2.0
"""After a refusal the client has this long to read it, and may send MAX_SKIPPED_BYTES."""
MAX_SKIPPED_BYTES: Final = 1024 * 1024
MAX_UNREAD_BYTES: Final = 4 * 1024 * 1024
"""Requests that were sent ahead; only what was in transit is more than one piece."""

_UPGRADE: Final = re.compile(rb"^upgrade:[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}


class GuardedConnection(HttpToolsProtocol):
    """uvicorn's connection, closed when a request is too slow or too large."""

    request_timeout_s: float
    limits: RequestLimits
    capacity: Capacity

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._framing = Framing(self.limits)
        self._unread = b""  # requests that wait until there is room for their answers
        self._body_bytes = 0  # of the request that is being read
        self._held_bytes = 0  # of them, those that are in memory
        self._skipped_bytes = 0
        self._is_deaf = False  # all that still comes is skipped
        self._is_last = False  # the connection closes after the responses under way
        self._refusal: WebhookResponse | None = None  # the last response, after those
        self._is_upgrade = False  # this head is parsed again, without the upgrade
        self._deadline_s: float | None = None  # of the request, or of the end after a refusal
        self._flush_deadline_s: float | None = None  # for the client to read what was answered
        self._alarm: TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.capacity.enter(self):
            self._start_clock()
        else:
            self._is_deaf = True
            self._say(OVERLOADED)
            transport.close()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self.capacity.leave(self)
        self._forget_unread()
        self._release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._is_deaf:
            self._skip(len(data))
        elif self._unread:
            self._keep(self._unread + data)
        else:
            self._read(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has closed its side may still wait for a response."""
        self._is_last = True
        return self.is_answering()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._flush_deadline_s = self.loop.time() + self.request_timeout_s

    def resume_writing(self) -> None:
        super().resume_writing()
        self._flush_deadline_s = None

    def on_message_begin(self) -> None:
        self._body_bytes = 0
        self._is_upgrade = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._is_upgrade = True
            return
        fields = self._framing.begin_body(self.headers)
        self.expect_100_continue = fields.get(b"expect", b"").lower() == b"100-continue"
        self.begin_request()

    def on_body(self, body: bytes) -> None:
        """A part of the body of a request to the application."""
        self._body_bytes += len(body)
        if self._is_deaf:
            return
        if not self.cycle.response_complete:
            self._hold(len(body))
            super().on_body(body)
        elif self._body_bytes > self.limits.body_bytes:
            self._linger()

    def on_message_complete(self) -> None:
        if self._is_upgrade or self._is_deaf:
            return
        self._framing.end()
        self._deadline_s = None
        if not self.parser.should_keep_alive():
            self._is_deaf = self._is_last = True
        self.end_request()

    def on_response_complete(self) -> None:
        self._release()
        super().on_response_complete()
        self.go_on()

    def timeout_keep_alive_handler(self) -> None:
        """A request that has begun has its own deadline."""
        if self._framing.is_between:
            super().timeout_keep_alive_handler()

    def begin_request(self) -> None:
        """The headers are complete."""
        super().on_headers_complete()

    def end_request(self) -> None:
        """The body is complete."""
        super().on_message_complete()

    def is_answering(self) -> bool:
        """Whether a request has arrived that is not answered yet."""
        return self._framing.is_between and self.is_full()

    def is_full(self) -> bool:
        """Whether the next request must wait."""
        return self.cycle is not None and not self.cycle.response_complete

    def go_on(self) -> None:
        """Read the requests that have waited for the end of a response."""
        if self.transport.is_closing():
            return
        self.capacity.answered(self)
        data = self._unread
        self._forget_unread()
        if data:
            self._unset_keepalive_if_required()
            self._read(data)
        elif self._is_last and not self.is_answering():
            self._end()

    def refuse(self, response: WebhookResponse) -> None:
        """Answer after the earlier requests, and close."""
        self.hear_no_more()
        self._refusal = response
        if not self.is_answering():
            self._end()

    def hear_no_more(self) -> None:
        """Give up the request that is being read, and all that comes after it."""
        self._is_deaf = self._is_last = True
        self._deadline_s = None
        self._forget_unread()
        self._release()
        if self._is_application_reading():
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    @property
    def is_waiting(self) -> bool:
        return not self.is_answering()

    @property
    def unfinished_bytes(self) -> int:
        return len(self._unread) + (0 if self._framing.is_between else self._held_bytes)

    def give_way(self) -> None:
        """Make room for another connection."""
        is_silent = self._is_deaf or self._framing.is_between
        self.hear_no_more()
        if self.is_answering():
            return  # it closes after that
        if is_silent:
            self.transport.abort()
        else:
            self._say(OVERLOADED)
            self.transport.close()

    def _read(self, data: bytes) -> None:
        framing, at, end = self._framing, 0, len(data)
        try:
            while at < end and not self._is_deaf:
                if framing.is_between:
                    if self.is_full():
                        self._keep(data[at:])
                        return
                    if self._deadline_s is None:
                        self._start_clock()
                piece, at = framing.read(data, at)
                try:
                    self.parser.feed_data(piece)
                except HttpParserUpgrade:
                    self._parse_without_upgrade(piece)
        except ProblemError as error:
            self._refuse(error.problem)
        except HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.problem if isinstance(cause, ProblemError) else INVALID)

    def _parse_without_upgrade(self, head: bytes) -> None:
        """An upgrade is ignored, as HTTP allows; the parser cannot do that."""
        if self.parser.get_method() == b"CONNECT":
            raise ProblemError(INVALID)
        self.parser = HttpRequestParser(self)
        self.parser.feed_data(_UPGRADE.sub(b"", head))

    def _keep(self, data: bytes) -> None:
        """Keep requests that were sent ahead, and let the client wait."""
        self._forget_unread()
        self._unread = data
        self.flow.pause_reading()
        if not self.capacity.hold(self, len(data)) or len(data) > MAX_UNREAD_BYTES:
            self.hear_no_more()

    def _forget_unread(self) -> None:
        self.capacity.release(len(self._unread))
        self._unread = b""

    def _skip(self, number: int) -> None:
        self._skipped_bytes += number
        if self._skipped_bytes > MAX_SKIPPED_BYTES:
            self.flow.pause_reading()

    def _hold(self, number: int) -> None:
        """Count bytes of a body that stay in memory. Raises ProblemError if there is no room."""
        self._held_bytes += number
        if not self.capacity.hold(self, number):
            raise ProblemError(OVERLOADED)

    def _release(self) -> None:
        self.capacity.release(self._held_bytes)
        self._held_bytes = 0

    def _start_clock(self) -> None:
        self._deadline_s = self.loop.time() + self.request_timeout_s

    def _watch(self) -> None:
        """Check the deadlines. One timer for a connection is cheaper than one for a request."""
        now_s = self.loop.time()
        if self.transport.is_closing() and self._flush_deadline_s is None:
            self._flush_deadline_s = now_s + self.request_timeout_s
        if self._flush_deadline_s is not None and now_s >= self._flush_deadline_s:
            self.transport.abort()
        elif self._deadline_s is not None and now_s >= self._deadline_s:
            if self._is_deaf:
                self.transport.abort()
            else:
                self._refuse(TOO_SLOW)
        deadlines = [one for one in (self._deadline_s, self._flush_deadline_s) if one is not None]
        left_s = min([self.request_timeout_s, *(one - now_s for one in deadlines)])
        self._arm(max(left_s, MIN_WATCH_S))

    def _arm(self, after_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.loop.call_later(after_s, self._watch)

    def _refuse(self, problem: Problem) -> None:
        if self.transport.is_closing():
            return
        if self._is_application_reading() and self.cycle.response_started:
            self.hear_no_more()
            self.transport.close()
            return
        metrics.bound(metrics.REQUESTS, *metrics.UNKNOWN, problem.status).inc()
        self.refuse(_response(problem))

    def _say(self, problem: Problem) -> None:
        metrics.bound(metrics.REQUESTS, *metrics.UNKNOWN, problem.status).inc()
        self.transport.write(raw(_response(problem), keep_alive=False))

    def _is_application_reading(self) -> bool:
        """Whether the body of a request that is not answered yet is being read."""
        cycle = self.cycle
        return not self._framing.is_between and cycle is not None and not cycle.response_complete

    def _end(self) -> None:
        """Close after the last response."""
        if self._refusal is None:
            self.transport.close()
            return
        self.transport.write(raw(self._refusal, keep_alive=False))
        self._refusal = None
        self._linger()

    def _linger(self) -> None:
        """Close this side; the other one when the client closes it, or a moment later.

        Closing both at once could lose the answer: the client would be told that what it still
        sends was not received.
        """
        self._is_deaf = self._is_last = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline_s = self.loop.time() + LINGER_S
        self._arm(LINGER_S)


def _response(problem: Problem) -> WebhookResponse:
    return WebhookResponse(problem.status, problem.headers(), problem.body(str(new_id())))


def raw(answer: WebhookResponse, keep_alive: bool) -> bytes:
    """A response as bytes."""
    lines = [f"{name}: {value}\r\n" for name, value in answer.headers.items()]
    if not keep_alive:
        lines.append("connection: close\r\n")
    lines.append(f"content-length: {len(answer.body)}\r\n\r\n")
    return (_STATUS_LINES[answer.status] + "".join(lines)).encode("latin-1") + answer.body
