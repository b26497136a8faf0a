"""Several requests on one connection, sent without waiting for answers."""

import json
import socket

from tests.support.service import Service, paid, signature


def request(path: str, payment: str) -> bytes:
    body = json.dumps(paid(payment)).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"x-signature: {signature(body)}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answers(service: Service, *requests: bytes) -> bytes:
    """All that comes back until the server closes or falls silent."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=3) as connection:
        connection.sendall(b"".join(requests))
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except TimeoutError:
            pass
        return received


def test_an_answer_is_never_taken_for_one_to_a_refused_delivery(service: Service) -> None:
    """REC-2: what follows a refused one on the same connection has to come again."""
    service.user("buyer@example.com")
    good, refused = request("/webhooks/payments", "p-1"), request("/webhooks/nobody", "p-2")
    received = answers(service, good, refused, request("/webhooks/payments", "p-3"))
    assert received.count(b"HTTP/1.1 200") == 1
    kept = [one["payment"] for one in service.api("GET", "/events").json["items"]]
    assert kept == ["p-1"]


def test_pipelined_deliveries_are_answered_in_their_order(service: Service) -> None:
    """REC-5"""
    service.user("buyer@example.com")
    received = answers(
        service, *(request("/webhooks/payments", f"q-{number}") for number in range(5))
    )
    assert received.count(b"HTTP/1.1 200") == 5
