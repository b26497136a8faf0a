"""Nothing that a sender can put on the wire breaks the server, and honest traffic goes on."""

import asyncio
import json
import random
from collections import Counter
from typing import Any, Final

import pytest

from tests.faults.hostility import REQUEST_TIMEOUT_S, USERS, Besieged
from tests.faults.ledger import Ledger, Said
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import BODY_MB, SLOW_CONNECTIONS
from tests.faults.wire import Heard, converse, converse_all, request, rest_of
from tests.support.service import paid

PIECE: Final = b"x" * 65_536
ANSWERED_WITHIN_BYTES: Final = 16 * 1024 * 1024  # what may be in transit when the refusal arrives
CONNECTIONS: Final = 64
DRIP_S: Final = 1.0
MAX_DRIPS: Final = 20
EMPTY_LINES_EVERY_S: Final = 0.5
MAX_EMPTY_LINES: Final = 40


def _with(**said: Any) -> bytes:
    return json.dumps(paid("noise", **said)).encode()


MALFORMED: Final = {
    "nothing": b"",
    "not JSON": b"hello",
    "half of it": _with()[:-20],
    "something after it": _with() + b"x",
    "a list": b"[]",
    "a text": b'"paid"',
    "null": b"null",
    "no payment id": _with(external_payment_id=None),
    "an empty payment id": _with(external_payment_id=""),
    "no status": _with(status=None),
    "no amount": _with(amount=None),
    "bytes that are not UTF-8": _with(note="?").replace(b"?", b"\xff\xfe"),
    "overlong UTF-8": _with(note="?").replace(b"?", b"\xc0\x80"),
    "UTF-16": _with().decode().encode("utf-16"),
    "a key twice": _with().replace(b"{", b'{"status": "failed", ', 1),
    "a nested key twice": _with(note=0).replace(b": 0", b': {"a": 1, "a": 2}'),
    "NaN": _with(amount=float("nan")),
    "Infinity": _with(amount=float("inf")),
    "65 levels": _with(note=0).replace(b": 0", b": " + b"[" * 65 + b"]" * 65),
    "100,000 levels": _with(note=0).replace(b": 0", b": " + b"[" * 100_000 + b"]" * 100_000),
    "100,000 levels without an end": b"[" * 100_000,
    "100,000 objects without an end": b'{"a":' * 40_000,
    "a number of 65 digits": _with(amount=0).replace(b": 0", b": " + b"9" * 65),
    "a number of 200,000 digits": _with(amount=0).replace(b": 0", b": " + b"9" * 200_000),
    "an absurd exponent": _with(amount=0).replace(b": 0", b": 1e131071"),
    "an absurd exponent, negative": _with(amount=0).replace(b": 0", b": 1e-131071"),
    "a thousand absurd exponents": _with(note=0).replace(
        b": 0", b": [" + b",".join([b"1e131071"] * 1000) + b"]"
    ),
    "NUL in the payment id": _with(external_payment_id="a\0b"),
    "NUL in the event id": _with(event_id="a\0b"),
    "NUL in the e-mail": _with(email="a\0b@example.com"),
    "NUL in the plan": _with(plan_id="a\0b"),
    "a lone surrogate in the payment id": _with(external_payment_id="a\ud800b"),
    "a lone surrogate in the event id": _with(event_id="a\udfffb"),
    "a lone surrogate in the e-mail": _with(email="a\ud800@example.com"),
}


async def test_malformed_bodies_are_refused_and_kept_where_they_are_authentic(
    besieged: Besieged, findings: Findings
) -> None:
    """REC-6 REC-5 SEC-5"""
    port = besieged.service.port
    async with besieged.attacked() as losses:
        signed = {
            name: await converse(port, request(body, source="noise"))
            for name, body in MALFORMED.items()
        }
        unsigned = {
            name: await converse(port, request(body, signed=False))
            for name, body in MALFORMED.items()
        }
    assert {name: heard.statuses for name, heard in signed.items() if heard.statuses != [400]} == {}
    assert {
        name: heard.statuses for name, heard in unsigned.items() if heard.statuses != [401]
    } == {}
    reply = besieged.service.api("GET", "/events", source="noise", status="FAILED_FINAL", limit=500)
    kept = Counter(item["error_code"] for item in reply.json["items"])
    assert kept == {"MALFORMED": len(MALFORMED)}
    findings.add(
        Experiment.MALFORMED,
        f"{len(MALFORMED)} bodies, each signed and unsigned",
        f"400 and kept as evidence, or 401; {losses}",
    )


@pytest.mark.parametrize("announced", [True, False], ids=["content-length", "chunked"])
async def test_a_body_of_hundreds_of_mb_is_refused_while_it_arrives(
    besieged: Besieged, announced: bool, full: bool, findings: Findings
) -> None:
    """SEC-8 REC-5"""
    number = BODY_MB.at(full) * 2**20
    length = f"content-length: {number}" if announced else "transfer-encoding: chunked"
    head = f"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\n{length}\r\n\r\n".encode()
    piece = PIECE if announced else b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
    async with besieged.attacked() as losses:
        sent, heard = await _flood(besieged.service.port, head, piece, number)
    assert heard.statuses == [413]
    assert sent < ANSWERED_WITHIN_BYTES, "the answer came late"
    findings.add(
        Experiment.FLOODED,
        f"{number >> 20} MB " + ("with Content-Length" if announced else "chunked"),
        f"413 after {sent / 2**20:.1f} MB; {losses}",
    )


async def _flood(port: int, head: bytes, piece: bytes, number: int) -> tuple[int, Heard]:
    """Send on, whatever is answered; returns how much was sent when the answer came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read(65_536))
    sent, sent_at_answer = 0, None
    writer.write(head)
    try:
        while sent < number:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            if answer.done() and sent_at_answer is None:
                sent_at_answer = sent
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    first = await asyncio.wait_for(answer, REQUEST_TIMEOUT_S)
    writer.close()
    return sent if sent_at_answer is None else sent_at_answer, Heard(first)


async def test_a_byte_a_second_on_many_connections_holds_none_of_them(
    besieged: Besieged, full: bool, findings: Findings
) -> None:
    """SEC-8 REC-5: an absolute deadline for headers and body."""
    number = SLOW_CONNECTIONS.at(full)
    whole = request(_with())
    head = whole.index(b"\r\n\r\n")
    starts = (0, 10, head // 2, head + 2, head + 4, head + 40)
    async with besieged.attacked() as losses:
        drips = (
            _drip(besieged.service.port, whole, starts[one % len(starts)]) for one in range(number)
        )
        heard = await asyncio.gather(*drips)
    assert Counter(tuple(one.statuses) for one in heard) == {(408,): number}
    findings.add(
        Experiment.SLOW,
        f"{number} connections at once, deadline {REQUEST_TIMEOUT_S:.0f} s",
        f"each answered 408 and closed; {losses}",
    )


async def _drip(port: int, whole: bytes, start: int) -> Heard:
    """The first bytes at once, each further one a second later, until the server has enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(whole[:start])
    closed = asyncio.create_task(rest_of(reader))
    for place in range(start, start + MAX_DRIPS):
        done, _ = await asyncio.wait([closed], timeout=DRIP_S)
        if done:
            break
        writer.write(whole[place : place + 1])
    writer.close()
    assert closed.done(), f"still open after {MAX_DRIPS} s"
    return closed.result()


@pytest.mark.parametrize("first", ["a delivery", "a GET request"])
async def test_empty_lines_after_a_request_do_not_hold_the_connection(
    besieged: Besieged, first: str, findings: Findings
) -> None:
    """SEC-8"""
    refused = request(_with(), signed=False)
    raw = refused if first == "a delivery" else b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    async with besieged.attacked() as losses:
        reader, writer = await asyncio.open_connection("127.0.0.1", besieged.service.port)
        writer.write(raw)
        closed = asyncio.create_task(rest_of(reader))
        for _ in range(MAX_EMPTY_LINES):
            done, _ = await asyncio.wait([closed], timeout=EMPTY_LINES_EVERY_S)
            if done:
                break
            writer.write(b"\r\n")
        is_closed = closed.done()
        writer.close()
    assert is_closed, f"still open after {MAX_EMPTY_LINES * EMPTY_LINES_EVERY_S:.0f} s"
    assert all(status < 500 for status in closed.result().statuses)
    findings.add(Experiment.HELD, f"after {first}", f"closed; {losses}")


async def test_a_request_with_one_bit_flipped_is_refused_or_counts_as_what_it_was(
    besieged: Besieged, findings: Findings
) -> None:
    """SEC-3 SEC-5 PRV-9: wherever the bit is, in the method, the headers or the body."""
    said = besieged.ledger.new(email=USERS[0])
    whole = request(said.body)
    flips = [(place, bit) for place in range(len(whole)) for bit in range(8)]
    random.Random(4).shuffle(flips)
    async with besieged.attacked() as losses:
        raws = (_flipped(whole, place, bit) for place, bit in flips)
        heard = await converse_all(besieged.service.port, raws, CONNECTIONS)
        (honest,) = await converse_all(besieged.service.port, [whole], 1)
        wrong = [
            f"bit {bit} of byte {place}, after {whole[:place][-20:]!r}: {one.received!r}"
            for (place, bit), one in zip(flips, heard, strict=True)
            if any(status >= 500 for status in one.statuses)
        ]
        assert wrong == []
        for one in (*heard, honest):
            _acknowledge(besieged.ledger, said, one)
    assert honest.statuses == [200]
    found = Counter(str(status) for one in heard for status in one.statuses)
    found["closed without an answer"] = sum(not one.statuses for one in heard)
    told = ", ".join(f"{times:,} × {status}" for status, times in sorted(found.items()))
    findings.add(Experiment.FLIPPED, f"{len(flips):,} requests", f"{told}; one effect; {losses}")


def _flipped(whole: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(whole)
    changed[place] ^= 1 << bit
    return bytes(changed)


def _acknowledge(ledger: Ledger, said: Said, heard: Heard) -> None:
    for status, body in zip(heard.statuses, heard.bodies, strict=True):
        if status == 200:
            ledger.acknowledge(said, body, known=False)
