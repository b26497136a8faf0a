"""The HTTP protocol of the server: uvicorn's, with two additions below ASGI.

*Deadlines.* uvicorn calls an application when the headers are complete, and has no deadline for a
slow client. Here each request has one, from its first byte to its last (SEC-8), and the size of
its headers is limited.

*Deliveries.* A POST to /webhooks/ is answered without an ASGI cycle, which would cost several times
as much as reading and writing. uvicorn answers everything else.
"""

from asyncio import Task, TimerHandle, current_task
from http import HTTPStatus
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paidonce.api.problems import Problem
from paidonce.guard.addresses import named_headers
from paidonce.ids import new_id
from paidonce.inbox.edge import (
    PREFIX,
    SAMPLES,
    TOO_SLOW,
    Edge,
    WebhookRequest,
    WebhookResponse,
    is_delivery,
)
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.telemetry import metrics

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_PIPELINED: Final = 16
MIN_WATCH_S: Final = 0.05

_DELIVERIES: Final = PREFIX.encode()
_SAMPLES: Final = SAMPLES.encode()
_HEADERS_TOO_LARGE: Final = Problem(431, "HEADERS_TOO_LARGE", "The headers are too large.")
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}


class GuardedConnection(HttpToolsProtocol):
    """uvicorn's connection, closed when a request is too slow or its headers are too large."""

    request_timeout_s: float = 10.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline_s: float | None = None
        self._alarm: TimerHandle | None = None
        self._header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_clock()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Start the deadline also for data that does not begin a request, such as empty lines."""
        if self._deadline_s is None and self.is_idle():
            self._start_clock()
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        self._start_clock()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._header_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._reject(_HEADERS_TOO_LARGE)
        super().on_header(name, value)

    def on_message_complete(self) -> None:
        self._deadline_s = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """The response to invalid HTTP. It is counted, not logged: anybody can send it."""
        metrics.bound(metrics.REQUESTS, "unknown", 400).inc()
        super().send_400_response(msg)

    def is_answering(self) -> bool:
        """Whether a response has begun that another one must not interrupt."""
        cycle = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def is_idle(self) -> bool:
        """Whether there is nothing to answer."""
        return self.cycle is None or self.cycle.response_complete

    def _start_clock(self) -> None:
        self._deadline_s = self.loop.time() + self.request_timeout_s

    def _watch(self) -> None:
        """Check the deadline. One timer for the connection is cheaper than one for each request."""
        now_s = self.loop.time()
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self._reject(TOO_SLOW)
            return
        left_s = self.request_timeout_s if self._deadline_s is None else self._deadline_s - now_s
        self._alarm = self.loop.call_later(max(left_s, MIN_WATCH_S), self._watch)

    def _reject(self, problem: Problem) -> None:
        """Answer and close, unless a response has begun."""
        if self.transport.is_closing():
            return
        if not self.is_answering():
            metrics.bound(metrics.REQUESTS, "unknown", problem.status).inc()
            body = problem.body(str(new_id()))
            answer = WebhookResponse(problem.status, problem.headers(), body)
            self.transport.write(_raw(answer, keep_alive=False))
        self.transport.close()


class DeliveryConnection(GuardedConnection):
    """A connection that passes deliveries to the edge."""

    edge: Edge

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._call: WebhookRequest | None = None  # the delivery whose body is being read
        self._body = bytearray()
        self._is_rejected = False  # the rest of this request is skipped
        self._is_last = False  # the connection closes after the responses under way
        self._answers: list[Task[None]] = []  # under way, in the order of their requests

    def on_message_begin(self) -> None:
        self._call, self._body = None, bytearray()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._is_rejected:
            return  # a response now would be taken for the response to the rejected request
        if self._is_for_uvicorn():
            super().on_headers_complete()
        elif self._is_delivery():
            self._begin_delivery()
        else:
            # uvicorn would answer it before earlier deliveries: the client must send it again.
            self._is_rejected = self._is_last = True

    def on_body(self, body: bytes) -> None:
        if self._call is not None:
            self._body += body
            if len(self._body) > self.edge.max_body_bytes:
                self._reject_delivery(self.edge.too_large(self._call))
        elif not self._is_rejected:
            super().on_body(body)

    def on_message_complete(self) -> None:
        call, body = self._call, bytes(self._body)
        self._call, self._body = None, bytearray()
        if call is not None:
            self._deadline_s = None
            self._answer_later(call, body)
        elif not self._is_rejected:
            super().on_message_complete()
        elif not self._answers:
            self.transport.close()

    def shutdown(self) -> None:
        """Stop gracefully: answer accepted deliveries first."""
        self._is_last = True
        if not self._answers and self._call is None:
            super().shutdown()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has closed its side may still wait for a response."""
        self._is_last = True
        return bool(self._answers)

    def is_idle(self) -> bool:
        return not self._answers and super().is_idle()

    def is_answering(self) -> bool:
        return self._is_rejected or bool(self._answers) or super().is_answering()

    def _is_for_uvicorn(self) -> bool:
        """Not a delivery, or one that arrived while uvicorn is answering."""
        is_busy = self.cycle is not None and not self.cycle.response_complete
        return is_busy or not (self._answers or self._is_delivery())

    def _is_delivery(self) -> bool:
        if not self.url.startswith(_DELIVERIES) or self.parser.get_method() != b"POST":
            return False
        if self.url.find(_SAMPLES, len(_DELIVERIES)) < 0:
            return True
        return is_delivery(self.url.partition(b"?")[0].decode("latin-1"))

    def _begin_delivery(self) -> None:
        headers = named_headers(self.headers)
        path = self.url.partition(b"?")[0].decode("latin-1")
        peer = self.client[0] if self.client else None
        call = WebhookRequest("POST", path, headers, peer, self.edge.new_id())
        response = self.edge.reject(call)
        if response is not None:
            self._reject_delivery(response)
            return
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._call = call

    def _reject_delivery(self, response: WebhookResponse) -> None:
        """Answer at once and skip the rest of the body: closing now could lose the response."""
        self._call, self._body = None, bytearray()
        self._is_rejected = self._is_last = True
        if not self._answers:
            self.transport.write(_raw(response, keep_alive=False))

    def _answer_later(self, call: WebhookRequest, body: bytes) -> None:
        before = self._answers[-1] if self._answers else None
        keep_alive = self.parser.should_keep_alive()
        task = self.loop.create_task(self._answer(call, body, keep_alive, before))
        self._answers.append(task)
        self.tasks.add(task)
        task.add_done_callback(self._end_answer)
        if len(self._answers) >= MAX_PIPELINED:
            self.flow.pause_reading()

    async def _answer(
        self, call: WebhookRequest, body: bytes, keep_alive: bool, before: Task[None] | None
    ) -> None:
        answer = await self.edge.answer(call, body)
        if before is not None:
            await before
        await self.flow.drain()
        if self.transport.is_closing():
            return
        is_last = self._is_last and current_task() is self._answers[-1]
        is_kept = keep_alive and not is_last
        self.transport.write(_raw(answer, is_kept))
        maybe_crash(CrashPoint.ANSWERED)
        if not is_kept:
            self.transport.close()
        # Now, not in the done callback: the next request may be read before that.
        self._end_answer(cast("Task[None]", current_task()))

    def _end_answer(self, task: Task[None]) -> None:
        """Prepare the connection for the next request, if no response is under way."""
        if task not in self._answers:
            return
        self._answers.remove(task)
        self.tasks.discard(task)
        self.server_state.total_requests += 1
        if self._answers or self.transport.is_closing():
            return
        if self._is_last:  # set after the response was written
            self.transport.close()
            return
        self.flow.resume_reading()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )


def _raw(answer: WebhookResponse, keep_alive: bool) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in answer.headers.items()]
    if not keep_alive:
        lines.append("connection: close\r\n")
    lines.append(f"content-length: {len(answer.body)}\r\n\r\n")
    return (_STATUS_LINES[answer.status] + "".join(lines)).encode("latin-1") + answer.body
