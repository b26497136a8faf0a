"""Deliveries, answered below ASGI.

A POST to /webhooks/ is answered without an ASGI cycle, which would cost several times as much as
reading and writing. uvicorn answers everything else.
"""

from asyncio import Task, current_task
from typing import Any, Final, cast

from paidonce.guard.addresses import named_headers
from paidonce.inbox.connection import GuardedConnection, raw
from paidonce.inbox.edge import (
    PREFIX,
    SAMPLES,
    Edge,
    WebhookRequest,
    is_delivery,
)
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash

MAX_PIPELINED: Final = 16

_DELIVERIES: Final = PREFIX.encode()
_SAMPLES: Final = SAMPLES.encode()


class DeliveryConnection(GuardedConnection):
    """A connection that passes deliveries to the edge."""

    edge: Edge

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._call: WebhookRequest | None = None  # the delivery whose body is being read
        self._body = bytearray()
        self._answers: dict[Task[None], int] = {}  # under way, in order, with the bytes they hold

    def begin_request(self) -> None:
        if self._is_delivery():
            self._begin_delivery()
        else:
            super().begin_request()

    def on_body(self, body: bytes) -> None:
        if self._call is None:
            super().on_body(body)
            return
        self._hold(len(body))
        self._body += body
        if len(self._body) > self.limits.body_bytes:
            self.refuse(self.edge.too_large(self._call))

    def end_request(self) -> None:
        call, body = self._call, bytes(self._body)
        if call is not None:
            self._call, self._body = None, bytearray()
            self._answer_later(call, body)
        else:
            super().end_request()

    def shutdown(self) -> None:
        """Stop gracefully: answer accepted deliveries first."""
        self._is_last = True
        self._forget_unread()
        if not self._answers and self._call is None:
            super().shutdown()

    def hear_no_more(self) -> None:
        super().hear_no_more()
        self._call, self._body = None, bytearray()

    def is_answering(self) -> bool:
        return bool(self._answers) or super().is_answering()

    def is_full(self) -> bool:
        is_busy = self.cycle is not None and not self.cycle.response_complete
        return is_busy or len(self._answers) >= MAX_PIPELINED

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the application when the deliveries that came before have been answered."""
        if self._answers:
            self.pipeline.appendleft((cycle, app))
        else:
            super()._start_asgi_task(cycle, app)

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
            self.refuse(response)
            return
        if self.expect_100_continue and not self._answers:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._call = call

    def _answer_later(self, call: WebhookRequest, body: bytes) -> None:
        before = next(reversed(self._answers), None)
        keep_alive = self.parser.should_keep_alive()
        task = self.loop.create_task(self._answer(call, body, keep_alive, before))
        self._answers[task] = self._held_bytes
        self._held_bytes = 0
        self.tasks.add(task)
        task.add_done_callback(self._end_answer)

    async def _answer(
        self, call: WebhookRequest, body: bytes, keep_alive: bool, before: Task[None] | None
    ) -> None:
        answer = await self.edge.answer(call, body)
        if before is not None:
            await before
        await self.flow.drain()
        if self.transport.is_closing():
            return
        is_only = len(self._answers) == 1 and not (self._unread or self.pipeline or self._refusal)
        is_kept = keep_alive and not (self._is_last and is_only)
        self.transport.write(raw(answer, is_kept))
        maybe_crash(CrashPoint.ANSWERED)
        if not is_kept:
            self.transport.close()
        # Now, not in the done callback: the next request may be read before that.
        self._end_answer(cast("Task[None]", current_task()))

    def _end_answer(self, task: Task[None]) -> None:
        """Prepare the connection for the next request, if no response is under way."""
        held_bytes = self._answers.pop(task, None)
        if held_bytes is None:
            return
        self.capacity.release(held_bytes)
        self.tasks.discard(task)
        self.server_state.total_requests += 1
        if self._answers or self.transport.is_closing():
            return
        if self.pipeline:
            super()._start_asgi_task(*self.pipeline.pop())
            return
        self.flow.resume_reading()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        if self._unread or self._is_last:
            self.go_on()
        else:
            self.capacity.answered(self)
