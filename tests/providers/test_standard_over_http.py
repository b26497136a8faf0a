"""Sources of provider `standard`, over a real server."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.support.servers import Shared, StartService
from tests.support.service import BASIC, Reply, Service
from tests.support.tools import event, is_problem, items, period_end, rows, until

SECRET: Final = b"a secret of the shop's own"
WHSEC: Final = "whsec_" + base64.b64encode(SECRET).decode()
CONFIG: Final = (
    BASIC
    + f"""
[sources.shop]
provider = "standard"
secrets = ["{WHSEC}"]
[sources.patient]
provider = "standard"
secrets = ["{WHSEC}"]
stale = "accept"
[sources.strict]
provider = "standard"
secrets = ["{WHSEC}"]
tolerance_s = 60
[sources.other]
provider = "standard"
secrets = ["{WHSEC}"]
[sources.other.fields]
event_id = "header:x-event-id"
type = "/event"
payment_id = "/object/id"
amount_minor = "/object/total"
currency = "/object/currency"
email = "/object/buyer"
[sources.other.types]
"charge.done" = "paid"
"""
)


def webhook_body(payment: str, kind: str = "payment.succeeded", **data: Any) -> dict[str, Any]:
    usual = {"payment_id": payment, "amount": "990.00", "currency": "RUB"}
    return {"type": kind, "timestamp": "2026-11-15T10:00:00Z", "data": {**usual, **data}}


def send(
    service: Service,
    body: dict[str, Any] | bytes,
    *,
    source: str = "shop",
    event_id: str | None = None,
    late_s: int = 0,
    secret: bytes = SECRET,
    headers: dict[str, str] | None = None,
) -> Reply:
    """Deliver a body, signed so many seconds ago."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = event_id or f"msg_{uuid4().hex}"
    timestamp = str(int(time.time()) - late_s)
    mac = hmac.new(secret, f"{named}.{timestamp}.".encode() + text, hashlib.sha256).digest()
    signed = {
        "content-type": "application/json",
        "webhook-id": named,
        "webhook-timestamp": timestamp,
        "webhook-signature": "v1," + base64.b64encode(mac).decode(),
    }
    return service.request("POST", f"/webhooks/{source}", text, signed | (headers or {}))


def stale_rows(shared: Shared) -> list[dict[str, Any]]:
    return shared.rows(
        "SELECT * FROM webhook_events WHERE error_code = 'TIMESTAMP_EXPIRED' ORDER BY id"
    )


def test_a_payment_is_applied_once_with_any_number_of_signatures(shared: Shared) -> None:
    """PRV-6 INB-1 REC-7: the id is the key; the time of the attempt is not."""
    service = shared.service
    user = service.user("standard@example.com")
    body = webhook_body("s-1", email="standard@example.com")
    first = send(service, body, event_id="msg_1", late_s=5)
    assert (first.http, first.json["status"]) == (200, "success")
    end = period_end(service, user["id"])
    again = send(service, body, event_id="msg_1")
    assert (again.json["status"], again.json["event_id"]) == ("duplicate", first.json["event_id"])
    assert send(service, body, event_id="msg_2").json["status"] == "success"
    assert period_end(service, user["id"]) == end
    other = send(service, webhook_body("s-1", amount="1.00"), event_id="msg_1")
    assert other.json["status"] == "conflict"
    assert send(service, webhook_body("x", "customer.created")).json["status"] == "ignored"
    assert event(service, first.json["event_id"])["key"] == "msg_1"


def test_the_life_of_a_payment(shared: Shared) -> None:
    """PRV-6 PAY-2: a cancellation nobody confirmed changes nothing, a refund is cumulative."""
    service = shared.service
    service.user("life@example.com")

    def status_after(kind: str, **data: Any) -> str:
        reply = send(service, webhook_body("s-life", kind, email="life@example.com", **data))
        assert reply.http == 200
        (payment,) = items(service, "/payments", email="life@example.com")
        return str(payment["status"])

    assert status_after("payment.pending") == "PENDING"
    assert status_after("payment.failed") == "FAILED"
    assert status_after("payment.succeeded") == "SUCCEEDED"
    assert status_after("payment.canceled") == "SUCCEEDED"
    assert status_after("payment.refunded", amount="90.00") == "PARTIALLY_REFUNDED"
    assert status_after("payment.refunded", amount="90.00") == "PARTIALLY_REFUNDED"
    assert status_after("payment.refunded", amount="990.00") == "REFUNDED"


def test_a_forged_delivery_is_rejected(shared: Shared) -> None:
    """PRV-6 REC-5"""
    service = shared.service
    assert is_problem(send(service, webhook_body("s-2"), secret=b"another"), 401)
    for missing in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        reply = send(service, webhook_body("s-2"), headers={missing: ""})
        assert is_problem(reply, 401)
        assert reply.json["code"] == "INVALID_SIGNATURE"
    assert is_problem(send(service, b'{"type":"payment.succeeded"}'), 400)
    assert items(service, "/payments", source="shop", order="s-2") == []


@pytest.mark.parametrize("late_s", [400, -400])
def test_an_expired_delivery_is_rejected_stored_and_claims_no_key(
    shared: Shared, late_s: int
) -> None:
    """PRV-8 SEC-5 OBS-1: the same event signed anew is applied."""
    service = shared.service
    name = f"stale{late_s}"
    user = service.user(f"{name}@example.com")
    body = webhook_body(name, email=f"{name}@example.com")
    kept = len(stale_rows(shared))
    counted = service.metric("webhook_stale_total", provider="standard")
    forged = service.metric("webhook_invalid_signature_total", provider="standard")

    reply = send(service, body, event_id=name, late_s=late_s)

    assert is_problem(reply, 401)
    assert reply.json["code"] == "TIMESTAMP_EXPIRED"
    rows = stale_rows(shared)
    assert len(rows) == kept + 1
    newest = rows[-1]
    assert (newest["status"], newest["signature_valid"]) == ("FAILED_FINAL", True)
    assert newest["raw_body"] == json.dumps(body).encode()
    assert event(service, str(newest["id"]))["error_code"] == "TIMESTAMP_EXPIRED"
    (line,) = service.log_lines(webhook_event_id=str(newest["id"]))
    assert (line["result"], line["error_code"]) == ("failed_final", "TIMESTAMP_EXPIRED")
    assert line["signature_valid"] is True
    assert service.metric("webhook_stale_total", provider="standard") == counted + 1
    assert service.metric("webhook_invalid_signature_total", provider="standard") == forged
    assert items(service, "/subscriptions", user_id=user["id"]) == []
    assert send(service, body, event_id=name).json["status"] == "success"


def test_an_expired_payment_is_listed_until_an_operator_accepts_it(shared: Shared) -> None:
    """PRV-8 PAY-8 OBS-1 OBS-2: creating what it is for does not apply it; accepting it does."""
    service = shared.service
    labels = {"currency": "RUB", "reason": "TIMESTAMP_EXPIRED"}
    counted = service.metric("payments_unapplied", **labels)
    body = webhook_body("late-money", order="late-order")
    assert is_problem(send(service, body, event_id="late-money", late_s=1_000), 401)

    (payment,) = items(service, "/payments", applied="false", order="late-order")
    assert (payment["review"], payment["captured"]) == ("TIMESTAMP_EXPIRED", "990.00")
    assert service.metric("payments_unapplied", **labels) == counted + 1
    assert service.metric("payments_review", reason="TIMESTAMP_EXPIRED") == counted + 1
    (evidence,) = items(service, "/events", payment="late-money")
    assert (evidence["error_code"], evidence["key"]) == ("TIMESTAMP_EXPIRED", None)
    assert (evidence["order"], evidence["type"]) == ("late-order", "payment.succeeded")
    (line,) = service.log_lines(webhook_event_id=evidence["id"])
    assert (line["external_payment_id"], line["amount"]) == ("late-money", "990.00")

    sold = {"reference": "late-order", "amount": "990.00", "currency": "RUB"}
    assert service.api("POST", "/orders", sold).http == 201
    named = f"/payments/{payment['id']}"
    linked = service.api("POST", f"{named}/link", {"order": "late-order"})
    assert (linked.http, linked.json["review"]) == (200, "TIMESTAMP_EXPIRED")
    assert service.api("GET", "/orders/late-order").json["status"] == "PENDING"
    accepted = service.api("POST", f"{named}/accept", {"reason": "the gateway has the money"})
    assert (accepted.http, accepted.json["review"]) == (200, None)
    assert service.api("GET", "/orders/late-order").json["status"] == "PAID"
    assert service.metric("payments_unapplied", **labels) == counted
    assert send(service, body, event_id="late-money").json["status"] == "success"
    assert len(items(service, "/payments", order="late-order")) == 1


def test_a_replayed_expired_delivery_is_stored_once_and_different_ones_each(
    shared: Shared,
) -> None:
    """PRV-8 SEC-5"""
    service = shared.service
    kept = len(stale_rows(shared))
    for _ in range(20):
        reply = send(service, webhook_body("captured"), event_id="captured", late_s=1_000)
        assert is_problem(reply, 401)
    assert len(stale_rows(shared)) == kept + 1
    for number in range(100):
        send(service, webhook_body(f"outage-{number}"), event_id=f"outage-{number}", late_s=1_000)
    assert len(stale_rows(shared)) == kept + 101, "more than a forger could have kept"


def test_an_expired_delivery_that_cannot_be_stored_is_answered_503(
    start_service: StartService, database_url: str, postgres: str
) -> None:
    """PRV-8 REC-5: it may be money, so it has to come again."""
    service = start_service(CONFIG)
    name = database_url.split("/")[3].split("?")[0]
    rows(postgres, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    rows(
        postgres, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
    )
    away = send(service, webhook_body("s-away"), event_id="away", late_s=1_000)
    rows(postgres, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert is_problem(away, 503)

    def refused() -> bool:
        return send(service, webhook_body("s-away"), event_id="away", late_s=1_000).http == 401

    assert until(refused)
    kept = rows(database_url, "SELECT error_code FROM webhook_events")
    assert kept == [{"error_code": "TIMESTAMP_EXPIRED"}]


def test_a_source_that_accepts_expired_deliveries_applies_them_once(shared: Shared) -> None:
    """PRV-8: the key still stops replays."""
    service = shared.service
    service.user("patient@example.com")
    body = webhook_body("s-patient", email="patient@example.com")
    for word in ("success", "duplicate"):
        reply = send(service, body, source="patient", event_id="p-1", late_s=1_000_000)
        assert reply.json["status"] == word


def test_each_source_has_its_own_tolerance(shared: Shared) -> None:
    """PRV-8"""
    for late_s in (90, -90):
        assert is_problem(
            send(shared.service, webhook_body("s-s"), source="strict", late_s=late_s), 401
        )
        assert send(shared.service, webhook_body("s-s"), source="shop", late_s=late_s).http == 200


def test_a_source_can_describe_its_events(shared: Shared) -> None:
    """PRV-6 INB-1: with an event id that is not signed."""
    service = shared.service
    service.user("described@example.com")
    charge = {"id": "o-1", "total": 99_000, "currency": "RUB", "buyer": "described@example.com"}
    body = {"event": "charge.done", "object": charge}
    first = send(service, body, source="other", headers={"x-event-id": "e-1"})
    again = send(service, body, source="other", headers={"x-event-id": "e-1"})
    assert [first.json["status"], again.json["status"]] == ["success", "duplicate"]
    other = {"event": "charge.done", "object": charge | {"id": "o-2"}}
    assert (
        send(service, other, source="other", headers={"x-event-id": "e-1"}).json["status"]
        == "success"
    )


def test_a_blocked_payment_is_applied_when_its_user_registers(shared: Shared) -> None:
    """PAY-5: what is stored can be read again, headers and all."""
    service = shared.service
    email = "later@example.com"
    for source, body in (
        ("shop", webhook_body("s-later", email=email)),
        ("other", {"event": "charge.done", "object": {"id": "o-later", "total": 99_000,
                                                      "currency": "RUB", "buyer": email}}),
    ):  # fmt: skip
        reply = send(service, body, source=source, headers={"x-event-id": "e-later"})
        assert reply.json["status"] == "accepted"
    service.user(email)
    found = items(service, "/payments", email=email)
    assert [one["applied_at"] is not None for one in found] == [True, True]
