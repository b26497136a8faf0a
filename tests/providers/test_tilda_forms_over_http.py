"""Tilda's form webhook over a real server."""

import json
from typing import Final
from urllib.parse import urlencode

import pytest

from tests.providers.cases.tilda import SHAPES, Shape
from tests.providers.conformance import FORM, JSON, ExpectedEvent
from tests.support.servers import Shared
from tests.support.service import SECRET, Reply, Service, paid
from tests.support.tools import event, is_problem, items

KEY: Final = {"x-tilda-key": SECRET}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def post(service: Service, headers: dict[str, str], body: bytes) -> Reply:
    return service.request("POST", "/webhooks/payments", body, headers)


def is_ok(reply: Reply) -> bool:
    return (reply.http, reply.headers["content-type"], reply.body) == (200, "text/plain", b"ok")


@every_shape
def test_an_order_is_applied_once_and_answered_ok(shared: Shared, shape: Shape) -> None:
    """PRV-2 REC-7: processed, duplicate, conflict and ignored are all `ok` to Tilda."""
    service, name = shared.service, shape.__name__
    email = f"{name}@example.com"
    user = service.user(email)
    headers, body = shape(ExpectedEvent(f"t-{name}", f"o-{name}", email=email))
    for _ in range(3):
        assert is_ok(post(service, headers | KEY, body))
    (payment,) = items(service, "/payments", email=email)
    assert (payment["external_payment_id"], payment["status"]) == (f"t-{name}", "SUCCEEDED")
    assert payment["applied_at"] is not None
    (subscription,) = items(service, "/subscriptions", user_id=user["id"])
    assert subscription["status"] == "ACTIVE"
    (kept,) = shared.rows(
        "SELECT * FROM webhook_events WHERE external_payment_id = $1", f"t-{name}"
    )
    assert (kept["key"], kept["order_reference"]) == (f"form:o-{name}:t-{name}", f"o-{name}")
    assert kept["signature_method"] == "api-key"
    assert SECRET not in json.dumps(kept["headers"]), "keys are not kept as evidence"
    unpaid = shape(ExpectedEvent(f"t-{name}", f"o-{name}", kind="none", email=email))
    assert is_ok(post(service, unpaid[0] | KEY, unpaid[1]))
    other = shape(ExpectedEvent(f"t-{name}", f"o-{name}", amount="1.00", email=email))
    assert is_ok(post(service, other[0] | KEY, other[1]))
    assert len(service.log_lines(result="conflict", external_payment_id=f"t-{name}")) == 1


@every_shape
def test_a_form_without_a_key_is_rejected(shared: Shared, shape: Shape) -> None:
    """PRV-2 REC-5"""
    headers, body = shape(ExpectedEvent("t-forged", "o-forged"))
    for key in ({}, {"x-tilda-key": "wrong"}, {"x-signature": "0" * 64}):
        assert is_problem(post(shared.service, headers | key, body), 401)
    assert items(shared.service, "/events", payment="t-forged") == []


def test_a_key_in_a_parameter_is_accepted(shared: Shared) -> None:
    """PRV-2"""
    fields = {"payment[orderid]": "o-p", "payment[systranid]": "t-p", "payment[amount]": "990"}
    sent = urlencode({**fields, "my_key": SECRET}).encode()
    assert is_ok(post(shared.service, FORM, sent))
    (found,) = items(shared.service, "/events", payment="t-p")
    assert found["order"] == "o-p"


def test_a_blocked_payment_is_applied_when_its_user_registers(shared: Shared) -> None:
    """PAY-5: a stored form is read again as one."""
    service = shared.service
    for number, shape in enumerate(SHAPES.values()):
        headers, body = shape(
            ExpectedEvent(f"t-w{number}", f"o-w{number}", email="waits@example.com")
        )
        assert is_ok(post(service, headers | KEY, body))
    service.user("waits@example.com")
    found = items(service, "/payments", email="waits@example.com")
    assert [one["applied_at"] is not None for one in found] == [True] * len(SHAPES)


def test_a_malformed_form_is_rejected_and_stored(shared: Shared) -> None:
    """REC-5 REC-6: errors are not said as text."""
    for body in (b"a=1&a=2", b"a=%ff", b"payment=x", b"a" + b"[b]" * 20 + b"=1"):
        assert is_problem(post(shared.service, FORM | KEY, body), 400)
    assert shared.rows("SELECT 1 FROM webhook_events WHERE raw_body = $1", b"a=1&a=2")


@pytest.mark.parametrize("body", [b"test=test", f"test=test&key={SECRET}".encode()])
def test_a_ping_is_answered_and_leaves_nothing_behind(shared: Shared, body: bytes) -> None:
    """PRV-2"""
    service = shared.service

    def seen() -> tuple[object, ...]:
        (stored,) = shared.rows("SELECT count(*) AS n FROM webhook_events")
        names = ("webhook_received_total", "webhook_invalid_signature_total")
        return stored["n"], *(service.metric(name, provider="tilda") for name in names)

    before = seen()
    assert is_ok(post(service, FORM, body))
    assert is_ok(post(service, FORM | {"x-tilda-key": "whatever"}, body))
    assert seen() == before


def test_a_form_that_only_begins_like_a_ping_is_not_a_ping(shared: Shared) -> None:
    """PRV-2"""
    for body in (b"test=test&x=1", b"test=test&key=wrong", b"test=test2"):
        assert is_problem(post(shared.service, FORM, body), 401)


def test_the_secret_in_a_header_authenticates_the_json_contract(shared: Shared) -> None:
    """PRV-2: and is not kept."""
    service = shared.service
    body = json.dumps(paid("by-secret")).encode()
    assert is_problem(post(service, JSON | {"x-secret": "wrong"}, body), 401)
    assert is_problem(post(service, JSON | {"x-signature": SECRET}, body), 401)
    reply = post(service, JSON | {"x-secret": SECRET}, body)
    assert reply.json["status"] == "accepted"
    assert event(service, reply.json["event_id"])["key"] == "evt-by-secret"
    for kept in shared.rows("SELECT headers FROM webhook_events"):
        assert SECRET not in json.dumps(kept["headers"])
