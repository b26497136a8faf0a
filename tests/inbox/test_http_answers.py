"""What the door answers to all that is not a proper delivery: never a 5xx."""

import json
import socket
import time
from contextlib import suppress
from typing import Final

import pytest

from tests.support.servers import Shared
from tests.support.service import BASIC, Reply, Service, paid, signature
from tests.support.tools import event, is_problem, items

CONFIG: Final = BASIC + "\n[server]\nrequest_timeout_s = 1\n"
HEADERS: Final = {"content-type": "application/json"}
LIMIT: Final = 262_144


def _body(inside: str) -> bytes:
    """A paid event, with something more in it."""
    return (
        '{"external_payment_id":"odd","event_id":"odd","status":"paid","amount":"990.00",'
        f'"currency":"RUB","email":"odd@example.com",{inside}}}'
    ).encode()


MALFORMED: Final[dict[str, bytes]] = {
    "empty": b"",
    "no json": b"paid",
    "cut short": b'{"external_payment_id":"odd","status":"pa',
    "trailing": _body('"x":1') + b"x",
    "two objects": _body('"x":1') + _body('"x":1'),
    "single quotes": _body("'x':1"),
    "array": b"[" + _body('"x":1') + b"]",
    "string": b'"paid"',
    "number": b"990",
    "null": b"null",
    "form": b"external_payment_id=odd&status=paid",
    "invalid utf-8": _body('"x":"?"').replace(b"?", b"\xff"),
    "overlong utf-8": _body('"x":"?"').replace(b"?", b"\xc0\xaf"),
    "encoded surrogate": _body('"x":"?"').replace(b"?", b"\xed\xa0\x80"),
    "utf-16": _body('"x":1').decode().encode("utf-16"),
    "duplicate key": _body('"amount":"1.00"'),
    "duplicate key, escaped": _body('"\\u0061mount":"1.00"'),
    "duplicate key, inside": _body('"x":{"a":1,"a":2}'),
    "nan": _body('"x":NaN'),
    "infinity": _body('"x":[-Infinity]'),
    "nan as amount": b'{"external_payment_id":"odd","status":"paid","amount":NaN}',
    "nan as text": _body('"x":1').replace(b'"990.00"', b'"NaN"'),
    "infinity as text": _body('"x":1').replace(b'"990.00"', b'"Infinity"'),
    "nested": _body('"x":' + "[" * 70 + "]" * 70),
    "nested objects": _body('"x":' + '{"a":' * 70 + "1" + "}" * 70),
    "nested without end": b"[" * 200_000,
    "nested objects without end": b'{"a":' * 50_000,
    "many digits": _body('"x":' + "9" * 65),
    "many decimals": _body('"x":0.' + "1" * 65),
    "digits without end": _body('"x":' + "9" * 200_000),
    "many digits as amount": _body('"x":1').replace(b'"990.00"', b"9" * 65),
    "many digits as text": _body('"x":1').replace(b'"990.00"', b'"' + b"9" * 65 + b'"'),
    "absurd exponent": _body('"x":1e999999999'),
    "absurd negative exponent": _body('"x":1e-999999999'),
    "absurd exponent as amount": _body('"x":1').replace(b'"990.00"', b"1e999999999"),
    "absurd exponent as text": _body('"x":1').replace(b'"990.00"', b'"1e999999999"'),
    "nul in payment": _body('"x":1').replace(b'"odd"', b'"o\\u0000d"'),
    "nul in e-mail": _body('"x":1').replace(b"odd@example.com", b"odd\\u0000@example.com"),
    "nul in plan": _body('"plan_id":"mon\\u0000thly"'),
    "nul in status": _body('"x":1').replace(b'"paid"', b'"paid\\u0000"'),
    "raw nul": _body('"x":1').replace(b'"odd"', b'"o\x00d"'),
    "lone surrogate": _body('"x":1').replace(b'"odd"', b'"o\\ud800d"'),
    "lone surrogate in e-mail": _body('"x":1').replace(b"odd@", b"\\udfff@"),
    "amount is a list": _body('"x":1').replace(b'"990.00"', b"[990]"),
    "amount is true": _body('"x":1').replace(b'"990.00"', b"true"),
    "amount is null": _body('"x":1').replace(b'"990.00"', b"null"),
    "amount is words": _body('"x":1').replace(b'"990.00"', b'"all of it"'),
    "amount is negative": _body('"x":1').replace(b'"990.00"', b"-990"),
    "status is an object": _body('"x":1').replace(b'"paid"', b"{}"),
    "payment is a list": _body('"x":1').replace(b'id":"odd"', b'id":[]'),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_body_is_refused_and_kept_as_evidence(shared: Shared, name: str) -> None:
    """REC-6 REC-5 SEC-5: an authentic one is FAILED_FINAL MALFORMED; its key stays free."""
    service, body = shared.service, MALFORMED[name]
    (before,) = shared.rows("SELECT count(*) AS n FROM webhook_events")
    reply = service.deliver(body)
    assert is_problem(reply, 400)
    assert reply.json["code"] == "MALFORMED"
    (after,) = shared.rows("SELECT count(*) AS n FROM webhook_events")
    assert after["n"] == before["n"] + 1
    (newest,) = shared.rows("SELECT * FROM webhook_events ORDER BY id DESC LIMIT 1")
    assert (newest["status"], newest["error_code"]) == ("FAILED_FINAL", "MALFORMED")
    assert newest["raw_body"] == body
    assert newest["signature_valid"]
    assert event(service, str(newest["id"]))["error_code"] == "MALFORMED"
    assert shared.rows("SELECT * FROM payments WHERE captured_minor > 0") == []
    assert shared.rows("SELECT * FROM event_keys") == []


ODD: Final[dict[str, bytes]] = {
    "long payment id": json.dumps(paid("long-" + "x" * 20_000, event_id="odd-1")).encode(),
    "long random payment id": json.dumps(
        paid("".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(20_000)), event_id="odd-2")
    ).encode(),
    "long event id": json.dumps(paid("odd-3", event_id="x" * 100_000)).encode(),
    "long e-mail": json.dumps(
        paid("odd-4", email="".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(20_000)))
    ).encode(),
    "long plan": json.dumps(paid("odd-5", plan_id="x" * 100_000)).encode(),
    "long status": json.dumps(paid("odd-6", status="x" * 100_000)).encode(),
    "long currency": json.dumps(paid("odd-7", currency="RUB" * 30_000)).encode(),
    "odd currency": json.dumps(paid("odd-8", currency="₽")).encode(),
    "unknown currency": json.dumps(paid("odd-9", currency="XQX")).encode(),
    "amount beyond bigint": json.dumps(paid("odd-10", amount="9" * 30)).encode(),
    "amount at bigint": json.dumps(paid("odd-11", amount="92233720368547758.07")).encode(),
    "amount over bigint": json.dumps(paid("odd-12", amount="92233720368547758.08")).encode(),
    "zero": json.dumps(paid("odd-13", amount=0)).encode(),
    "minus zero": json.dumps(paid("odd-14", amount=-0.0)).encode(),
    "finer than a kopek": json.dumps(paid("odd-15", amount="990.001")).encode(),
    "e-mail is a number": json.dumps(paid("odd-16", email=5)).encode(),
    "e-mail is an object": json.dumps(paid("odd-17", email={"a": 1})).encode(),
    "e-mail is no address": json.dumps(paid("odd-18", email="nobody")).encode(),
    "payment id is a number": json.dumps(paid("odd-19", external_payment_id=17)).encode(),
    "event id is a number": json.dumps(paid("odd-20", event_id=17)).encode(),
    "event id is an object": json.dumps(paid("odd-21", event_id={})).encode(),
    "plan id is a list": json.dumps(paid("odd-22", plan_id=[])).encode(),
    "no date": json.dumps(paid("odd-23", paid_at="yesterday")).encode(),
    "year 10000": json.dumps(paid("odd-24", paid_at="10000-01-01T00:00:00Z")).encode(),
    "year 1": json.dumps(paid("odd-25", paid_at="0001-01-01T00:00:00+23:59")).encode(),
    "year 9999": json.dumps(paid("odd-26", paid_at="9999-12-31T23:59:59-23:59")).encode(),
    "huge date": json.dumps(paid("odd-27", paid_at=10**50)).encode(),
    "date is a float": json.dumps(paid("odd-28", paid_at=-1e50)).encode(),
    "date is an object": json.dumps(paid("odd-29", paid_at={})).encode(),
    "bom": b"\xef\xbb\xbf" + json.dumps(paid("odd-30")).encode(),
    "nul elsewhere": _body('"x":"\\u0000"').replace(b'"odd"', b'"odd-31"'),
    "surrogate elsewhere": _body('"x":"\\ud800"').replace(b'"odd"', b'"odd-32"'),
    "nul as key": _body('"\\u0000":1').replace(b'"odd"', b'"odd-33"'),
    "full of keys": json.dumps(paid("odd-34") | {f"k{n}": n for n in range(15_000)}).encode(),
    "bidi": json.dumps(paid("odd-\u202e35", email="\u202eodd@example.com")).encode(),
}


@pytest.mark.parametrize("name", ODD)
def test_nothing_that_a_sender_can_put_in_a_body_causes_a_5xx(shared: Shared, name: str) -> None:
    """REC-6 REC-5: accepted, or refused as the sender's fault; the same again."""
    first, again = shared.service.deliver(ODD[name]), shared.service.deliver(ODD[name])
    for reply in (first, again):
        assert reply.http == 200 or is_problem(reply, 400)
    assert again.http == first.http
    if first.http == 200:
        assert again.json["status"] == "duplicate"
        assert event(shared.service, first.json["event_id"])["status"] != "VALIDATED"
    assert shared.service.log_lines(level="error") == []


@pytest.mark.parametrize("inside", ['"x":' + "[" * 60 + "]" * 60, '"x":' + "9" * 64, '"x":1e10'])
def test_what_is_merely_unusual_is_accepted(shared: Shared, inside: str) -> None:
    """REC-6: the limits are where they are said to be."""
    email = f"unusual-{len(inside)}@example.com"
    shared.service.user(email)
    name = f"unusual-{len(inside)}".encode()
    body = _body(inside).replace(b'"odd"', b'"' + name + b'"').replace(b"odd@", name + b"@")
    reply = shared.service.deliver(body)
    assert (reply.http, reply.json["status"]) == (200, "success")


def test_wrong_doors_methods_and_types_are_problems(shared: Shared) -> None:
    """REC-5"""
    service = shared.service
    body = json.dumps(paid("door")).encode()
    signed = HEADERS | {"x-signature": signature(body)}
    for path in ("/webhooks/nobody", "/webhooks/Payments", "/webhooks/", "/webhooks/%00", "/nope"):
        assert is_problem(service.request("POST", path, body, signed), 404), path
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        reply = service.request(method, "/webhooks/payments", None, signed)
        assert is_problem(reply, 405)
        assert "POST" in reply.headers["allow"]
    for kind in ("text/plain", "application/xml", "multipart/form-data; boundary=x", "json"):
        reply = service.deliver(body, **{"content-type": kind})
        assert is_problem(reply, 415), kind
    assert items(service, "/events", payment="door") == []
    reply = service.deliver(body, **{"content-type": "Application/JSON; charset=UTF-8"})
    assert reply.http == 200


def test_a_body_of_the_greatest_size_is_accepted_and_one_byte_more_is_not(
    shared: Shared,
) -> None:
    """SEC-8 REC-5: by Content-Length, and while streaming without one."""
    service = shared.service
    body = json.dumps(paid("greatest")).encode()
    fits = body + b" " * (LIMIT - len(body))
    assert service.deliver(fits).http == 200
    reply = service.deliver(fits + b" ")
    assert is_problem(reply, 413)

    declared = _exchange(service, _head("POST", "/webhooks/payments", {"content-length": "9" * 12}))
    assert is_problem(declared, 413), "answered before the body was sent"
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    head = _head("POST", "/webhooks/payments", {"transfer-encoding": "chunked"})
    assert is_problem(_exchange(service, head + chunk * 5), 413)


def test_a_chunked_body_within_the_limit_is_accepted(shared: Shared) -> None:
    """REC-1 REC-5: the raw bytes are those of the body, not of its transfer."""
    service = shared.service
    service.user("chunked@example.com")
    body = json.dumps(paid("chunked", email="chunked@example.com")).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = {"transfer-encoding": "chunked", "x-signature": signature(body)}
    reply = _exchange(service, _head("POST", "/webhooks/payments", head) + chunks)
    assert (reply.http, reply.json["status"]) == (200, "success")


@pytest.mark.parametrize(
    "head",
    [
        b"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\ncontent-length: ten\r\n\r\n",
        b"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /webhooks/payments HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
        b"POST /webhooks/payments HTTP/1.1\r\na: " + b"b" * 1_000_000 + b"\r\n\r\n",
    ],
    ids=["negative", "words", "chunk", "smuggled", "tls", "version", "headers", "header"],
)
def test_what_is_not_http_gets_a_4xx_or_a_closed_door(shared: Shared, head: bytes) -> None:
    """REC-5 SEC-8"""
    said = _raw(shared.service, head)
    assert said == b"" or said.startswith(b"HTTP/1.1 4"), said[:200]
    assert shared.service.request("GET", "/healthz").http == 200
    assert shared.service.log_lines(level="error") == []


def test_a_body_that_is_sent_too_slowly_is_given_up(shared: Shared) -> None:
    """SEC-8 REC-5: the deadline is absolute; a byte now and then does not move it."""
    body = json.dumps(paid("slow")).encode()
    head = _head(
        "POST",
        "/webhooks/payments",
        {"content-length": str(len(body)), "x-signature": signature(body)},
    )
    started_s = time.monotonic()
    assert is_problem(_exchange(shared.service, head + body[:-1]), 408)
    assert 0.9 <= time.monotonic() - started_s < 4

    with socket.create_connection(("127.0.0.1", shared.service.port), timeout=60) as connection:
        connection.sendall(head)
        said = _drip(connection, body)
    assert said.startswith(b"HTTP/1.1 408"), said
    assert items(shared.service, "/events", payment="slow") == []


def test_headers_that_are_sent_too_slowly_are_given_up(shared: Shared) -> None:
    """SEC-8"""
    started_s = time.monotonic()
    said = _raw(shared.service, b"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\n")
    assert said == b"" or said.startswith(b"HTTP/1.1 408"), said
    with socket.create_connection(("127.0.0.1", shared.service.port), timeout=60) as connection:
        said = _drip(connection, b"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\na: " + b"b" * 99)
    assert said == b"" or said.startswith(b"HTTP/1.1 408"), said
    assert time.monotonic() - started_s < 8


def _drip(connection: socket.socket, text: bytes) -> bytes:
    """Send a byte at a time until there is an answer or the end."""
    connection.settimeout(0.1)
    for byte in text:
        try:
            connection.sendall(bytes([byte]))
            return connection.recv(65_536)
        except TimeoutError:
            continue
        except (ConnectionResetError, BrokenPipeError):
            return b""
    raise AssertionError("nobody minded")


def _head(method: str, path: str, headers: dict[str, str]) -> bytes:
    fields = {"host": "x", **HEADERS, **headers}
    lines = [f"{method} {path} HTTP/1.1", *[f"{name}: {value}" for name, value in fields.items()]]
    return "\r\n".join([*lines, "", ""]).encode()


def _raw(service: Service, sent: bytes) -> bytes:
    """Send bytes, and read until the server closes or an answer is whole."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(sent)
        said = b""
        try:
            while not _is_whole(said) and (more := connection.recv(65_536)):
                said += more
        except ConnectionResetError:
            pass
        return said


def _is_whole(said: bytes) -> bool:
    head, _, body = said.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(lengths) and len(body) >= int(lengths[0].split(b":")[1])


def _exchange(service: Service, sent: bytes) -> Reply:
    said = _raw(service, sent)
    head, _, body = said.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0].startswith("HTTP/1.1 "), said
    fields = [line.partition(":") for line in lines[1:]]
    headers = {name.lower(): value.strip() for name, _, value in fields}
    return Reply(int(lines[0].split()[1]), headers, body)
