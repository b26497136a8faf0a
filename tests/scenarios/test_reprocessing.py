"""S3 Webhook Reprocessing, over a real server."""

import json
from functools import partial
from typing import Any, Final

import pytest

from tests.scenarios.gateways import CONFIG as FOUR_GATEWAYS
from tests.scenarios.gateways import Sale, Sent
from tests.scenarios.merchant import Merchant
from tests.scenarios.trouble import refusing
from tests.support.servers import Shared, StartService
from tests.support.service import Reply
from tests.support.tools import is_problem, items, paidonce, until

CONFIG: Final = f"""{FOUR_GATEWAYS}
[retry]
attempts = 2
initial_s = 0.05
"""
NOBODY: Final = "00000000-0000-7000-8000-000000000000"
ORDERED: Final = ["cn", "creem", "shop"]


def reprocess(merchant: Merchant, event_id: str, key: str | None = None) -> Reply:
    return merchant.service.api("POST", f"/events/{event_id}/reprocess", {}, key=key)


def is_dead(merchant: Merchant, sale: Sale) -> bool:
    return bool(merchant.event(sale)["status"] == "DEAD_LETTER")


def evidence_id(merchant: Merchant, sent: Sent) -> str:
    (row,) = merchant.evidence(sent)
    return str(row["id"])


@pytest.mark.parametrize("source", ORDERED)
def test_a_dead_event_is_reprocessed_by_hand(merchant: Merchant, source: str) -> None:
    """S3 Webhook Reprocessing / Manual reprocessing: it goes through everything once more, the
    result is told, and it is on record who asked for it.
    """
    sale = merchant.sale(source)
    with refusing(merchant.shared, sale):
        merchant.send(sale.told())
        assert until(partial(is_dead, merchant, sale))
    event_id = merchant.event(sale)["id"]
    reply = reprocess(merchant, event_id)
    assert reply.http in {200, 202}, reply.body
    assert event_id in reply.body.decode()
    assert until(partial(merchant.is_given, sale))
    event = merchant.event(sale)
    assert (event["status"], event["error_code"]) == ("PROCESSED", None)
    assert any("reprocess" in item["action"] for item in event["trail"]), event["trail"]
    audited = merchant.shared.rows(
        "SELECT actor FROM audit_log WHERE event_id = $1 AND action LIKE '%reprocess%'", event_id
    )
    assert all(row["actor"] for row in audited)
    assert audited


@pytest.mark.parametrize("source", ["cn", "creem", "payments", "shop"])
def test_reprocessing_what_was_processed_gives_nothing_twice(
    merchant: Merchant, source: str
) -> None:
    """S3 Webhook Reprocessing / Manual reprocessing: an event counts once, whoever asks."""
    sale = merchant.sale(source)
    merchant.send(sale.told())
    before = merchant.payment(sale), _given(merchant, sale)
    for _ in range(3):
        assert reprocess(merchant, merchant.event(sale)["id"]).http in {200, 202}
    assert merchant.event(sale)["status"] == "PROCESSED"
    after = merchant.payment(sale), _given(merchant, sale)
    assert before[1] == after[1]
    assert before[0]["applied_at"] == after[0]["applied_at"]
    assert before[0]["captured"] == after[0]["captured"]


def _given(merchant: Merchant, sale: Sale) -> object:
    if sale.order is not None:
        found = merchant.order(sale)
        return found["status"], found["paid_at"], found["fulfilled_at"]
    return merchant.service.api("GET", "/subscriptions", email=sale.email).json


@pytest.mark.parametrize("source", ORDERED)
def test_what_came_too_late_is_taken_when_an_operator_says_so(
    merchant: Merchant, source: str
) -> None:
    """S3 Webhook Reprocessing / Manual reprocessing: authentic, and refused for its time alone:
    this is how its money is not lost.
    """
    sale = merchant.sale(source).late(4000)
    sent = sale.told()
    assert merchant.send(sent).http == 401
    reply = reprocess(merchant, evidence_id(merchant, sent))
    assert reply.http in {200, 202}, reply.body
    assert until(partial(merchant.is_given, sale))
    assert merchant.payment(sale)["applied_at"] is not None
    fresh = sale.late(0)
    assert merchant.send(fresh.told()).http == 200
    assert len(merchant.payments(sale)) == 1


@pytest.mark.parametrize("source", ORDERED)
def test_a_forgery_stays_one(merchant: Merchant, source: str) -> None:
    """S3 Webhook Reprocessing / Manual reprocessing: the whole verification is done again."""
    sale = merchant.sale(source)
    forged = sale.told("whsec_AAAA")
    assert merchant.send(forged).http == 401
    event_id = evidence_id(merchant, forged)
    assert reprocess(merchant, event_id).http in {200, 202, 409, 422}
    event = merchant.shown(event_id)
    assert (event["status"], event["error_code"]) == ("FAILED_FINAL", "INVALID_SIGNATURE")
    assert not merchant.is_given(sale)
    assert merchant.send(sale.told()).http == 200
    assert merchant.is_given(sale)


def test_reprocessing_needs_the_right_and_an_event(merchant: Merchant) -> None:
    """S3 Webhook Reprocessing / Manual reprocessing: permission and existence are checked."""
    sale = merchant.sale("cn")
    merchant.send(sale.told())
    event_id = merchant.event(sale)["id"]
    path = f"/api/v1/events/{event_id}/reprocess"
    assert is_problem(merchant.service.request("POST", path, b"{}"), 401)
    made = paidonce(
        merchant.service.folder, "keys", "create", "--name", "only reads", "--scope", "read"
    )
    assert is_problem(reprocess(merchant, event_id, made.stdout.strip()), 403)
    missing = reprocess(merchant, NOBODY)
    assert is_problem(missing, 404)
    assert missing.json["code"]
    assert reprocess(merchant, "nonsense").http in {400, 404, 422}
    assert reprocess(merchant, event_id).http in {200, 202}


def test_a_replay_shows_what_it_would_do_and_then_does_it(merchant: Merchant) -> None:
    """S3 Webhook Reprocessing / Manual reprocessing: all events that match a filter, first dry."""
    sales = [merchant.sale("creem") for _ in range(3)]
    for sale in sales:
        with refusing(merchant.shared, sale):
            merchant.send(sale.told())
            assert until(partial(is_dead, merchant, sale))
    asked = {"source": "creem", "status": "DEAD_LETTER"}
    dry = replayed(merchant, {"filter": asked, "dry_run": True})
    assert dry["dry_run"] is True
    assert not any(merchant.is_given(sale) for sale in sales)
    wet = replayed(merchant, {"filter": asked, "dry_run": False, "rate": 100})
    assert wet["dry_run"] is False
    assert all(until(partial(merchant.is_given, sale)) for sale in sales)
    for path in (f"/replays/{NOBODY}", "/replays/nonsense"):
        assert merchant.service.api("GET", path).http in {400, 404, 422}
    bad = merchant.service.api("POST", "/replays", {"filter": {"colour": "red"}, "dry_run": True})
    assert bad.http in {400, 422}, "a filter that is not understood must not match everything"


def replayed(merchant: Merchant, asked: Any) -> Any:
    """A replay that has run to its end."""
    reply = merchant.service.api("POST", "/replays", asked)
    assert reply.http in {200, 201, 202}, reply.body
    path = f"/replays/{reply.json['id']}"

    def ended() -> Any:
        found = merchant.service.api("GET", path).json
        is_running = str(found["status"]).lower() in {"pending", "queued", "running"}
        return None if is_running else found

    found = until(ended)
    assert found, merchant.service.api("GET", path).body
    return found


def send_test(merchant: Merchant, source: str, said: Any) -> Reply:
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {merchant.service.key}",
    }
    body = json.dumps(said).encode()
    return merchant.service.request("POST", f"/webhooks/{source}/test", body, headers)


@pytest.mark.parametrize("source", ORDERED)
def test_a_test_webhook_is_made_signed_processed_and_marked(
    merchant: Merchant, source: str
) -> None:
    """S3 Webhook Reprocessing / Test webhook endpoint: for a chosen order and amount, through the
    same door as the real ones, and marked as test data.
    """
    sale = merchant.sale(source, "12.34")
    said = {"order": sale.order, "amount": "12.34", "currency": sale.in_currency}
    reply = send_test(merchant, source, said)
    assert reply.http in {200, 201, 202}, reply.body
    (event,) = until(lambda: items(merchant.service, "/events", source=source, order=sale.order))
    assert (event["test"], event["status"]) == (True, "PROCESSED")
    (payment,) = items(merchant.service, "/payments", source=source, order=sale.order)
    assert (payment["captured"], payment["currency"]) == ("12.34", sale.in_currency)
    assert merchant.is_given(sale)


def test_a_test_webhook_of_another_amount_is_a_mismatch(merchant: Merchant) -> None:
    """S3 Webhook Reprocessing / Test webhook endpoint: what a wrong amount does can be tried."""
    sale = merchant.sale("shop", "12.34")
    said = {"order": sale.order, "amount": "12.00", "currency": sale.in_currency}
    assert send_test(merchant, "shop", said).http in {200, 201, 202}
    (event,) = until(lambda: items(merchant.service, "/events", source="shop", order=sale.order))
    assert (event["test"], event["error_code"]) == (True, "AMOUNT_MISMATCH")
    assert not merchant.is_given(sale)


def test_a_test_webhook_by_email_extends_a_subscription(merchant: Merchant) -> None:
    """S3 Webhook Reprocessing / Test webhook endpoint: Tilda knows no orders."""
    sale = merchant.sale("payments")
    said = {"email": sale.email, "amount": "990.00", "currency": "RUB", "payment_id": "test-1"}
    assert send_test(merchant, "payments", said).http in {200, 201, 202}
    assert merchant.is_given(sale)


def test_a_test_webhook_that_cannot_be_made_is_refused(merchant: Merchant) -> None:
    """S3 Webhook Reprocessing / Test webhook endpoint: what is asked for has to make sense."""
    assert send_test(merchant, "nobody", {"amount": "1.00"}).http == 404
    wrong: list[Any] = [
        {},
        [],
        {"amount": "much"},
        {"amount": "-1.00"},
        {"amount": "1", "currency": "?"},
    ]
    for said in wrong:
        reply = send_test(merchant, "shop", said)
        assert is_problem(reply, reply.http)
        assert 400 <= reply.http < 500, said


def test_production_makes_no_test_webhooks(start_service: StartService, database_url: str) -> None:
    """S3 Webhook Reprocessing / Test webhook endpoint: refused, and nothing is written."""
    production = CONFIG.replace("development", "production")
    merchant = Merchant(Shared(start_service(production), database_url))
    sale = merchant.sale("shop")
    said = {"order": sale.order, "amount": "990.00", "currency": sale.in_currency}
    reply = send_test(merchant, "shop", said)
    assert is_problem(reply, reply.http)
    assert reply.http in {403, 404}
    assert merchant.shared.rows("SELECT * FROM webhook_events") == []
    assert not merchant.is_given(sale)
    assert merchant.send(sale.told()).http == 200
    assert merchant.event(sale)["test"] is False
