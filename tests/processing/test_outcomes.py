"""Every outcome in rows, answers, logs and metrics."""

import json
from typing import Any, Final

import pytest

from tests.support.servers import Shared, StartService
from tests.support.service import BASIC, SECRET, Reply, Service, paid
from tests.support.tools import actions_of, event, is_problem, items, until

CONFIG: Final = f"""{BASIC}
[plans.zero]
price = "1000"
currency = "JPY"
days = 7
[plans.three]
price = "5.000"
currency = "KWD"
days = 7
"""

OUTCOME_FIELDS: Final = {
    "request_id",
    "provider",
    "source",
    "webhook_event_id",
    "external_event_id",
    "external_payment_id",
    "event_key",
    "signature_valid",
    "incoming_status",
    "amount",
    "currency",
    "user_id",
    "result",
    "payment_status_before",
    "payment_status_after",
    "subscription_end_before",
    "subscription_end_after",
    "subscription_applied_before",
    "subscription_applied_after",
    "event_age_ms",
    "late_webhook",
    "error_code",
    "error_message",
    "duration_ms",
    "order",
    "event_type",
    "reason",
    "email",
}


def _payments(service: Service, external_id: str) -> list[Any]:
    return [
        one
        for one in items(service, "/payments", limit=500)
        if one["external_payment_id"] == external_id
    ]


@pytest.mark.parametrize(
    ("name", "said", "code"),
    [
        ("less", {"amount": "989.98"}, "AMOUNT_MISMATCH"),
        ("more", {"amount": "990.02"}, "AMOUNT_MISMATCH"),
        ("float", {"amount": 990.02}, "AMOUNT_MISMATCH"),
        ("yearly", {"plan_id": "yearly"}, "AMOUNT_MISMATCH"),
        ("huge", {"amount": "99000000000.00"}, "AMOUNT_MISMATCH"),
        ("yen", {"plan_id": "zero", "amount": "1001", "currency": "JPY"}, "AMOUNT_MISMATCH"),
        ("dinar", {"plan_id": "three", "amount": "5.011", "currency": "KWD"}, "AMOUNT_MISMATCH"),
        ("usd", {"currency": "USD"}, "CURRENCY_MISMATCH"),
        ("jpy", {"currency": "JPY", "amount": "990"}, "CURRENCY_MISMATCH"),
        ("plan", {"plan_id": "golden"}, "PLAN_UNKNOWN"),
    ],
)
def test_a_mismatching_payment_is_stored_and_not_applied(
    shared: Shared, name: str, said: dict[str, Any], code: str
) -> None:
    """PAY-4 PAY-8 OBS-1 OBS-2"""
    service = shared.service
    email = f"misfit-{name}@example.com"
    user = service.user(email)
    mismatches = service.metric("payments_amount_mismatch_total", provider="tilda")
    finals = service.metric("webhook_failed_final_total", provider="tilda")
    answer = service.deliver(paid(f"misfit-{name}", email=email, **said))
    assert (answer.http, answer.json["status"]) == (200, "accepted")
    found = event(service, answer.json["event_id"])
    assert (found["status"], found["error_code"]) == ("FAILED_FINAL", code)
    assert found["error_message"]
    assert found["processed_at"] is not None
    (payment,) = _payments(service, f"misfit-{name}")
    assert (payment["applied_at"], payment["review"]) == (None, code)
    unapplied = items(service, "/payments", applied="false", limit=500)
    assert payment["id"] in {one["id"] for one in unapplied}
    for subscription in items(service, "/subscriptions", user_id=user["id"]):
        assert subscription["status"] == "INACTIVE"
    (line,) = service.log_lines(external_payment_id=f"misfit-{name}")
    assert (line["result"], line["error_code"]) == ("failed_final", code)
    assert line["subscription_applied_before"] == line["subscription_applied_after"]
    assert service.metric("webhook_failed_final_total", provider="tilda") == finals + 1
    counted = service.metric("payments_amount_mismatch_total", provider="tilda") - mismatches
    assert counted == (0 if code == "PLAN_UNKNOWN" else 1)
    again = service.deliver(paid(f"misfit-{name}", email=email, **said))
    assert (again.http, again.json["status"]) == (200, "duplicate")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exact", {}),
        ("number", {"amount": 990}),
        ("under", {"amount": "989.99"}),
        ("over", {"amount": 990.01}),
        ("yearly", {"amount": "9900", "plan_id": "yearly"}),
        ("zero", {"amount": "1000", "plan_id": "zero", "currency": "JPY"}),
        ("zeros", {"amount": "1000.00", "plan_id": "zero", "currency": "JPY"}),
        ("three", {"amount": "5", "plan_id": "three", "currency": "KWD"}),
        ("succeeded", {"status": "succeeded"}),
    ],
)
def test_money_that_fits_within_a_hundredth_is_applied(
    shared: Shared, name: str, said: dict[str, Any]
) -> None:
    """PAY-4 PAY-1: amounts are exact; currencies without decimals have no tolerance."""
    service = shared.service
    email = f"fits-{name}@example.com"
    user = service.user(email)
    answer = service.deliver(paid(f"fits-{name}", email=email, **said))
    assert (answer.http, answer.json["status"]) == (200, "success")
    (payment,) = _payments(service, f"fits-{name}")
    assert payment["applied_at"] is not None
    assert (payment["status"], payment["review"]) == ("SUCCEEDED", None)
    (subscription,) = items(service, "/subscriptions", user_id=user["id"])
    assert subscription["status"] == "ACTIVE"
    expected = {"under": "989.99", "over": "990.01", "yearly": "9900.00"}
    decimals = {"zero": "1000", "zeros": "1000", "three": "5.000"}
    assert payment["captured"] == (expected | decimals).get(name, "990.00")


@pytest.mark.parametrize("status", ["pending", "failed", "refunded", "canceled", "PAID?", "отказ"])
def test_another_status_is_ignored_and_makes_no_payment(shared: Shared, status: str) -> None:
    """PAY-2 REC-5: S0's tilda contract."""
    service = shared.service
    service.user("ignored@example.com")
    name = f"ignored-{len(status)}-{status[:2]}"
    said = paid(name, status=status, email="ignored@example.com")
    answer = service.deliver(said)
    assert (answer.http, answer.json["status"]) == (200, "ignored")
    found = event(service, answer.json["event_id"])
    assert (found["status"], found["error_code"]) == ("IGNORED", "NON_SUCCESS_STATUS")
    assert _payments(service, name) == []
    (line,) = service.log_lines(external_payment_id=name)
    assert (line["result"], line["error_code"]) == ("ignored", "NON_SUCCESS_STATUS")
    assert line["incoming_status"] == status
    again = service.deliver(said)
    assert (again.http, again.json["status"]) == (200, "duplicate")
    later = service.deliver(paid(name, event_id=f"{name}-paid", email="ignored@example.com"))
    assert later.json["status"] == "success", "an ignored status must not stand in the way"


@pytest.mark.parametrize(
    "field", ["external_payment_id", "status", "amount", "currency"], ids=lambda field: field
)
@pytest.mark.parametrize("value", [None, ""], ids=["missing", "empty"])
def test_a_paid_event_without_a_needed_field_is_malformed_and_kept(
    shared: Shared, field: str, value: str | None
) -> None:
    """REC-6 PAY-4 REC-5"""
    service = shared.service
    name = f"without-{field}-{value is None}"
    answer = service.deliver(paid(name, **{field: value}))
    assert is_problem(answer, 400)
    assert answer.json["code"] == "MALFORMED"
    (kept,) = shared.rows(
        "SELECT id, status, error_code, signature_valid FROM webhook_events"
        " WHERE position($1 IN convert_from(raw_body, 'utf8')) > 0",
        f"evt-{name}".encode().decode(),
    )
    assert (kept["status"], kept["error_code"]) == ("FAILED_FINAL", "MALFORMED")
    assert kept["signature_valid"]
    assert event(service, str(kept["id"]))["error_code"] == "MALFORMED"
    is_listed = field in ("amount", "currency")
    found = _payments(service, name)
    assert [one["review"] for one in found] == (["MALFORMED"] if is_listed else [])


def test_every_outcome_is_logged_with_every_field_and_nothing_private(service: Service) -> None:
    """OBS-1 SEC-7: one line per outcome, the same fields on each; e-mail only masked."""
    user = service.user("Private.Person@example.com")
    card = "4111111111111111"
    mails = ["Private.Person@example.com", "unknown.person@example.org"]
    notes = {"note": "very-private-note", "card": card}
    base = {"email": mails[0], **notes}
    deliveries: list[tuple[Any, str, str]] = [
        (paid("log-ok", paid_at="2026-01-02T03:04:05Z", **base), SECRET, "processed"),
        (paid("log-ok", paid_at="2026-01-02T03:04:05Z", **base), SECRET, "duplicate"),
        (paid("log-ok", **(base | {"amount": "5.00"})), SECRET, "conflict"),
        (paid("log-no", **(base | {"status": "failed"})), SECRET, "ignored"),
        (paid("log-sum", **(base | {"amount": "5.00"})), SECRET, "failed_final"),
        (paid("log-plan", **(base | {"plan_id": "nope"})), SECRET, "failed_final"),
        (paid("log-forged", **base), "a-wrong-secret", "failed_final"),
        (paid("log-bad", **(base | {"amount": f"{card} {mails[0]}"})), SECRET, "failed_final"),
        (b'{"email":"' + mails[0].encode() + b'", "very-private-note', SECRET, "failed_final"),
        (paid("log-user", **(base | {"email": mails[1]})), SECRET, "failed_retryable"),
        (paid("log-none", **(base | {"email": None})), SECRET, "failed_retryable"),
    ]
    results: list[dict[str, Any]] = []
    answers = []
    for said, secret, _ in deliveries:
        seen = len(results)
        answers.append(service.deliver(said, secret=secret))
        lines = service.log_lines(seen + 1, event="webhook_outcome")[seen:]
        assert len(lines) == 1, (said, lines)
        results += lines
    service.user(mails[1])

    for line, answer, (said, secret, result) in zip(results, answers, deliveries, strict=True):
        assert OUTCOME_FIELDS - line.keys() == set(), said
        assert line["result"] == result or (
            result == "failed_retryable" and line["result"] == "unlinked"
        ), said
        assert (line["provider"], line["source"]) == ("tilda", "payments")
        assert line["signature_valid"] is (secret == SECRET)
        assert line["request_id"] == answer.headers["x-request-id"]
        assert line["duration_ms"] >= 0
        assert line["email"] is None or "*" in line["email"] or "…" in line["email"]
    processed = results[0]
    assert processed["external_payment_id"] == "log-ok"
    assert processed["external_event_id"] == "evt-log-ok"
    assert "evt-log-ok" in processed["event_key"]
    assert processed["webhook_event_id"] == answers[0].json["event_id"]
    assert processed["incoming_status"] == "paid"
    assert str(processed["amount"]) == "990.00"
    assert processed["currency"] == "RUB"
    assert processed["user_id"] == user["id"]
    assert processed["payment_status_after"] == "SUCCEEDED"
    assert processed["subscription_end_before"] != processed["subscription_end_after"]
    assert not processed["subscription_applied_before"]
    assert processed["subscription_applied_after"]
    assert processed["event_age_ms"] > 86_400_000
    assert processed["late_webhook"] is True
    assert processed["error_code"] is None
    assert results[1]["webhook_event_id"] == answers[0].json["event_id"]
    assert results[1]["subscription_end_before"] == results[1]["subscription_end_after"]
    assert results[6]["error_code"] == "INVALID_SIGNATURE"
    assert results[7]["error_code"] == results[8]["error_code"] == "MALFORMED"
    assert results[9]["error_code"] == "USER_MISSING"
    assert results[10]["error_code"] == "UNLINKED_PAYMENT"

    told = "".join((service.folder / name).read_text() for name in ("stdout", "stderr"))
    told += service.request("GET", "/metrics").body.decode()
    told += "".join(answer.body.decode() for answer in answers)
    for private in [*mails, SECRET, "second-secret", service.key, card, "very-private-note"]:
        assert private.lower() not in told.lower(), f"{private} was told"
    assert not any(
        json.dumps(said) in told for said, *_ in deliveries if not isinstance(said, bytes)
    )


def test_every_required_metric_has_its_labels_and_counts(service: Service) -> None:
    """OBS-2"""
    service.user("metric@example.com")
    service.deliver(paid("m-1", email="metric@example.com"))
    service.deliver(paid("m-1", email="metric@example.com"))
    service.deliver(paid("m-2", email="metric@example.com", amount="1.00"))
    service.deliver(paid("m-3", email="metric@example.com", currency="USD"))
    service.deliver(paid("m-4", email="nobody@example.com"))
    service.deliver(paid("m-5", email=None))
    service.deliver(paid("m-6", email="metric@example.com", status="failed"))
    service.deliver(paid("m-7"), secret="wrong")
    service.deliver(b"not json")
    expected = {
        "webhook_received_total": 9,
        "webhook_processed_total": 1,
        "webhook_duplicate_total": 1,
        "webhook_deduped_total": 1,
        "webhook_failed_retryable_total": 2,
        "webhook_failed_final_total": 4,
        "webhook_failed_total": 6,
        "webhook_invalid_signature_total": 1,
        "payments_unlinked_total": 2,
        "payments_amount_mismatch_total": 2,
        "webhook_recovered_total": 0,
    }
    found = {name: service.metric(name, provider="tilda") for name in expected}
    assert found == expected
    requests = {
        code: service.metric("webhook_requests_total", provider="tilda", http_code=code)
        for code in ("200", "400", "401")
    }
    assert requests == {"200": 7, "400": 1, "401": 1}
    assert service.metric("webhook_processing_duration_ms_count", provider="tilda") >= 7
    assert service.metric("webhook_processing_lag_ms_count", provider="tilda") >= 1
    assert service.metric("webhook_events_backlog", status="FAILED_RETRYABLE") == 2
    for name in ("payments_unapplied_oldest_seconds", "payments_unlinked_oldest_seconds"):
        assert 0 < service.metric(name) < 60, name
    assert 0 < service.metric("webhook_events_oldest_seconds", status="FAILED_RETRYABLE") < 60
    service.user("nobody@example.com")
    assert service.metric("webhook_recovered_total", provider="tilda") == 1
    assert service.metric("webhook_processed_total", provider="tilda") == 2
    assert service.metric("webhook_events_backlog", status="FAILED_RETRYABLE") == 1


def test_only_an_event_that_failed_or_waited_is_recovered(start_service: StartService) -> None:
    """OBS-2: one that was only queued, or is processed again, is not."""
    service = start_service(f'{BASIC}\n[server]\nmode = "queued"\n')

    def ends_as(answer: Reply, status: str) -> bool:
        return bool(until(lambda: event(service, answer.json["event_id"])["status"] == status))

    service.user("queued@example.com")
    queued = service.deliver(paid("g-1", email="queued@example.com"))
    assert ends_as(queued, "PROCESSED")
    again = service.api("POST", f"/events/{queued.json['event_id']}/reprocess")
    assert again.json["status"] == "PROCESSED"
    assert service.metric("webhook_processed_total", provider="tilda") >= 1
    assert service.metric("webhook_recovered_total", provider="tilda") == 0
    waiting = service.deliver(paid("g-2", email="late@example.com"))
    assert ends_as(waiting, "FAILED_RETRYABLE")
    service.user("late@example.com")
    assert ends_as(waiting, "PROCESSED")
    assert until(lambda: service.metric("webhook_recovered_total", provider="tilda") == 1)


def test_the_audit_trail_of_an_event_is_complete(service: Service) -> None:
    """OBS-4 OPS-2: the trail an operator reads is complete, and in order."""
    service.user("trail@example.com")
    said = paid("trail", email="trail@example.com")
    answer = service.deliver(said)
    for _ in range(3):
        service.deliver(said)
    trail = event(service, answer.json["event_id"])["trail"]
    for item in trail:
        assert item.keys() >= {"at", "action", "success", "details"}
        assert isinstance(item["success"], bool)
    assert [item["at"] for item in trail] == sorted(item["at"] for item in trail)
    assert [item["action"] for item in trail] == [
        "event_received",
        "event_inserted",
        "processing_attempt_started",
        "processing_succeeded",
        "event_deduped",
    ]
    assert trail[-1]["details"]["count"] == 3
    failed = service.deliver(paid("trail-2", email="trail@example.com", amount="1"))
    assert "processing_attempt_failed" in actions_of(service, failed.json["event_id"])
