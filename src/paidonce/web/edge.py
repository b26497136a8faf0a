"""The hot path: POST /webhooks/{source} as a small raw ASGI application.

Reads the body under a cap, hands it to the intake, and answers when the transaction that holds
the event has committed. The deadline for headers and body is kept by `connection.py`.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from itertools import count
from typing import Any, Final

from uuid_utils.compat import uuid7

from paidonce import telemetry
from paidonce.engine.intake import Intake
from paidonce.engine.items import Request, Result, Source, Verdict
from paidonce.errors import PaidonceError
from paidonce.telemetry import logger
from paidonce.web.addresses import Addresses
from paidonce.web.problems import INTERNAL, Problem, problem_of

log = logger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIX: Final = "/webhooks/"

_PROCESS: Final = uuid7().hex
_NUMBERS: Final = count(1)
"""Together a request's id: cheaper than random ones, and as unique."""

_WORDS: Final = {
    Result.PROCESSED: "success",
    Result.DUPLICATE: "duplicate",
    Result.IGNORED: "ignored",
    Result.CONFLICT: "conflict",
}
"""What JSON acknowledgements say; every other outcome that was stored is `accepted`."""

_NO_SOURCE: Final = Problem(404, "UNKNOWN_SOURCE", "There is no such source.")
_NOT_POST: Final = Problem(405, "METHOD_NOT_ALLOWED", "Deliveries are POSTed.", allow="POST")
_NOT_ALLOWED: Final = Problem(403, "ADDRESS_NOT_ALLOWED", "This address may not deliver here.")
_WRONG_TYPE: Final = Problem(415, "UNSUPPORTED_MEDIA_TYPE", "This source does not send that.")
_ENCODED: Final = Problem(415, "UNSUPPORTED_MEDIA_TYPE", "Encoded bodies are not accepted.")


class _ClientGoneError(Exception):
    """The client closed the connection before its body was whole."""


class Edge:
    """Answers deliveries."""

    def __init__(self, intake: Intake, addresses: Addresses, max_body_bytes: int) -> None:
        self._intake = intake
        self._addresses = addresses
        self._max_body_bytes = max_body_bytes
        self._too_large = Problem(
            413, "TOO_LARGE", f"A delivery may have {max_body_bytes} bytes at most."
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = time.monotonic()
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        request_id = f"{_PROCESS}-{next(_NUMBERS)}"
        source = self._intake.sources.get(scope["path"].removeprefix(PREFIX))
        address = self._addresses.client(scope, headers)
        request = Request(request_id, address, started_s)
        try:
            problem = self._objection(scope, source, headers, address)
            if problem is None and source is not None:
                answer = await self._accept(source, headers, receive, request)
            else:
                answer = problem or _NO_SOURCE
        except _ClientGoneError:
            return
        except PaidonceError as error:
            answer = problem_of(error)
        except Exception:
            log.exception("edge_failed", request_id=request_id)
            answer = INTERNAL
        await _send(send, answer, request_id, source)

    def _objection(
        self, scope: Scope, source: Source | None, headers: Mapping[str, str], address: str | None
    ) -> Problem | None:
        """Why the request is refused before its body is read, if it is."""
        if source is None:
            return _NO_SOURCE
        if scope["method"] != "POST":
            return _NOT_POST
        if not self._addresses.may_deliver(source.name, address):
            return _NOT_ALLOWED
        if headers.get("content-encoding", "identity") != "identity":
            return _ENCODED
        content_type = headers.get("content-type")
        if content_type is not None:
            essence = content_type.partition(";")[0].strip().lower()
            if essence not in source.provider.content_types:
                return _WRONG_TYPE
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_body_bytes:
            return self._too_large
        return None

    async def _accept(
        self, source: Source, headers: Mapping[str, str], receive: Receive, request: Request
    ) -> Problem | tuple[str, bytes]:
        body = await self._body(receive)
        if body is None:
            return self._too_large
        verdict = await self._intake.receive(source, headers, body, request)
        assert verdict.event_id is not None
        return source.provider.acknowledge(_word(verdict), verdict.event_id)

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body, or None when it is larger than it may be."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            return body if len(body) <= self._max_body_bytes else None
        parts, size = [body], len(body)
        while message.get("more_body", False):
            if size > self._max_body_bytes:
                return None
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientGoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
        return b"".join(parts) if size <= self._max_body_bytes else None


def _word(verdict: Verdict) -> str:
    return _WORDS.get(verdict.result, "accepted")


async def _send(
    send: Send, answer: Problem | tuple[str, bytes], request_id: str, source: Source | None
) -> None:
    if isinstance(answer, Problem):
        status, body, added = answer.status, answer.body(request_id), answer.headers()
    else:
        content_type, body = answer
        status, added = 200, {"content-type": content_type}
    provider = source.provider.name if source else "unknown"
    telemetry.bound(telemetry.REQUESTS, provider, status).inc()
    headers = [(name.encode(), value.encode()) for name, value in added.items()]
    headers.append((b"content-length", str(len(body)).encode()))
    headers.append((b"x-request-id", request_id.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
