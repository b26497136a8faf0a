"""However the bytes of requests are split, the answers are those of one piece (SEC-8)."""

import asyncio
import re
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import uvicorn
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from paidonce.inbox.capacity import Capacity
from paidonce.inbox.edge import Edge, WebhookRequest, WebhookResponse
from paidonce.inbox.framing import RequestLimits
from paidonce.inbox.protocol import DeliveryConnection

LIMITS: Final = RequestLimits(url_bytes=300, header_bytes=1_100, headers=16, body_bytes=600)
MAX_PIECES: Final = 12


class Echo(Edge):
    """Answers each delivery with its headers and body."""

    def __init__(self) -> None:
        pass

    def new_id(self) -> str:
        return "1"

    def reject(self, call: WebhookRequest) -> WebhookResponse | None:
        return None if call.path == "/webhooks/a" else WebhookResponse(404, {}, b"nobody")

    def too_large(self, call: WebhookRequest) -> WebhookResponse:
        return WebhookResponse(413, {}, b"")

    async def answer(self, call: WebhookRequest, body: bytes) -> WebhookResponse:
        await asyncio.sleep(0)
        return WebhookResponse(200, {}, repr(sorted(call.headers.items())).encode() + body)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the headers and the body."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    said = repr(sorted(scope["headers"])).encode() + body
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": said})


_CHANCE: Final = re.compile(
    rb'"request_id":"[^"]*"|connection: close\r\n|HTTP/1.1 100 Continue\r\n\r\n'
)
"""What depends on time: a random id; whether the end has come with a request; and whether the
response before it was sent when a request began.
"""


async def heard(pieces: list[bytes]) -> bytes:
    """What a server on a real socket answers, until it closes."""
    config = uvicorn.Config(application, lifespan="off", log_config=None, ws="none")
    config.load()
    state = ServerState()
    bound = {
        "edge": Echo(),
        "limits": LIMITS,
        "capacity": Capacity(10, 1_000_000),
        "request_timeout_s": 30.0,
    }
    kind = type("Bound", (DeliveryConnection,), bound)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: kind(config, state, {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        answers = asyncio.create_task(_all_of(reader))
        with suppress(OSError):  # it has answered and closed
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.0005)  # so that most pieces are read one by one
            writer.write_eof()
        received = await asyncio.wait_for(answers, 60)
        writer.close()
    return _CHANCE.sub(b"", received)


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server closes, however it does."""
    received = b""
    with suppress(OSError):
        while piece := await reader.read(65_536):
            received += piece
    return received


BODY: Final = b"hello, body"
HEADS: Final = st.sampled_from(
    [
        b"POST /webhooks/a",
        b"POST /webhooks/nobody",
        b"GET /x",
        b"POST /x",
        b"get /x",
        b"GET " + b"/a" * 200,
    ]
)
HEADERS: Final = st.lists(
    st.sampled_from(
        [
            b"Host: x",
            b"host: y",
            b"X-A: 1",
            b"a:" + b" " * 400,
            b"x-b: " + b"b" * 700,
            b"Expect: 100-continue",
            b"Connection: close",
            b"Connection: upgrade",
            b"Upgrade: h2c",
            b"Content-Length: 11",
            b"content-length: 5",
            b"Transfer-Encoding: chunked",
            b"Transfer-Encoding: identity",
            b"bad header",
            b" fold",
            b"x\n-y: 1",
        ]
    ),
    max_size=5,
)
CHUNK: Final = st.sampled_from(
    [
        b"5\r\nhello\r\n",
        b"b;a=b\r\nhello, body\r\n",
        b"1\r\nx\r\n" * 40,
        b"z\r\n",
        b"5 \r\nhello\r\n",
        b"5\r\nhelloXX",
        b"1;" + b"e" * 1_100 + b"\r\nx\r\n",
        b"0\n\r\n",
        b"190\r\n" + b"y" * 400 + b"\r\n",
    ]
)
ENDS: Final = st.sampled_from(
    [
        b"0\r\n\r\n",
        b"0\r\nx-forwarded-for: 9\r\n\r\n",
        b"0\r\nbad\r\n\r\n",
        b"0\r\nx: 1\n\n\r\n\r\n",
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request that is nearly one."""
    version = draw(st.sampled_from([b"HTTP/1.1"] * 4 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTX"]))
    lines = [draw(HEADS) + b" " + version, *draw(HEADERS)]
    ordinary = [BODY, b"", b"\r\n", b"\n\r\n\r\n"]
    body = draw(st.sampled_from(ordinary)) if draw(st.booleans()) else b""
    if draw(st.booleans()):
        lines.append(b"Transfer-Encoding: chunked")
        body = b"".join(draw(st.lists(CHUNK, max_size=3))) + draw(ENDS)
    elif draw(st.booleans()):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", b""]) + body


@st.composite
def split_bytes(draw: st.DrawFn) -> list[bytes]:
    """A few requests, and where to cut them."""
    whole = b"".join(draw(st.lists(requests(), min_size=1, max_size=4)))
    places = draw(st.sets(st.integers(0, len(whole)), max_size=MAX_PIECES - 1))
    return [whole[start:end] for start, end in pairwise([0, *sorted(places), len(whole)])]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(split_bytes())
@example([bytes([byte]) for byte in b"POST /webhooks/a HTTP/1.1\r\nContent-Length: 2\r\n\r\nab"])
def test_the_answers_do_not_depend_on_how_the_bytes_are_split(pieces: list[bytes]) -> None:
    """SEC-8: neither for deliveries nor for the API, valid or not."""

    async def both() -> tuple[bytes, bytes]:
        return await heard([b"".join(pieces)]), await heard(pieces)

    whole, split = asyncio.run(both())
    assert split == whole
