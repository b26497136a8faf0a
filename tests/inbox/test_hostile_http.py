"""Each request that two readers could understand differently has one answer, and limits hold."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest

from tests.support.servers import Shared
from tests.support.service import BASIC, KEY, Service, paid, signature

CONFIG: Final = f"""{BASIC}
[server]
request_timeout_s = 3
max_body_bytes = 65536
max_url_bytes = 1000
max_header_bytes = 4000
max_headers = 32
trusted_proxies = ["127.0.0.1"]
[limits]
api_keys = "3/minute"
"""

BODY: Final = json.dumps(paid("hostile")).encode()
SIGNED: Final = f"content-type: application/json\r\nx-signature: {signature(BODY)}\r\n".encode()
LENGTH: Final = b"content-length: %d\r\n" % len(BODY)
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
CLOSE: Final = b"connection: close\r\n"
CHUNKS: Final = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
HEALTH: Final = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
MUCH: Final = 2 * 1024 * 1024


def delivery(
    *headers: bytes, target: bytes = b"/webhooks/payments", version: bytes = b"1.1"
) -> bytes:
    head = b"POST %s HTTP/%s\r\nhost: x\r\n%s" % (target, version, SIGNED)
    return head + b"".join(headers) + b"\r\n"


def whole(*headers: bytes, target: bytes = b"/webhooks/payments", version: bytes = b"1.1") -> bytes:
    return delivery(LENGTH, CLOSE, *headers, target=target, version=version) + BODY


def chunked(end: bytes = b"\r\n", chunks: bytes = CHUNKS) -> bytes:
    return delivery(CHUNKED, CLOSE) + chunks + end


def heard(service: Service, *sent: bytes) -> list[tuple[int, str]]:
    """Send, and read until the server closes; the statuses and codes of the answers."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        with suppress(ConnectionError):
            for piece in sent:
                connection.sendall(piece)
        received = b""
        with suppress(ConnectionError):
            while piece := connection.recv(65_536):
                received += piece
    return list(_answers(received))


def _answers(received: bytes) -> Iterator[tuple[int, str]]:
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
        size = int(lengths[0].split(b":")[1]) if lengths else 0
        said = json.loads(received[:size]) if size else {}
        received = received[size:]
        yield int(head.split()[1]), said.get("code", said.get("status", ""))


REFUSED: Final = {
    "length and chunks": delivery(LENGTH, CHUNKED) + CHUNKS + b"\r\n",
    "the same length twice": delivery(LENGTH, LENGTH) + BODY,
    "two lengths": delivery(LENGTH, b"content-length: 5\r\n") + BODY,
    "a list of lengths": delivery(b"content-length: 5, 5\r\n") + b"12345",
    "a length with a sign": delivery(b"content-length: +5\r\n") + b"12345",
    "a length of 19 digits": delivery(b"content-length: %s\r\n" % (b"9" * 19)),
    "two hosts": whole(b"host: y\r\n"),
    "two content types": whole(b"content-type: text/plain\r\n"),
    "two authorizations": b"GET /api/v1/users HTTP/1.1\r\nhost: x\r\n"
    b"authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
    "a folded header": whole(b"x-a: b\r\n c: d\r\n"),
    "a blank before the colon": whole(b"x-a : b\r\n"),
    "a name beyond ASCII": whole(b"x-\xe9: b\r\n"),
    "a name with brackets": whole(b"x(): b\r\n"),
    "a name with NUL": whole(b"x\0: b\r\n"),
    "a value with NUL": whole(b"x: \0\r\n"),
    "a value with CR": whole(b"x: a\rb\r\n"),
    "lines that end with LF": whole().replace(b"\r\n", b"\n"),
    "an end with LF": delivery(LENGTH)[:-2] + b"\n" + BODY,
    "identity": delivery(b"transfer-encoding: identity\r\n", LENGTH) + BODY,
    "gzip, chunked": delivery(b"transfer-encoding: gzip, chunked\r\n") + CHUNKS + b"\r\n",
    "chunked twice": delivery(CHUNKED, CHUNKED) + CHUNKS + b"\r\n",
    "nearly chunked": delivery(b"transfer-encoding: xchunked\r\n") + CHUNKS + b"\r\n",
    "chunks in HTTP/1.0": delivery(CHUNKED, version=b"1.0") + CHUNKS + b"\r\n",
    "HTTP/2.0": whole(version=b"2.0"),
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "HTTP/2 at once": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a URL beyond ASCII": b"GET /\xe9 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a URL without a path": b"GET http://x HTTP/1.1\r\nhost: x\r\n\r\n",
    "many empty lines": b"\r\n" * 100,
    "a chunk that ends elsewhere": chunked(chunks=CHUNKS.replace(b"}\r\n", b"}xx")),
    "a chunk line with LF": chunked(chunks=CHUNKS.replace(b"\r\n", b"\n", 1)),
    "a size with 0x": chunked(chunks=b"0x" + CHUNKS),
    "a size with a sign": chunked(chunks=b"+" + CHUNKS),
    "a size of 17 digits": chunked(chunks=b"f" * 17 + b"\r\n"),
    "a trailer without a colon": chunked(b"x-forwarded-for 9.9.9.9\r\n\r\n"),
    "a trailer with LF": chunked(b"x: a\n\nGET / HTTP/1.1\r\n\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_two_readers_could_understand_differently_is_refused(
    shared: Shared, name: str
) -> None:
    """SEC-8: once, and what comes after it is not read."""
    assert heard(shared.service, REFUSED[name] + HEALTH) == [(400, "INVALID_HTTP")]


ENDLESS: Final = {
    "a method": (b"A" * MUCH, (414, "URL_TOO_LONG")),
    "a URL": (b"GET /" + b"a" * MUCH, (414, "URL_TOO_LONG")),
    "a name": (b"GET / HTTP/1.1\r\n" + b"a" * MUCH, (431, "HEADERS_TOO_LARGE")),
    "a value": (b"GET / HTTP/1.1\r\na: " + b"a" * MUCH, (431, "HEADERS_TOO_LARGE")),
    "blanks": (b"GET / HTTP/1.1\r\na: " + b" " * MUCH, (431, "HEADERS_TOO_LARGE")),
    "33 headers": (b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 33 + b"\r\n", (431, "HEADERS_TOO_LARGE")),
    "an extension": (chunked(chunks=b"5;" + b"a" * MUCH), (400, "CHUNKS_TOO_SMALL")),
    "extensions": (chunked(chunks=b"1;a=bcdefgh\r\nx\r\n" * 4_000), (400, "CHUNKS_TOO_SMALL")),
    "one-byte chunks": (chunked(chunks=b"1\r\nx\r\n" * 60_000), (400, "CHUNKS_TOO_SMALL")),
    "a trailer": (chunked(b"a: " + b"a" * MUCH), (431, "HEADERS_TOO_LARGE")),
    "trailers": (chunked(b"a: b\r\n" * 200), (431, "HEADERS_TOO_LARGE")),
    "33 trailers": (chunked(b"a:b\r\n" * 33 + b"\r\n"), (431, "HEADERS_TOO_LARGE")),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_cut_off_at_its_limit(shared: Shared, name: str) -> None:
    """SEC-8: by the bytes that have arrived, whether or not anything can be parsed."""
    sent, answer = ENDLESS[name]
    assert heard(shared.service, sent) == [answer]


ACCEPTED: Final = {
    "a trailer": chunked(b"x-note: 1\r\n\r\n"),
    "an extension": chunked(chunks=CHUNKS.replace(b"\r\n", b';a="b c"\r\n', 1)),
    "Chunked": delivery(b"Transfer-Encoding: Chunked\r\n", CLOSE) + CHUNKS + b"\r\n",
    "HTTP/1.0": whole(version=b"1.0"),
    "an upgrade": whole(b"upgrade: h2c\r\n").replace(b"close", b"close, Upgrade"),
    "an unknown expectation": whole(b"expect: 200-ok\r\n"),
    "a whole URL": whole(target=b"http://x/webhooks/payments"),
    "a query": whole(target=b"/webhooks/payments?a=b"),
    "a path that is encoded": whole(target=b"/%77ebhooks/payments"),
    "a value beyond ASCII": whole(b"x: \xe9\r\n"),
    "an empty line before it": b"\r\n" + whole(),
    "a header twice": whole(b"x-a: 1\r\nx-a: 2\r\n"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_merely_unusual_is_a_delivery(shared: Shared, name: str) -> None:
    """REC-5"""
    ((status, _),) = heard(shared.service, ACCEPTED[name])
    assert status == 200


@pytest.mark.parametrize("target", [b"//webhooks/payments", b"/api/../webhooks/payments"])
def test_a_path_that_only_looks_like_one_for_deliveries_is_none(
    shared: Shared, target: bytes
) -> None:
    """REC-5"""
    assert heard(shared.service, whole(target=target)) == [(404, "NOT_FOUND")]


@pytest.mark.parametrize("target", [b"/webhooks/p%61yments", b"/webhooks/payments#a"])
def test_a_source_is_named_as_it_is(shared: Shared, target: bytes) -> None:
    """REC-5"""
    assert heard(shared.service, whole(target=target)) == [(404, "UNKNOWN_SOURCE")]


def test_nothing_is_read_after_a_refused_request_or_the_last_one(shared: Shared) -> None:
    """SEC-8 REC-2"""
    refused = delivery(LENGTH, target=b"/webhooks/nobody") + BODY
    assert heard(shared.service, refused + whole()) == [(404, "UNKNOWN_SOURCE")]
    (one,) = heard(shared.service, whole() + HEALTH)
    assert one[0] == 200


def test_requests_of_both_kinds_are_answered_in_their_order(shared: Shared) -> None:
    """REC-5: what is not a delivery waits for the deliveries before it, and the reverse."""
    missing = b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"
    first = delivery(LENGTH) + BODY
    answers = heard(shared.service, first + first + missing + first + missing + missing + HEALTH)
    assert [status for status, _ in answers] == [200, 200, 404, 200, 404, 404, 200]


def test_a_trailer_never_names_an_address_or_a_key(shared: Shared) -> None:
    """SEC-8 SEC-1: an address in a trailer would escape the limit on wrong keys."""

    def asked(trailer: bytes) -> list[tuple[int, str]]:
        head = b"GET /api/v1/users HTTP/1.1\r\nhost: x\r\nauthorization: Bearer po_wrong\r\n"
        return heard(shared.service, head + CLOSE + CHUNKED + b"\r\n0\r\n" + trailer + b"\r\n")

    statuses = [asked(b"x-forwarded-for: 10.0.0.%d\r\n" % number)[0][0] for number in range(40)]
    assert set(statuses) == {401, 429}
    assert statuses[-1] == 429
    head = b"GET /api/v1/orders HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 10.1.1.1\r\n"
    trailer = b"authorization: Bearer %s\r\n\r\n" % KEY.encode()
    ((status, _),) = heard(shared.service, head + CLOSE + CHUNKED + b"\r\n0\r\n" + trailer)
    assert status == 401


def test_an_api_request_that_is_cut_off_does_nothing(shared: Shared) -> None:
    """SEC-8: by a slow body, or one that is invalid in the middle."""
    head = b"POST /api/v1/users HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += b"x-forwarded-for: 10.1.1.2\r\nauthorization: Bearer %s\r\n" % KEY.encode()
    user = b'{"email": "cut-off@example.com"}'
    slow = head + b"content-length: %d\r\n\r\n" % (len(user) + 1) + user
    assert heard(shared.service, slow) == [(408, "TOO_SLOW")]
    invalid = head + CHUNKED + b"\r\n%x\r\n%s\r\nzz\r\n" % (len(user), user)
    assert heard(shared.service, invalid) == [(400, "INVALID_HTTP")]
    assert shared.rows("SELECT 1 FROM users WHERE email = 'cut-off@example.com'") == []
    assert shared.service.log_lines(level="error") == []
