"""Many deliveries at the same instant have one effect, and many payments have each their own."""

from datetime import UTC, datetime, timedelta

from tests.support.servers import Shared
from tests.support.service import Service, paid
from tests.support.tools import event, items, period_end, storm

MONTH = timedelta(days=30)


def test_500_copies_of_one_webhook_at_once_are_one_event_and_one_extension(
    shared: Shared,
) -> None:
    """REC-3 REC-7 PAY-3 INB-1 OBS-2 OBS-4"""
    service = shared.service
    user = service.user("copies@example.com")
    before = datetime.now(UTC)
    replies = storm(service, [paid("copy", email="copies@example.com")] * 500, 50)
    after = datetime.now(UTC)

    assert {reply.http for reply in replies} == {200}
    words = [reply.json["status"] for reply in replies]
    assert (words.count("success"), words.count("duplicate")) == (1, 499)
    (event_id,) = {reply.json["event_id"] for reply in replies}

    assert event(service, event_id)["status"] == "PROCESSED"
    assert len(items(service, "/events", payment="copy")) == 1
    (payment,) = items(service, "/payments", email="copies@example.com")
    assert payment["status"] == "SUCCEEDED"
    assert payment["applied_at"] is not None
    assert before + MONTH <= period_end(service, user["id"]) <= after + MONTH
    assert [row["n"] for row in shared.rows("SELECT count(*) n FROM event_keys")] == [1]

    assert service.metric("webhook_requests_total", provider="tilda", http_code="200") == 500
    assert service.metric("webhook_received_total", provider="tilda") == 500
    assert service.metric("webhook_processed_total", provider="tilda") == 1
    assert service.metric("webhook_duplicate_total", provider="tilda") == 499
    assert service.metric("webhook_deduped_total", provider="tilda") == 499
    trail = service.api("GET", f"/events/{event_id}").json["trail"]
    (counted,) = [one for one in trail if one["action"] == "event_deduped"]
    details = counted["details"]
    assert details["count"] == 499, "one entry, however many duplicates"
    assert details["first"] <= details["last"]
    assert datetime.fromisoformat(details["first"]) == datetime.fromisoformat(counted["at"])
    assert len(service.log_lines(499, external_payment_id="copy", result="duplicate")) == 499


def test_50_events_of_one_payment_at_once_have_one_effect(shared: Shared) -> None:
    """PAY-3 REC-3: siblings are PROCESSED, all but one without an effect."""
    service = shared.service
    user = service.user("siblings@example.com")
    said = [paid("sib", event_id=f"sib-{n}", email="siblings@example.com") for n in range(50)]
    before = datetime.now(UTC)
    replies = storm(service, said, 50)
    after = datetime.now(UTC)

    assert {(reply.http, reply.json["status"]) for reply in replies} == {(200, "success")}
    assert len({reply.json["event_id"] for reply in replies}) == 50
    found = items(service, "/events", payment="sib", limit=500)
    assert [one["status"] for one in found] == ["PROCESSED"] * 50
    assert len(items(service, "/payments", email="siblings@example.com")) == 1
    assert before + MONTH <= period_end(service, user["id"]) <= after + MONTH


def test_200_payments_of_one_user_at_once_extend_exactly_200_times(service: Service) -> None:
    """PAY-3 FUL-1: no extension is lost and none is granted twice."""
    user = service.user("many@example.com")
    said = [paid(f"many-{n}", email="many@example.com") for n in range(200)]
    before = datetime.now(UTC)
    replies = storm(service, said, 50)
    after = datetime.now(UTC)

    assert {(reply.http, reply.json["status"]) for reply in replies} == {(200, "success")}
    end = period_end(service, user["id"])
    assert before + 200 * MONTH <= end <= after + 200 * MONTH
    assert len(items(service, "/payments", applied="true", limit=500)) == 200
    assert items(service, "/payments", applied="false") == []
