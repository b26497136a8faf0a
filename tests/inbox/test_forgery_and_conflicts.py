"""What is forged has no effect on what is real; what contradicts is kept beside the first."""

from typing import Any

import pytest

from tests.support.servers import Shared
from tests.support.service import Service, paid
from tests.support.tools import actions_of, event, is_problem, items, period_end


def test_a_forged_delivery_does_not_occupy_the_key_of_the_real_one(shared: Shared) -> None:
    """SEC-5 REC-1 PRV-7 OBS-2: the forgery comes first, under the real event's id."""
    service = shared.service
    user = service.user("forged@example.com")
    real = paid("real", email="forged@example.com")
    for refused in (
        service.deliver(real, secret="not the secret"),
        service.deliver(real | {"amount": "1.00"}, secret=""),
        service.deliver(real, **{"x-signature": ""}),
        service.deliver(real, **{"x-signature": "é".encode().decode("latin-1")}),
    ):
        assert is_problem(refused, 401)
        assert refused.json["code"] == "INVALID_SIGNATURE"

    assert shared.rows("SELECT * FROM event_keys") == []
    assert shared.rows("SELECT * FROM payments") == []
    evidence = [
        one
        for one in items(service, "/events", status="FAILED_FINAL")
        if one["error_code"] == "INVALID_SIGNATURE"
    ]
    assert len(evidence) == 4
    assert {one["source"] for one in evidence} == {"payments"}
    assert service.metric("webhook_invalid_signature_total", provider="tilda") == 4

    answer = service.deliver(real)
    assert (answer.http, answer.json["status"]) == (200, "success")
    assert event(service, answer.json["event_id"])["status"] == "PROCESSED"
    end = period_end(service, user["id"])

    again = service.deliver(real, secret="not the secret")
    assert is_problem(again, 401)
    assert period_end(service, user["id"]) == end
    assert service.deliver(real).json["event_id"] == answer.json["event_id"]


def test_a_delivery_without_any_signature_is_refused(shared: Shared) -> None:
    """REC-1 REC-5"""
    headers = {"content-type": "application/json"}
    for body in (b"{}", b"", b"[" * 100_000, b"\xff"):
        reply = shared.service.request("POST", "/webhooks/payments", body, headers)
        assert is_problem(reply, 401), "nobody looks inside before the signature was checked"


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("amount", {}, {"amount": "991.00"}),
        ("tolerated", {}, {"amount": "990.01"}),
        ("currency", {}, {"currency": "USD"}),
        ("status", {}, {"status": "failed"}),
        ("late", {"status": "pending"}, {"status": "paid"}),
        ("payment", {}, {"external_payment_id": "another"}),
        ("plan", {"plan_id": "monthly"}, {"plan_id": "yearly"}),
        ("address", {}, {"email": "somebody-else@example.com"}),
    ],
)
def test_the_same_event_id_with_another_meaning_is_a_conflict(
    shared: Shared, name: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """INB-2 OBS-4"""
    service = shared.service
    user = service.user(f"c-{name}@example.com")
    said = paid(f"c-{name}", email=f"c-{name}@example.com")
    counted = service.metric("webhook_conflict_total", provider="tilda")
    one = service.deliver(said | first)
    before = event(service, one.json["event_id"])
    subscriptions = items(service, "/subscriptions", user_id=user["id"])

    other = service.deliver(said | second)

    assert (other.http, other.json["status"]) == (200, "conflict")
    after = event(service, one.json["event_id"])
    assert after["status"] == before["status"]
    assert after["processed_at"] == before["processed_at"]
    assert items(service, "/subscriptions", user_id=user["id"]) == subscriptions
    assert "conflict_detected" in actions_of(service, one.json["event_id"])
    (evidence,) = [
        found
        for found in items(service, "/events", status="FAILED_FINAL", limit=500)
        if found["error_code"] == "PAYLOAD_CONFLICT"
        and "conflict_detected" in actions_of(service, found["id"])
        and found["received_at"] > before["received_at"]
    ]
    assert evidence["id"] != one.json["event_id"]
    (kept,) = shared.rows("SELECT raw_body FROM webhook_events WHERE id = $1", evidence["id"])
    assert b"c-" in kept["raw_body"]
    assert kept["raw_body"] != b""
    assert service.metric("webhook_conflict_total", provider="tilda") == counted + 1
    assert service.log_lines(result="conflict", webhook_event_id=evidence["id"])
    again = service.deliver(said | first)
    assert again.json == {**again.json, "status": "duplicate", "event_id": one.json["event_id"]}
    assert items(service, "/payments", applied="false") == []


def test_an_amount_spelled_differently_is_a_duplicate(shared: Shared) -> None:
    """INB-2 REC-7: meaning is a fingerprint over canonical fields, not a body hash."""
    service = shared.service
    service.user("spelled@example.com")
    said = paid("spelled", email="spelled@example.com", amount="990.00")
    first = service.deliver(said)
    assert first.json["status"] == "success"
    for amount in (b"990", b"990.0", b"990.00", b'"990"', b'"990.0"', b"9.9e2", b"990.0000"):
        body = (
            b'{ "amount":' + amount + b',"currency":"RUB","event_id":"evt-spelled",'
            b'"status":"paid","email":"spelled@example.com","external_payment_id":"spelled"}'
        )
        again = service.deliver(body)
        assert (amount, again.http) == (amount, 200)
        assert (amount, again.json["status"]) == (amount, "duplicate")
        assert again.json["event_id"] == first.json["event_id"]
    trail = event(service, first.json["event_id"])["trail"]
    assert "event_deduped" in [item["action"] for item in trail]
    assert "conflict_detected" not in [item["action"] for item in trail]


def test_without_an_event_id_the_same_bytes_are_one_event(service: Service) -> None:
    """PRV-2 INB-1: the key is a hash of the body; other bytes are another event."""
    service.user("hash@example.com")
    said = paid("hash", event_id=None, email="hash@example.com")
    first, again = service.deliver(said), service.deliver(said)
    assert [first.json["status"], again.json["status"]] == ["success", "duplicate"]
    assert again.json["event_id"] == first.json["event_id"]
    other = service.deliver(said | {"note": "sent anew"})
    assert other.json["status"] == "success"
    assert other.json["event_id"] != first.json["event_id"]
    assert len(items(service, "/payments")) == 1
    (payment,) = items(service, "/payments", applied="true")
    assert payment["captured"] == "990.00"
