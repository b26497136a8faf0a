"""The hot path: what is answered to POST /webhooks/{source}.

A delivery is looked at before its body is read (`objection`), and answered when the transaction
that holds its event has committed (`answer`). Bytes come either from the server's own connection
(`connection.py`, where they cost least) or through ASGI, for those who mount Paidonce elsewhere.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from uuid_utils.compat import uuid7

from paidonce import telemetry
from paidonce.domain.risk import Suspicion
from paidonce.engine.intake import Intake
from paidonce.engine.items import Incoming, Request, Result, Source, Verdict
from paidonce.errors import PaidonceError
from paidonce.providers.contract import TEST_HEADER
from paidonce.telemetry import logger
from paidonce.web.addresses import Addresses, named_headers
from paidonce.web.guard import Guard, suspicion_of
from paidonce.web.problems import INTERNAL, Problem, problem_of

log = logger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIX: Final = "/webhooks/"
SAMPLES: Final = "/test"

_WORDS: Final = {
    Result.PROCESSED: "success",
    Result.DUPLICATE: "duplicate",
    Result.IGNORED: "ignored",
    Result.CONFLICT: "conflict",
}
"""What JSON acknowledgements say; every other outcome that was stored is `accepted`."""


def word_of(verdict: Verdict) -> str:
    """What became of a delivery, in one word for its sender."""
    return _WORDS.get(verdict.result, "accepted")


TOO_SLOW: Final = Problem(408, "TOO_SLOW", "The request did not arrive in time.")
NO_SOURCE: Final = Problem(404, "UNKNOWN_SOURCE", "There is no such source.")
_NOT_POST: Final = Problem(405, "METHOD_NOT_ALLOWED", "Deliveries are POSTed.", allow="POST")
TESTS_REFUSED: Final = Problem(
    403, "TEST_WEBHOOKS_REFUSED", "Test webhooks are not taken in production."
)
_NOT_ALLOWED: Final = Problem(403, "ADDRESS_NOT_ALLOWED", "This address may not deliver here.")
_WRONG_TYPE: Final = Problem(415, "UNSUPPORTED_MEDIA_TYPE", "This source does not send that.")
_ENCODED: Final = Problem(415, "UNSUPPORTED_MEDIA_TYPE", "Encoded bodies are not accepted.")

_HELD_FOR: Final[Mapping[str, tuple[str, Suspicion | None]]] = {
    "UNKNOWN_SOURCE": ("unknown_source", Suspicion.UNKNOWN_SOURCE),
    "ADDRESS_NOT_ALLOWED": ("address_not_allowed", None),
    "METHOD_NOT_ALLOWED": ("not_a_delivery", None),
    "UNSUPPORTED_MEDIA_TYPE": ("not_a_delivery", None),
    "TOO_LARGE": ("not_a_delivery", None),
    "TEST_WEBHOOKS_REFUSED": ("test_refused", None),
}
"""What is refused without a look at the body: its name in the log, and whether it adds risk."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Call:
    """A request as far as its headers: header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    peer: str | None
    id: str
    address: str | None = None  # of the client, when it has been looked for
    started_s: float = field(default_factory=time.monotonic)


def path_within(scope: Scope) -> str:
    """The path of a request from where Paidonce is mounted."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    rest: str = path.removeprefix(root)
    return rest if rest.startswith("/") else path


def is_delivery(path: str) -> bool:
    """Whether the edge answers there: below /webhooks/, except for what the API says there."""
    if not path.startswith(PREFIX) or path == f"{PREFIX}health":
        return False
    return not path.endswith(SAMPLES, len(PREFIX))


def _is_news(verdict: Verdict) -> bool:
    """Whether only its gateway can have sent it: whoever has captured a delivery can send it again,
    and under another id if that is not signed. What is stored for later is taken for news.
    """
    if verdict.result in (Result.DUPLICATE, Result.CONFLICT):
        return False
    decision = verdict.decision
    if decision is None or decision.payment is None:
        return True
    return decision.payment != decision.payment_before


class Edge:
    """Answers deliveries."""

    def __init__(
        self,
        intake: Intake,
        addresses: Addresses,
        guard: Guard,
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
        self._name = uuid7().hex
        self._numbers = count(1)
        self._too_large = Problem(
            413, "TOO_LARGE", f"A delivery may have {max_body_bytes} bytes at most."
        )

    def new_id(self) -> str:
        """An id for a request: cheaper than a random one, and as unique."""
        return f"{self._name}-{next(self._numbers)}"

    def objection(self, call: Call) -> Answer | None:
        """Why the request is refused before its body is read, if it is."""
        source = self._source(call)
        call.address = self._addresses.client(call.peer, call.headers)
        problem = self._guard.refusal(call.address, source, call.id)
        if problem is None:
            problem = self._problem(call, source)
            if problem is None:
                return None
            self._guard.failed(call.address, source, call.id, *_HELD_FOR[problem.code])
        return self._refusal(call, problem)

    def too_large(self, call: Call) -> Answer:
        """The answer to a body that is larger than it may be."""
        held_for = _HELD_FOR[self._too_large.code]
        self._guard.failed(call.address, self._source(call), call.id, *held_for)
        return self._refusal(call, self._too_large)

    async def answer(self, call: Call, body: bytes) -> Answer:
        """The answer to a delivery, after the commit. Never raises."""
        source = self._source(call)
        assert source is not None
        is_test = TEST_HEADER in call.headers
        request = Request(call.id, call.address, call.started_s, is_test)
        try:
            pong = source.provider.pong(body)
            if pong is not None:
                return self._accepted(source, call, pong)
            verdict = await self._intake.receive(source, call.headers, body, request)
        except PaidonceError as error:
            return self._refused(call, source, error)
        except Exception:
            log.exception("edge_failed", request_id=call.id)
            return self._refusal(call, INTERNAL)
        if not source.provider.is_signed:
            self._guard.unsigned(call.address)
        elif _is_news(verdict):
            self._guard.verified(call.address)
        assert verdict.event_id is not None
        assert isinstance(verdict.item, Incoming)
        word = word_of(verdict)
        delivery = verdict.item.delivery
        said = source.provider.acknowledge(word, verdict.event_id, delivery)
        return self._accepted(source, call, said)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The same, for any ASGI server."""
        headers = named_headers(scope["headers"])
        peer = scope["client"][0] if scope.get("client") else None
        call = Call(scope["method"], path_within(scope), headers, peer, self.new_id())
        answer = self.objection(call) or await self._answer_body(call, receive)
        if answer is None:
            return
        named = [*answer.headers.items(), ("content-length", str(len(answer.body)))]
        pairs = [(name.encode(), value.encode()) for name, value in named]
        await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer_body(self, call: Call, receive: Receive) -> Answer | None:
        """The answer to the body that follows, or None when the client has gone."""
        try:
            async with asyncio.timeout(self._request_timeout_s):
                body = await self._body(receive)
        except TimeoutError:
            return self._refusal(call, TOO_SLOW)
        if body is None:
            return None
        is_whole = len(body) <= self.max_body_bytes
        return await self.answer(call, body) if is_whole else self.too_large(call)

    async def _body(self, receive: Receive) -> bytes | None:
        """The body up to just over the cap, or None when the client has gone."""
        body = bytearray()
        while len(body) <= self.max_body_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        return bytes(body)

    def _source(self, call: Call) -> Source | None:
        return self._intake.sources.get(call.path.removeprefix(PREFIX))

    def _problem(self, call: Call, source: Source | None) -> Problem | None:
        if source is None:
            return NO_SOURCE
        if call.method != "POST":
            return _NOT_POST
        if TEST_HEADER in call.headers and not self._takes_tests:
            return TESTS_REFUSED
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

    def _accepted(self, source: Source, call: Call, said: tuple[str, bytes]) -> Answer:
        content_type, body = said
        headers = {"content-type": content_type, "x-request-id": call.id}
        return self._counted(source, Answer(200, headers, body))

    def _refused(self, call: Call, source: Source, error: PaidonceError) -> Answer:
        """The answer to a delivery that the intake did not take."""
        problem = problem_of(error)
        held_for = suspicion_of(error, source)
        if held_for is not None:
            self._guard.failed(call.address, source, call.id, *held_for)
        standing = self._guard.standing(call.address) if problem.status == 401 else None
        if standing is not None:
            problem = replace(problem, fields=standing.fields())
        return self._refusal(call, problem)

    def _refusal(self, call: Call, problem: Problem) -> Answer:
        source = self._source(call)
        headers = {**problem.headers(), "x-request-id": call.id}
        dictated = source.provider.refuse(problem.code, problem.detail) if source else None
        if dictated is not None:
            headers["content-type"], body = dictated
        else:
            body = problem.body(call.id)
        return self._counted(source, Answer(problem.status, headers, body))

    def _counted(self, source: Source | None, answer: Answer) -> Answer:
        provider = source.provider.name if source else "unknown"
        telemetry.bound(telemetry.REQUESTS, provider, answer.status).inc()
        return answer
