"""S3 "Webhook Statistics and Monitoring": numbers and events, as operators ask for them."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support.servers import Shared, StartService
from tests.support.service import BASIC, SECRET, Service, paid
from tests.support.tools import is_problem, items

CONFIG = f"""{BASIC}
[sources.second]
provider = "tilda"
secrets = ["{SECRET}"]
"""
NUMBERS = {"received", "duplicates", "rejected", "waiting", "succeeded", "failed", "success_rate"}


def _stats(service: Service, **query: Any) -> Any:
    reply = service.api("GET", "/stats", **query)
    assert reply.http == 200, reply.body
    return reply.json


@pytest.fixture(scope="module")
def filled(shared: Shared) -> Shared:
    """Two processed, a duplicate, a conflict, a forgery, one that waits, one elsewhere."""
    service = shared.service
    service.user("buyer@example.com")
    for name in ("s-1", "s-2", "s-2"):
        assert service.deliver(paid(name)).http == 200
    assert service.deliver(paid("s-1", amount="1.00")).json["status"] == "conflict"
    assert service.deliver(paid("s-3"), secret="wrong").http == 401
    assert service.deliver(paid("s-4", email="later@example.com")).json["status"] == "accepted"
    assert service.deliver(paid("s-5", status="new"), source="second").json["status"] == "ignored"
    return shared


def test_webhook_statistics_query(filled: Shared) -> None:
    """OPS-1, S3 "Webhook statistics query": the last seven days, and every group of them."""
    told = _stats(filled.service)
    assert {name: told[name] for name in NUMBERS} == {
        "received": 7, "duplicates": 1, "rejected": 1, "waiting": 1, "succeeded": 3, "failed": 1,
        "success_rate": 3 / 4,
    }  # fmt: skip
    assert told["days"] == 7
    by_source = {one["source"]: one["received"] for one in told["by_source"]}
    assert by_source == {"payments": 6, "second": 1}
    (method,) = told["by_signature_method"]
    assert (method["signature_method"], method["received"]) == ("hmac-sha256", 7)
    today = datetime.now(UTC).date()
    days = [(today - timedelta(days=back)).isoformat() for back in range(6, -1, -1)]
    assert [one["day"] for one in told["by_day"]] == days
    assert sum(one["received"] for one in told["by_day"]) == 7
    for group in (told, *told["by_source"], *told["by_signature_method"], *told["by_day"]):
        assert group.keys() >= NUMBERS
        assert 0 <= group["success_rate"] <= 1


def test_a_flood_of_forgeries_is_counted_and_leaves_the_success_rate(
    start_service: StartService,
) -> None:
    """OPS-1: those that are kept as evidence, and those that are only counted."""
    service = start_service()
    service.user("buyer@example.com")
    assert service.deliver(paid("genuine")).json["status"] == "success"
    for number in range(70):
        assert service.deliver(paid(f"forged-{number}"), secret="wrong").http == 401
    deadline_s = time.monotonic() + 30
    while (told := _stats(service))["rejected"] < 70 and time.monotonic() < deadline_s:
        time.sleep(0.2)
    found = [told[one] for one in ("received", "rejected", "succeeded", "failed", "success_rate")]
    assert found == [71, 70, 1, 0, 1.0]


def test_statistics_of_one_source_and_of_other_days(filled: Shared) -> None:
    """OPS-1"""
    service = filled.service
    told = _stats(service, source="second", days=366)
    assert (told["received"], told["succeeded"], len(told["by_day"])) == (1, 1, 366)
    assert [one["source"] for one in told["by_source"]] == ["second"]
    nothing = _stats(service, source="nobody")
    assert (nothing["received"], nothing["success_rate"], nothing["by_source"]) == (0, 1.0, [])
    for days in ("0", "367", "many"):
        assert is_problem(service.api("GET", "/stats", days=days), 400)
    assert is_problem(service.api("GET", "/stats", key="po_nobody-has-this-key"), 401)


def test_what_waited_is_counted_as_a_success_once_it_is_one(start_service: StartService) -> None:
    """OPS-1 PAY-5: under the day of its arrival."""
    service = start_service()
    service.deliver(paid("w-1", email="later@example.com"))
    assert [_stats(service)[one] for one in ("received", "waiting", "succeeded")] == [1, 1, 0]
    service.user("later@example.com")
    assert [_stats(service)[one] for one in ("received", "waiting", "succeeded")] == [1, 0, 1]


def test_webhook_logs_query(filled: Shared) -> None:
    """OPS-2, S3 "Webhook logs query": by time, source, status, order, payment, test data."""
    service = filled.service

    def found(**query: Any) -> set[str | None]:
        return {one["payment"] for one in items(service, "/events", **query)}

    assert found(source="second") == {"s-5"}
    assert found(status="FAILED_RETRYABLE") == {"s-4"}
    assert found(error_code="PAYLOAD_CONFLICT") == {"s-1"}
    assert found(payment="s-2") == {"s-2"}
    assert found(order="none-such") == set()
    assert found(test="true") == set()
    assert found(test="false", source="second") == {"s-5"}
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert found(until=hour_ago) == set()
    assert found(since=hour_ago, source="second", status="IGNORED") == {"s-5"}


def test_orders_and_wallets_are_listed(filled: Shared) -> None:
    """OPS-2: the newest first, by what operators know of them."""
    service = filled.service
    user = service.user("owner@example.com")["id"]
    names = [f"listed-{uuid4().hex[:8]}" for _ in range(3)]
    whose: list[dict[str, str]] = [{"user_id": user}, {"email": "Owner@Example.com"}, {}]
    for name, more in zip(names, whose, strict=True):
        body = {"reference": name, "amount": "5.00", "currency": "RUB", **more}
        assert service.api("POST", "/orders", body).http == 201

    def found(**query: Any) -> list[str]:
        return [one["reference"] for one in items(service, "/orders", **query)]

    assert found(limit=3) == names[::-1]
    assert found(user_id=user) == names[:1]
    assert found(email="owner@example.com") == names[1:2]
    assert found(status="PAID", kind="order") == []
    page = service.api("GET", "/orders", limit=1).json
    assert found(limit=1, cursor=page["next_cursor"]) == [names[1]]
    made = [
        service.api("POST", "/wallets", {"owner": names[0], "currency": one}).json["id"]
        for one in ("EUR", "RUB")
    ]
    assert [one["id"] for one in items(service, "/wallets", owner=names[0])] == made
    assert items(service, "/wallets", owner="nobody") == []
