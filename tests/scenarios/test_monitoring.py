"""S3 Webhook Statistics and Monitoring, over a real server."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.scenarios.gateways import CONFIG as FOUR_GATEWAYS
from tests.scenarios.gateways import Sale
from tests.scenarios.merchant import Merchant
from tests.scenarios.trouble import refusing
from tests.support.tools import is_problem, items, until

CONFIG: Final = f"""{FOUR_GATEWAYS}
[retry]
initial_s = 3600.0
max_s = 3600.0
[limits]
unverified = ""
[security]
ban_threshold = 0
"""
RECEIVED: Final = {"cn": 5, "creem": 4, "payments": 2, "shop": 3}
"""What `busy` sends, by source."""


@pytest.fixture(scope="module")
def busy(merchant: Merchant) -> dict[str, Sale]:
    """A day's work: processed, duplicate, forged, stale, mismatched and waiting deliveries."""
    sales = {source: merchant.sale(source) for source in RECEIVED}
    for sale in sales.values():
        assert merchant.send(sale.told()).http == 200
    assert merchant.send(sales["cn"].told()).http == 200
    short, waiting = merchant.sale("cn"), merchant.sale("creem")
    assert merchant.send(short.but(amount=short.amount - 1).told()).http == 200
    assert merchant.send(sales["cn"].told("another")).http == 401
    assert merchant.send(sales["cn"].again().late(400).told()).http == 401
    with refusing(merchant.shared, waiting):
        assert merchant.send(waiting.told()).http == 200
    assert merchant.send(sales["creem"].told("another")).http == 401
    assert merchant.send(sales["creem"].told(object=[])).http == 400
    assert merchant.send(sales["payments"].told("another")).http == 401
    assert merchant.send(sales["shop"].told()).http == 200
    assert merchant.send(sales["shop"].again().told(type="a.new.type")).http == 200
    return sales | {"short": short, "waiting": waiting}


def stats(merchant: Merchant, **query: Any) -> Any:
    reply = merchant.service.api("GET", "/stats", **query)
    assert reply.http == 200, reply.body
    return reply.json


def test_statistics(merchant: Merchant, busy: dict[str, Sale]) -> None:
    """S3 Webhook Statistics and Monitoring / Webhook statistics query: received, succeeded, failed,
    the rate, by gateway, by signature method, and by day for the last seven days.
    """
    total = sum(RECEIVED.values())
    found = until(lambda: one if (one := stats(merchant))["received"] >= total else None)
    assert found, stats(merchant)
    assert found.keys() >= {
        "received",
        "succeeded",
        "failed",
        "success_rate",
        "by_source",
        "by_signature_method",
        "by_day",
    }
    assert found["received"] == total
    assert found["failed"] >= 3, "one stale, one malformed, one that does not fit"
    assert found["rejected"] >= 3, "three forged"
    assert 4 <= found["succeeded"] <= total - found["failed"]
    processed = found["succeeded"] + found["failed"]
    assert found["success_rate"] == pytest.approx(found["succeeded"] / processed, abs=0.3)
    assert 0 < found["success_rate"] < 1
    by_source = _by(found["by_source"], "source")
    assert {name: one["received"] for name, one in by_source.items()} == RECEIVED
    assert sum(one["failed"] for one in by_source.values()) == found["failed"]
    assert sum(one["succeeded"] for one in by_source.values()) == found["succeeded"]
    methods = _by(found["by_signature_method"], "method", "signature_method")
    assert {"hmac-sha256"} < methods.keys()
    assert any("rsa" in name.lower() for name in methods)
    assert sum(one["received"] for one in methods.values()) == total
    assert len(found["by_day"]) in {1, 7}
    days = _by(found["by_day"], "day", "date")
    assert sum(one["received"] for one in days.values()) == total
    assert {datetime.fromisoformat(name).date() for name in days} >= {datetime.now(UTC).date()}


def _by(found: Any, *names: str) -> dict[str, Any]:
    """By name, whether it is told as an object or as a list."""
    if isinstance(found, dict):
        return found
    return {one[next(name for name in names if name in one)]: one for one in found}


def test_statistics_of_one_gateway_and_of_other_days(
    merchant: Merchant, busy: dict[str, Sale]
) -> None:
    """S3 Webhook Statistics and Monitoring / Webhook statistics query: filters, the right to ask,
    and nonsense.
    """
    assert until(lambda: stats(merchant, source="cn")["received"] == RECEIVED["cn"])
    assert stats(merchant, days=1)["received"] == sum(RECEIVED.values())
    assert stats(merchant, days=30)["received"] == sum(RECEIVED.values())
    assert merchant.service.request("GET", "/api/v1/stats").http == 401
    for query in ({"days": 0}, {"days": -1}, {"days": "week"}, {"days": 10**12}):
        assert merchant.service.api("GET", "/stats", **query).http in {400, 422}, query


def test_events_are_filtered_by_gateway_status_order_and_time(
    merchant: Merchant, busy: dict[str, Sale]
) -> None:
    """S3 Webhook Statistics and Monitoring / Webhook logs query: each filter by itself, and all
    of them together.
    """
    service = merchant.service
    assert {one["source"] for one in items(service, "/events", source="creem")} == {"creem"}
    for status, number in (("PROCESSED", 4), ("FAILED_RETRYABLE", 1), ("FAILED_FINAL", 6)):
        found = items(service, "/events", status=status, limit=500)
        assert [one["status"] for one in found] == [status] * number
    (of_order,) = items(service, "/events", order=busy["short"].order)
    assert of_order["error_code"] == "AMOUNT_MISMATCH"
    (all_at_once,) = items(
        service,
        "/events",
        source="creem",
        status="FAILED_RETRYABLE",
        order=busy["waiting"].order,
        payment=busy["waiting"].payment,
        since=(datetime.now(UTC) - timedelta(hours=1)).isoformat(),
        until=(datetime.now(UTC) + timedelta(hours=1)).isoformat(),
    )
    assert all_at_once["next_attempt_at"] is not None
    assert items(service, "/events", order=busy["short"].order, source="shop") == []
    assert items(service, "/events", until="2020-01-01T00:00:00Z") == []
    assert items(service, "/events", since="2100-01-01T00:00:00Z") == []
    for query in ({"since": "yesterday"}, {"status": "GOOD"}, {"cursor": "?"}, {"limit": 0}):
        reply = service.api("GET", "/events", **query)
        assert reply.http in {400, 422}, query
        assert is_problem(reply, reply.http)


def test_a_span_of_time_begins_and_ends_where_it_says(
    merchant: Merchant, busy: dict[str, Sale]
) -> None:
    """S3 Webhook Statistics and Monitoring / Webhook logs query: an event is in exactly one of two
    spans that touch.
    """
    middle = merchant.event(busy["short"])["received_at"]
    before = {one["id"] for one in items(merchant.service, "/events", until=middle, limit=500)}
    after = {one["id"] for one in items(merchant.service, "/events", since=middle, limit=500)}
    everything = {one["id"] for one in items(merchant.service, "/events", limit=500)}
    assert before | after == everything
    assert before & after == set()
    assert before
    assert after


def test_events_come_in_pages_with_all_that_is_known_of_each(
    merchant: Merchant, busy: dict[str, Sale]
) -> None:
    """S3 Webhook Statistics and Monitoring / Webhook logs query: every event once, the newest
    first, and in detail with its trail.
    """
    seen: list[Any] = []
    cursor: dict[str, str] = {}
    for _ in range(50):
        page = merchant.service.api("GET", "/events", limit=4, **cursor).json
        assert len(page["items"]) <= 4
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    ids = [one["id"] for one in seen]
    assert len(ids) == len(set(ids)) == len(items(merchant.service, "/events", limit=500))
    received = [one["received_at"] for one in seen]
    assert received == sorted(received, reverse=True)
    for one in seen:
        shown = merchant.shown(one["id"])
        assert shown["trail"]
        assert shown["trail"][0]["action"] == "event_received"
        assert (shown["error_message"] is None) == (shown["error_code"] is None)


def test_evidence_is_shown_to_operators(merchant: Merchant, busy: dict[str, Sale]) -> None:
    """S3 Webhook Statistics and Monitoring / Webhook logs query: of a refused delivery, too, an
    operator reads what was sent, from where and why it was refused.
    """
    found = items(merchant.service, "/events", status="FAILED_FINAL", source="creem", limit=500)
    forged = [one for one in found if one["error_code"] == "INVALID_SIGNATURE"]
    assert forged
    reply = merchant.service.api("GET", f"/events/{forged[0]['id']}")
    assert reply.json["remote_address"] == "127.0.0.1"
    assert reply.json["error_message"]
    assert busy["creem"].payment in reply.body.decode()


def test_health_tells_the_gateways_the_time_and_the_errors(
    merchant: Merchant, busy: dict[str, Sale]
) -> None:
    """S3 Webhook Statistics and Monitoring / Health check endpoint: without a key, and without
    anything that is private.
    """
    reply = merchant.service.request("GET", "/webhooks/health")
    assert (reply.http, reply.json["status"]) == (200, "ok")
    told = {one["name"]: one["provider"] for one in reply.json["sources"]}
    assert told == {"cn": "alipay", "creem": "creem", "payments": "tilda", "shop": "standard"}
    assert reply.json["response_time_ms"] >= 0
    before = reply.json["errors"]
    assert before["invalid_signature"] == 3
    assert before["failed_retryable"] == 1
    assert before["failed_final"] >= 1
    merchant.send(Sale("creem").told("another"))
    after = until(
        lambda: (
            now
            if (now := merchant.service.request("GET", "/webhooks/health").json["errors"]) != before
            else None
        )
    )
    assert after is not None
    assert after["invalid_signature"] == 4
    assert "whsec" not in reply.body.decode()
