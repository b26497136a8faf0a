"""An operator has an event processed again: verified, processed, and never applied twice."""

import json
import time
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.support.servers import Shared, StartService
from tests.support.service import BASIC, SECRET, Service, paid, signature
from tests.support.tools import actions_of, event, is_problem, items, paidonce, period_end, rows

CONFIG: Final = f"""{BASIC}
[sources.stripe]
provider = "stripe"
secrets = ["whsec_test"]
"""
ALONE: Final = BASIC.replace(f'secrets = ["{SECRET}", "second-secret"]', f'secrets = ["{SECRET}"]')
LEAVING: Final = f'[sources.leaving]\nprovider = "tilda"\nsecrets = ["{SECRET}"]\n'
WEEKLY: Final = '[plans.weekly]\nprice = "300.00"\ncurrency = "RUB"\ndays = 7\n'
WRONG: Final = BASIC.replace(SECRET, "a-typing-error").replace("second-secret", "another")


def _reprocess(service: Service, event_id: str) -> Any:
    reply = service.api("POST", f"/events/{event_id}/reprocess")
    assert reply.http == 200, reply.body
    return reply.json


def test_s3_manual_reprocessing(shared: Shared) -> None:
    """OPS-4 PAY-3 S3 "Manual reprocessing": what was applied is not applied again."""
    service = shared.service
    user = service.user("manual@example.com")
    event_id = service.deliver(paid("manual", email="manual@example.com")).json["event_id"]
    end = period_end(service, user["id"])
    before = shared.rows("SELECT * FROM payments"), shared.rows("SELECT id FROM outbox")

    done = _reprocess(service, event_id)

    assert (done["id"], done["status"], done["attempts"]) == (event_id, "PROCESSED", 2)
    report = done["reprocessed"]
    assert (report["result"], report["was"], report["event_id"]) == (
        "processed",
        "PROCESSED",
        event_id,
    )
    assert (report["signature"], report["applied"]) == ("verified", False)
    assert period_end(service, user["id"]) == end
    after = shared.rows("SELECT * FROM payments"), shared.rows("SELECT id FROM outbox")
    assert after == before
    (audited,) = shared.rows("SELECT * FROM audit_log WHERE action = 'event_reprocessed'")
    assert audited["actor"] == "bootstrap"
    assert json.loads(audited["details"])["was"] == "PROCESSED"


def test_reprocessing_keeps_the_audit_trail(shared: Shared) -> None:
    """OBS-4: also the steps that were stored only in columns that changed."""
    service = shared.service
    service.user("whole@example.com")
    event_id = service.deliver(paid("whole", email="whole@example.com")).json["event_id"]
    before = event(service, event_id)["trail"]
    trail = _reprocess(service, event_id)["trail"]
    assert trail[: len(before)] == before
    assert [one["action"] for one in trail[len(before) :]] == [
        "processing_attempt_started",
        "processing_succeeded",
        "event_reprocessed",
    ]
    assert _reprocess(service, event_id)["trail"][: len(trail)] == trail


def test_an_unknown_event_cannot_be_reprocessed(shared: Shared) -> None:
    """OPS-4"""
    assert is_problem(shared.service.api("POST", f"/events/{uuid4()}/reprocess"), 404)


def test_a_queued_event_is_processed_at_once_and_queued_once(shared: Shared) -> None:
    """OPS-4 RET-1: reprocessing it leaves no second row in the queue."""
    service = shared.service
    event_id = service.deliver(paid("waits", email="waits@example.com")).json["event_id"]
    done = _reprocess(service, event_id)
    assert (done["status"], done["error_code"]) == ("FAILED_RETRYABLE", "USER_MISSING")
    assert done["reprocessed"]["result"] == "unlinked"
    assert len(shared.rows("SELECT * FROM event_queue WHERE event_id = $1", event_id)) == 1
    user = service.user("waits@example.com")
    assert len(items(service, "/subscriptions", user_id=user["id"])) == 1


def test_a_conflicting_delivery_stays_refused(shared: Shared) -> None:
    """OPS-4 INB-2"""
    service = shared.service
    service.deliver(paid("contradicted"))
    service.deliver(paid("contradicted", amount="1.00"))
    (evidence,) = [
        one
        for one in items(service, "/events", error_code="PAYLOAD_CONFLICT")
        if one["payment"] == "contradicted"
    ]
    refused = service.api("POST", f"/events/{evidence['id']}/reprocess")
    assert is_problem(refused, 409)
    assert refused.json["code"] == "PAYLOAD_CONFLICT"


@pytest.mark.parametrize(
    ("secret", "body", "code"),
    [
        ("not the secret", paid("forged"), "INVALID_SIGNATURE"),
        (SECRET, {"status": "paid"}, "MALFORMED"),
    ],
    ids=["forged", "malformed"],
)
def test_s3_permanent_failure_handling(shared: Shared, secret: str, body: Any, code: str) -> None:
    """RET-2 OPS-4 S3 "Permanent failure handling": recorded, not retried, and still refused."""
    service = shared.service
    assert service.deliver(body, secret=secret).json["code"] == code
    evidence = items(service, "/events", error_code=code)[0]
    assert (evidence["status"], evidence["next_attempt_at"]) == ("FAILED_FINAL", None)
    counted = shared.rows("SELECT count(*) FROM webhook_events")

    refused = service.api("POST", f"/events/{evidence['id']}/reprocess")

    assert is_problem(refused, 409)
    assert refused.json["code"] == code
    assert event(service, evidence["id"])["trail"] == [
        one for one in event(service, evidence["id"])["trail"] if one["action"] == "event_received"
    ]
    assert shared.rows("SELECT count(*) FROM webhook_events") == counted


def test_reprocessing_accepts_an_expired_delivery(shared: Shared) -> None:
    """PRV-8 OPS-4: only its lateness is ignored."""
    service = shared.service
    service.api("POST", "/orders", {"reference": "late-1", "amount": "10.00", "currency": "USD"})
    body = json.dumps(
        {
            "id": "evt_late",
            "object": "event",
            "type": "payment_intent.succeeded",
            "created": int(time.time()) - 3600,
            "livemode": True,
            "data": {
                "object": {
                    "id": "pi_late",
                    "object": "payment_intent",
                    "amount": 1000,
                    "amount_received": 1000,
                    "currency": "usd",
                    "status": "succeeded",
                    "metadata": {"order": "late-1"},
                }
            },
        }
    ).encode()
    at = int(time.time()) - 3600
    sealed = signature(f"{at}.".encode() + body, "whsec_test")
    headers = {"content-type": "application/json", "stripe-signature": f"t={at},v1={sealed}"}
    assert service.request("POST", "/webhooks/stripe", body, headers).http == 401
    (evidence,) = items(service, "/events", error_code="TIMESTAMP_EXPIRED")
    (listed,) = items(service, "/payments", applied="false", review="TIMESTAMP_EXPIRED")
    assert listed["order"] == "late-1"

    done = _reprocess(service, evidence["id"])

    assert done["id"] == evidence["id"]
    assert done["error_code"] == "TIMESTAMP_EXPIRED", "the evidence stays what it was"
    made = event(service, done["reprocessed"]["event_id"])
    assert made["status"] == "PROCESSED"
    assert made["received_at"] == evidence["received_at"]
    assert service.api("GET", "/orders/late-1").json["status"] == "PAID"
    assert items(service, "/payments", review="TIMESTAMP_EXPIRED") == []
    again = _reprocess(service, evidence["id"])["reprocessed"]
    assert (again["result"], again["event_id"]) == ("duplicate", made["id"])


def test_a_delivery_refused_for_a_wrong_setting_becomes_an_event(
    start_service: StartService,
) -> None:
    """OPS-4 SEC-5: with the same bytes and time; its evidence refers to it."""
    wrong = start_service(WRONG)
    assert wrong.deliver(paid("mistyped")).http == 401
    assert wrong.deliver(paid("twice", email="twice@example.com")).http == 401
    wrong.end()
    service = start_service()
    user, other = service.user("buyer@example.com"), service.user("twice@example.com")
    repeated, evidence = items(service, "/events", status="FAILED_FINAL")

    made = event(service, _reprocess(service, evidence["id"])["reprocessed"]["event_id"])

    assert (made["status"], made["key"]) == ("PROCESSED", "evt-mistyped")
    assert made["received_at"] == evidence["received_at"]
    assert len(items(service, "/subscriptions", user_id=user["id"])) == 1
    assert "event_created_from_evidence" in actions_of(service, made["id"])
    after = event(service, evidence["id"])
    (entry,) = [one for one in after["trail"] if one["action"] == "event_reprocessed"]
    assert (entry["details"]["event_id"], after["status"]) == (made["id"], "FAILED_FINAL")
    end = period_end(service, user["id"])
    assert service.deliver(paid("mistyped")).json["status"] == "duplicate"
    assert period_end(service, user["id"]) == end

    real = service.deliver(paid("twice", email="twice@example.com")).json["event_id"]
    end = period_end(service, other["id"])
    report = _reprocess(service, repeated["id"])["reprocessed"]
    assert (report["result"], report["event_id"]) == ("duplicate", real), "the real one came since"
    assert period_end(service, other["id"]) == end


def test_reprocessing_uses_the_current_settings(start_service: StartService) -> None:
    """OPS-4 PAY-4: a plan was added, a secret removed, a source removed."""
    first = start_service(f"{BASIC}{LEAVING}")
    user = first.user("buyer@example.com")
    unknown = first.deliver(paid("plan", plan_id="weekly", amount="300.00")).json["event_id"]
    rotated = first.deliver(
        paid("rotated", email="later@example.com"), secret="second-secret"
    ).json["event_id"]
    gone = first.deliver(paid("gone", email="gone@example.com"), source="leaving").json["event_id"]
    assert event(first, unknown)["error_code"] == "PLAN_UNKNOWN"
    first.end()
    service = start_service(f"{ALONE}{WEEKLY}")

    done = _reprocess(service, unknown)
    assert (done["status"], done["reprocessed"]["was_error_code"]) == ("PROCESSED", "PLAN_UNKNOWN")
    assert done["reprocessed"]["applied"]
    assert len(items(service, "/subscriptions", user_id=user["id"])) == 1

    done = _reprocess(service, rotated)
    assert done["error_code"] == "USER_MISSING", "it was processed, and not refused"
    (entry,) = [one for one in done["trail"] if one["action"] == "event_reprocessed"]
    assert entry["details"]["signature"] == "could not be checked any more"

    refused = service.api("POST", f"/events/{gone}/reprocess")
    assert is_problem(refused, 409)
    assert "configure" in refused.json["detail"]
    assert event(service, gone)["next_attempt_at"] is not None, "it is still in the queue"


OPERATORS: Final[list[tuple[str, Any]]] = [
    ("/events/{id}/reprocess", None),
    ("/dead-letters/{id}/retry", None),
    ("/dead-letters/{id}/discard", {"reason": "x"}),
    ("/dead-letters/retry", {"filter": {}}),
    ("/dead-letters/discard", {"filter": {}, "reason": "x"}),
    ("/replays", {"filter": {"status": "DEAD_LETTER"}, "dry_run": True}),
    ("/replays/{id}/pause", None),
    ("/replays/{id}/resume", None),
    ("/replays/{id}/cancel", None),
]


def test_a_read_key_cannot_change_dead_letters(shared: Shared) -> None:
    """SEC-6 OPS-4 OPS-5 S3 "Manual reprocessing": rights are checked first."""
    service = shared.service
    made = paidonce(service.folder, "keys", "create", "--name", "r", "--scope", "read")
    key = made.stdout.strip()
    for path, body in OPERATORS:
        refused = service.api("POST", path.format(id=uuid4()), body, key=key)
        assert is_problem(refused, 403), path
    assert rows(shared.database_url, "SELECT * FROM replays") == []
    for path in ("/dead-letters", "/replays"):
        assert service.api("GET", path, key=key).http == 200
