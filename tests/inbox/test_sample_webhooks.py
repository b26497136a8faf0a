"""Test webhooks: made for every gateway, taken like any delivery, and marked as what they are."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import orjson
import pytest

from tests.providers.cases.standard import whsec
from tests.providers.cases.stripe import signed as stripe_signed
from tests.providers.conformance import RECEIVED_AT
from tests.support import gateways
from tests.support.host_programs import StartHost, start_host
from tests.support.servers import Shared, StartService
from tests.support.service import BASIC, Reply, Service, paid
from tests.support.tools import event, is_problem, items, paidonce, rows, until

__all__ = ["start_host"]

CONFIG: Final = f"""{gateways.CONFIG}
[sources.kr]
provider = "portone"
secrets = ["{whsec("kr")}"]
api_url = "http://127.0.0.1:9"
api_secret = "nobody answers"
[sources.kr_old]
provider = "portone"
version = "v1"
api_url = "http://127.0.0.1:9"
api_key = "nobody"
api_secret = "nobody answers"
[sources.keyed]
provider = "standard"
secrets = ["whpk_{"A" * 43}="]
"""
ORDERED: Final = ("cn", "creem", "cards", "shop", "hub", "paddle", "rzp")
CANNOT_SAY: Final = {
    "cn": {"failed"},
    "creem": {"failed", "canceled"},
    "hub": {"canceled", "pending"},
    "paddle": {"refunded", "pending"},
    "rzp": {"canceled"},
}


def sample(service: Service, source: str, **said: Any) -> Reply:
    headers = {"content-type": "application/json"}
    return service.request("POST", f"/webhooks/{source}/test", json.dumps(said).encode(), headers)


def order(service: Service, reference: str, currency: str = "EUR") -> str:
    asked = {"reference": reference, "amount": "12.50", "currency": currency}
    assert service.api("POST", "/orders", asked).http == 201
    return reference


@pytest.mark.parametrize("source", ORDERED)
def test_a_test_webhook_pays_an_order_and_is_marked_everywhere(shared: Shared, source: str) -> None:
    """OPS-6 PRV-4 PRV-5, S3 "Test webhook endpoint": the same JSON for every gateway."""
    service, reference = shared.service, order(shared.service, f"of-{source}")
    reply = sample(service, source, order=reference, amount="12.50")
    assert reply.http == 200, reply.body
    told = reply.json
    assert (told["status"], told["http"], told["test"]) == ("success", 200, True)
    paid_order = service.api("GET", f"/orders/{reference}").json
    assert paid_order["status"] == "PAID"
    (payment,) = items(service, "/payments", order=reference)
    assert payment["test"] is True
    assert paid_order["payments"][0]["test"] is True
    assert told["payment_id"] in {one["id"] for one in payment["ids"]}
    shown = event(service, told["event_id"])
    assert (shown["test"], shown["status"], shown["signature_valid"]) == (True, "PROCESSED", True)
    assert shown["trail"][0]["details"]["test"] is True
    (line,) = service.log_lines(webhook_event_id=told["event_id"])
    assert line["test"] is True
    (message,) = shared.rows("SELECT payload FROM outbox WHERE aggregate_id = $1", payment["id"])
    assert orjson.loads(message["payload"])["test"] is True

    again = sample(service, source, order=reference, amount="12.50", payment_id=told["payment_id"])
    if source == "rzp":  # its id is not signed, and the body has the time
        assert again.json["status"] == "success"
        assert len(items(service, "/payments", order=reference)) == 1
        return
    assert again.json["status"] == "duplicate"
    assert again.json["event_id"] == told["event_id"]
    if source == "hub":
        return  # its event's id is not signed: what says something else is another event
    other = sample(service, source, order=reference, amount="9.00", payment_id=told["payment_id"])
    assert other.json["status"] == "conflict"


@pytest.mark.parametrize("source", ["payments", *ORDERED])
@pytest.mark.parametrize("word", ["failed", "canceled", "refunded", "pending"])
def test_the_common_words_work_for_every_gateway_or_are_refused(
    shared: Shared, source: str, word: str
) -> None:
    """OPS-6"""
    reply = sample(shared.service, source, amount="5.00", currency="EUR", status=word)
    if reply.http == 400:
        assert is_problem(reply, 400)
        assert "status" in reply.json["detail"]
        assert word in CANNOT_SAY[source]
        return
    shown = event(shared.service, reply.json["event_id"])
    assert shown["test"] is True
    expected = {"payments": "IGNORED"}.get(source, "PROCESSED")
    if (source, word) == ("creem", "pending"):
        expected = "IGNORED"
    assert shown["status"] in (expected, "FAILED_RETRYABLE"), shown


def test_what_the_format_has_no_place_for_is_told(shared: Shared) -> None:
    """OPS-6 PRV-2: Tilda's contract names no order."""
    service = shared.service
    user = service.user("sample@example.com")
    asked = {"amount": "990.00", "email": "sample@example.com", "order": "o"}
    told = sample(service, "payments", **asked).json
    assert (told["status"], told["omitted"]) == ("success", ["order"])
    (subscription,) = items(service, "/subscriptions", user_id=user["id"])
    assert subscription["status"] == "ACTIVE"
    own = sample(
        service, "payments", amount="990.00", currency="RUB", status="succeeded", event_id="e"
    )
    assert own.json["status"] == "accepted"
    assert own.json["error_code"] == "UNLINKED_PAYMENT"


@pytest.mark.parametrize("source", ["kr", "kr_old"])
def test_a_gateway_that_has_to_be_asked_is_asked(shared: Shared, source: str) -> None:
    """OPS-6 PRV-3: what waits keeps its mark."""
    told = sample(shared.service, source, amount="100", payment_id=f"imp_{source}").json
    assert told["status"] == "accepted"

    def was_asked() -> bool:
        found = event(shared.service, told["event_id"])
        return bool(found["error_code"] == "PROVIDER_UNREACHABLE")

    assert until(was_asked)
    (line, *_) = shared.service.log_lines(
        webhook_event_id=told["event_id"], error_code="PROVIDER_UNREACHABLE"
    )
    assert line["test"] is True
    assert event(shared.service, told["event_id"])["test"] is True


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"amount": "many"},
        {"amount": "-1.00"},
        {"amount": "1.001"},
        {"amount": 5},
        {"amount": "5", "currency": "XXY"},
        {"amount": "5", "status": ""},
        {"amount": "5", "payment_id": "with blanks"},
        {"amount": "5", "payment_id": "x" * 300},
        {"amount": "5", "event_id": "no.dots"},
        {"amount": "5", "order": ""},
        {"amount": "5", "order": "a\0b"},
        {"amount": "5", "nonsense": 1},
    ],
    ids=str,
)
def test_wrong_input_is_a_400(shared: Shared, said: dict[str, Any]) -> None:
    """OPS-6 REC-5"""
    assert is_problem(sample(shared.service, "payments", **said), 400)


def test_unregistered_sources_and_those_that_cannot_sign_are_told_apart(shared: Shared) -> None:
    """OPS-6 REC-5"""
    service = shared.service
    assert is_problem(sample(service, "nobody", amount="1"), 404)
    refused = sample(service, "keyed", amount="1", currency="EUR")
    assert is_problem(refused, 400)
    assert "public key" in refused.json["detail"]
    assert is_problem(service.request("GET", "/webhooks/payments/test"), 405)
    for body in (b"", b"[", b"[]", b"null"):
        reply = service.request("POST", "/webhooks/payments/test?a=b", body)
        assert is_problem(reply, 400)


def test_a_payment_of_which_one_event_is_real_is_no_test(shared: Shared) -> None:
    """OPS-6: whichever comes first."""
    service = shared.service
    for number, (first, second) in enumerate(((True, False), (False, True), (True, True))):
        payment = f"mixed-{number}"
        for name, is_test in (("one", first), ("two", second)):
            marks = {"paidonce-test": "1"} if is_test else {}
            reply = service.deliver(paid(payment, event_id=f"{payment}-{name}"), **marks)
            assert reply.http == 200
        (found,) = [
            one for one in items(service, "/payments") if one["external_payment_id"] == payment
        ]
        assert found["test"] is (first and second)


def test_the_mark_lets_nobody_in(shared: Shared) -> None:
    """OPS-6 SEC-5: what is forged is refused, whatever it says of itself."""
    service = shared.service
    said = paid(f"forged-{uuid4().hex}")
    forged = service.deliver(said, secret="wrong", **{"paidonce-test": "1"})
    assert is_problem(forged, 401)
    assert service.deliver(said).json["status"] != "duplicate"


def test_what_is_sent_from_the_command_line_is_marked(shared: Shared) -> None:
    """OPS-6"""
    service = shared.service
    url = f"http://127.0.0.1:{service.port}"
    sent = paidonce(service.folder, "send", "--source", "cards", "--url", url, "--json")
    assert sent.returncode == 0, sent.stderr
    (told,) = json.loads(sent.stdout)
    assert event(service, told["event_id"])["test"] is True
    refused = paidonce(service.folder, "send", "--source", "cn", "--url", url)
    assert refused.returncode != 0
    assert "/webhooks/cn/test" in refused.stderr


def test_production_refuses_test_webhooks(start_service: StartService, database_url: str) -> None:
    """OPS-6, S3 "Test webhook endpoint": and nothing happens."""
    service = start_service(BASIC.replace('"development"', '"production"'))
    bodies = (b'{"amount": "990.00"}', b"", b"nonsense")
    for path in ("/webhooks/payments/test", "/webhooks/nobody/test", "/webhooks/payments/test?a=b"):
        for body in bodies:
            reply = service.request("POST", path, body, {"content-type": "application/json"})
            assert is_problem(reply, 403)
            assert reply.json["code"] == "TEST_WEBHOOKS_REFUSED"
    marked = service.deliver(paid("p-1"), **{"paidonce-test": "1"})
    assert is_problem(marked, 403)
    assert marked.json["code"] == "TEST_WEBHOOKS_REFUSED"
    assert rows(database_url, "SELECT id FROM webhook_events") == []
    assert "/webhooks/{source}/test" not in service.request("GET", "/openapi.json").json["paths"]
    assert service.deliver(paid("p-1")).http == 200
    (kept,) = rows(database_url, "SELECT is_test FROM webhook_events")
    assert kept["is_test"] is False


def test_a_source_may_be_named_test(start_service: StartService) -> None:
    """OPS-6 REC-5"""
    service = start_service(
        f'{BASIC}[sources.test]\nprovider = "tilda"\nsecrets = ["first-secret"]\n'
    )
    assert service.deliver(paid("t-1"), source="test").http == 200
    told = sample(service, "test", amount="990.00").json
    assert event(service, told["event_id"])["source"] == "test"
    query = service.request("POST", "/webhooks/payments?to=/test", b"{}")
    assert is_problem(query, 401)


MOUNTED: Final = """
from fastapi import FastAPI
import paidonce
pay = paidonce.asgi("paidonce.toml")
app = FastAPI(lifespan=pay.lifespan)
app.mount("/pay", pay)
"""


def test_test_webhooks_are_made_where_it_is_mounted(start_host: StartHost, tmp_path: Path) -> None:
    """OPS-6 USE-6"""
    (tmp_path / "host.py").write_text(MOUNTED, encoding="utf-8")
    (tmp_path / "paidonce.toml").write_text(BASIC, encoding="utf-8")
    host = start_host("host:app", tmp_path)
    body = b'{"amount": "990.00"}'
    json_of = {"content-type": "application/json"}
    made = host.request("POST", "/pay/webhooks/payments/test", body, json_of)
    assert made.http == 200, made.body
    authorized = {"authorization": f"Bearer {host.key}"}
    path = f"/pay/api/v1/events/{made.json['event_id']}"
    assert host.request("GET", path, None, authorized).json["test"] is True


def test_a_sandbox_event_that_production_ignores_is_shown_as_a_test(
    start_service: StartService,
) -> None:
    """OPS-6 PAY-4"""
    secret = gateways.SECRETS[0]
    cards = f'[sources.cards]\nprovider = "stripe"\nsecrets = ["{secret}"]\n'
    service = start_service(BASIC.replace('"development"', '"production"') + cards)
    said = json.loads(gateways.stripe(gateways.Told("s", None), "", RECEIVED_AT).body)
    body = json.dumps({**said, "livemode": False}).encode()
    delivery = stripe_signed(body, secret, datetime.now(UTC))
    told = service.request("POST", "/webhooks/cards", body, delivery.headers).json
    assert told["status"] == "ignored"
    found = event(service, told["event_id"])
    assert (found["error_code"], found["test"]) == ("TEST_PAYMENT", True)
    (line,) = service.log_lines(webhook_event_id=told["event_id"])
    assert line["test"] is True
