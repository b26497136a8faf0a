"""The hot path: POST /webhooks/{source}.

A request may be rejected before its body is read (`reject`). A delivery is answered after the
transaction with its event has committed (`answer`). The bytes come from the server's own protocol
(`protocol.py`, the cheapest way) or through ASGI, if Paidonce is mounted in another application.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from paidonce.api.problems import INTERNAL, Problem, problem_of
from paidonce.errors import PaidonceError
from paidonce.guard.addresses import Addresses, named_headers
from paidonce.guard.bans import Suspicion
from paidonce.guard.request_guard import RequestGuard, suspicion_of
from paidonce.ids import new_id
from paidonce.inbox.intake import Intake
from paidonce.processing.items import Incoming, Request, Result, ResultKind, Source
from paidonce.providers.contract import TEST_HEADER
from paidonce.telemetry import logger, metrics

log = logger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIX: Final = "/webhooks/"
SAMPLES: Final = "/test"

_ACK_WORDS: Final = {
    ResultKind.PROCESSED: "success",
    ResultKind.DUPLICATE: "duplicate",
    ResultKind.IGNORED: "ignored",
    ResultKind.CONFLICT: "conflict",
}
"""The status in JSON acknowledgements; every other stored result is `accepted`."""


def ack_word(result: Result) -> str:
    """The status in the acknowledgement of a delivery."""
    return _ACK_WORDS.get(result.kind, "accepted")


TOO_SLOW: Final = Problem(408, "TOO_SLOW", "The request did not arrive in time.")
NO_SOURCE: Final = Problem(404, "UNKNOWN_SOURCE", "There is no such source.")
_NOT_POST: Final = Problem(405, "METHOD_NOT_ALLOWED", "Use POST.", allow="POST")
TESTS_REJECTED: Final = Problem(
    403, "TEST_WEBHOOKS_REFUSED", "Test webhooks are not accepted in production."
)
_NOT_ALLOWED: Final = Problem(403, "ADDRESS_NOT_ALLOWED", "This address may not deliver here.")
_WRONG_TYPE: Final = Problem(
    415, "UNSUPPORTED_MEDIA_TYPE", "This source does not send this content type."
)
_ENCODED: Final = Problem(415, "UNSUPPORTED_MEDIA_TYPE", "Encoded bodies are not accepted.")

_REJECTIONS: Final[Mapping[str, tuple[str, Suspicion | None]]] = {
    "UNKNOWN_SOURCE": ("unknown_source", Suspicion.UNKNOWN_SOURCE),
    "ADDRESS_NOT_ALLOWED": ("address_not_allowed", None),
    "METHOD_NOT_ALLOWED": ("not_a_delivery", None),
    "UNSUPPORTED_MEDIA_TYPE": ("not_a_delivery", None),
    "TOO_LARGE": ("not_a_delivery", None),
    "TEST_WEBHOOKS_REFUSED": ("test_rejected", None),
}
"""Rejections before the body is read: their name in the log, and what they add to the risk."""


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class WebhookRequest:
    """The head of an HTTP request; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    peer: str | None
    id: str
    address: str | None = None  # of the client, once it is known
    started_s: float = field(default_factory=time.monotonic)


def path_within(scope: Scope) -> str:
    """The path of a request below the mount point."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    rest: str = path.removeprefix(root)
    return rest if rest.startswith("/") else path


def is_delivery(path: str) -> bool:
    """Whether the path is for deliveries: below /webhooks/, except health and test webhooks."""
    if not path.startswith(PREFIX) or path == f"{PREFIX}health":
        return False
    return not path.endswith(SAMPLES, len(PREFIX))


def _is_news(result: Result) -> bool:
    """Whether only the gateway can have sent it, and not an attacker who captured a delivery.

    A captured delivery can be sent again, under another id if the id is not signed.
    """
    if result.kind in (ResultKind.DUPLICATE, ResultKind.CONFLICT):
        return False
    decision = result.decision
    if decision is None or decision.payment is None:
        return True
    return decision.payment != decision.payment_before


class Edge:
    """Answers deliveries."""

    def __init__(
        self,
        intake: Intake,
        addresses: Addresses,
        guard: RequestGuard,
        max_body_bytes: int,
        request_timeout_s: float = 10.0,
        takes_tests: bool = True,
    ) -> None:
        self._intake = intake
        self._addresses = addresses
        self._guard = guard
        self.max_body_bytes = max_body_bytes
        self._request_timeout_s = request_timeout_s
        self._takes_tests = takes_tests
        self._name = new_id().hex
        self._numbers = count(1)
        self._too_large = Problem(
            413, "TOO_LARGE", f"A delivery may have {max_body_bytes} bytes at most."
        )

    def new_id(self) -> str:
        """A unique id of a request, cheaper than a random one."""
        return f"{self._name}-{next(self._numbers)}"

    def reject(self, call: WebhookRequest) -> WebhookResponse | None:
        """The response, if the request is rejected before its body is read."""
        source = self._source(call)
        call.address = self._addresses.client(call.peer, call.headers)
        problem = self._guard.reject(call.address, source, call.id)
        if problem is None:
            problem = self._problem(call, source)
            if problem is None:
                return None
            self._guard.failed(call.address, source, call.id, *_REJECTIONS[problem.code])
        return self._problem_response(call, problem)

    def too_large(self, call: WebhookRequest) -> WebhookResponse:
        rejection = _REJECTIONS[self._too_large.code]
        self._guard.failed(call.address, self._source(call), call.id, *rejection)
        return self._problem_response(call, self._too_large)

    async def answer(self, call: WebhookRequest, body: bytes) -> WebhookResponse:
        """The response to a delivery, after the commit. Never raises."""
        source = self._source(call)
        assert source is not None
        is_test = TEST_HEADER in call.headers
        request = Request(call.id, call.address, call.started_s, is_test)
        try:
            answer_ping = source.provider.answer_ping(body)
            if answer_ping is not None:
                return self._accepted(source, call, answer_ping)
            result = await self._intake.receive(source, call.headers, body, request)
        except PaidonceError as error:
            return self._rejected(call, source, error)
        except Exception:
            log.exception("edge_failed", request_id=call.id)
            return self._problem_response(call, INTERNAL)
        if not source.provider.is_signed:
            self._guard.unsigned(call.address)
        elif _is_news(result):
            self._guard.verified(call.address)
        assert result.event_id is not None
        assert isinstance(result.item, Incoming)
        delivery = result.item.delivery
        content = source.provider.success_response(ack_word(result), result.event_id, delivery)
        return self._accepted(source, call, content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of any ASGI server."""
        headers = named_headers(scope["headers"])
        peer = scope["client"][0] if scope.get("client") else None
        call = WebhookRequest(scope["method"], path_within(scope), headers, peer, self.new_id())
        answer = self.reject(call) or await self._answer_body(call, receive)
        if answer is None:
            return
        named = [*answer.headers.items(), ("content-length", str(len(answer.body)))]
        pairs = [(name.encode(), value.encode()) for name, value in named]
        await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer_body(self, call: WebhookRequest, receive: Receive) -> WebhookResponse | None:
        """Read the body and answer it; None if the client is gone."""
        try:
            async with asyncio.timeout(self._request_timeout_s):
                body = await self._body(receive)
        except TimeoutError:
            return self._problem_response(call, TOO_SLOW)
        if body is None:
            return None
        is_whole = len(body) <= self.max_body_bytes
        return await self.answer(call, body) if is_whole else self.too_large(call)

    async def _body(self, receive: Receive) -> bytes | None:
        """The body, up to just over the limit; None if the client is gone."""
        body = bytearray()
        while len(body) <= self.max_body_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        return bytes(body)

    def _source(self, call: WebhookRequest) -> Source | None:
        return self._intake.sources.get(call.path.removeprefix(PREFIX))

    def _problem(self, call: WebhookRequest, source: Source | None) -> Problem | None:
        if source is None:
            return NO_SOURCE
        if call.method != "POST":
            return _NOT_POST
        if TEST_HEADER in call.headers and not self._takes_tests:
            return TESTS_REJECTED
        if not self._addresses.may_deliver(source.name, call.address):
            return _NOT_ALLOWED
        if call.headers.get("content-encoding", "identity") != "identity":
            return _ENCODED
        content_type = call.headers.get("content-type")
        if content_type is not None and content_type not in source.provider.content_types:
            essence = content_type.partition(";")[0].strip().lower()
            if essence not in source.provider.content_types:
                return _WRONG_TYPE
        length = call.headers.get("content-length", "0")
        is_long = not length.isdecimal() or len(length) > 18 or int(length) > self.max_body_bytes
        return self._too_large if is_long else None

    def _accepted(
        self, source: Source, call: WebhookRequest, content: tuple[str, bytes]
    ) -> WebhookResponse:
        content_type, body = content
        headers = {"content-type": content_type, "x-request-id": call.id}
        return self._counted(source, WebhookResponse(200, headers, body))

    def _rejected(
        self, call: WebhookRequest, source: Source, error: PaidonceError
    ) -> WebhookResponse:
        problem = problem_of(error)
        suspicion = suspicion_of(error, source)
        if suspicion is not None:
            self._guard.failed(call.address, source, call.id, *suspicion)
        state = self._guard.limit_state(call.address) if problem.status == 401 else None
        if state is not None:
            problem = replace(problem, fields=state.fields())
        return self._problem_response(call, problem)

    def _problem_response(self, call: WebhookRequest, problem: Problem) -> WebhookResponse:
        source = self._source(call)
        headers = {**problem.headers(), "x-request-id": call.id}
        own_format = (
            source.provider.error_response(problem.code, problem.detail) if source else None
        )
        if own_format is not None:
            headers["content-type"], body = own_format
        else:
            body = problem.body(call.id)
        return self._counted(source, WebhookResponse(problem.status, headers, body))

    def _counted(self, source: Source | None, answer: WebhookResponse) -> WebhookResponse:
        provider = source.provider.name if source else "unknown"
        metrics.bound(metrics.REQUESTS, provider, answer.status).inc()
        return answer
