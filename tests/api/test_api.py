"""What operators are let do, and how lists, filters and errors look."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.support.servers import Shared, StartService
from tests.support.service import BASIC, Service, paid
from tests.support.tools import is_problem, items, paidonce, rows

CONFIG: Final = f"""{BASIC}
[sources.second]
provider = "tilda"
secrets = ["first-secret"]
"""

EVENT_FIELDS: Final = {
    "id", "source", "provider", "key", "type", "status", "error_code", "error_message", "payment",
    "order", "attempts", "next_attempt_at", "received_at", "processed_at", "test",
}  # fmt: skip
PAYMENT_FIELDS: Final = {
    "id", "source", "external_payment_id", "ids", "order", "user_id", "email", "status", "amount",
    "captured", "refunded", "currency", "applied_at", "review", "created_at",
}  # fmt: skip
NOBODY: Final = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def filled(shared: Shared) -> Shared:
    """Twelve events of two sources, in several states."""
    service = shared.service
    service.user("api@example.com")
    for number in range(5):
        service.deliver(paid(f"a-{number}", email="api@example.com"))
    for number in range(3):
        service.deliver(paid(f"b-{number}", email="api@example.com"), source="second")
    service.deliver(paid("a-0", event_id="a-0-failed", status="failed", email="api@example.com"))
    service.deliver(paid("a-wait", email="later@example.com"))
    service.deliver(paid("a-sum", email="api@example.com", amount="1.00"))
    service.deliver(paid("a-forged", email="api@example.com"), secret="wrong")
    return shared


def _walk(service: Service, path: str, **query: Any) -> Iterator[list[Any]]:
    cursor: dict[str, str] = {}
    for _ in range(100):
        reply = service.api("GET", path, **query, **cursor)
        assert reply.http == 200, reply.body
        assert reply.json.keys() >= {"items", "next_cursor"}
        yield reply.json["items"]
        if reply.json["next_cursor"] is None:
            return
        cursor = {"cursor": reply.json["next_cursor"]}
    raise AssertionError("the pages have no end")


def test_keys_are_needed_and_bounded_by_their_scope(shared: Shared) -> None:
    """SEC-6 REC-5"""
    service = shared.service
    for path in ("/events", "/payments", "/subscriptions?email=a", "/users?email=a", "/none"):
        for headers in (
            {},
            {"authorization": "Bearer po_wrong-but-long-enough-to-be-one"},
            {"authorization": "Bearer "},
            {"authorization": "Bearer \xff"},
            {"authorization": f"Basic {service.key}"},
            {"authorization": service.key},
            {"x-api-key": service.key},
        ):
            reply = service.request("GET", f"/api/v1{path}", None, headers)
            if path == "/none" and reply.http == 404:
                continue
            assert is_problem(reply, 401), (path, headers)
            assert reply.headers["www-authenticate"].startswith("Bearer")
    reply = service.request("GET", f"/api/v1/events?key={service.key}")
    assert is_problem(reply, 401)

    made = {}
    for scope in ("read", "operate"):
        done = paidonce(service.folder, "keys", "create", "--name", f"my {scope}", "--scope", scope)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"po_\S+\n", done.stdout), "the key and nothing else"
        made[scope] = done.stdout.strip()
    assert len(set(made.values())) == 2
    stored = rows(shared.database_url, "SELECT * FROM api_keys")
    assert not any(key in str(stored) for key in made.values()), "stored in the clear"

    assert service.api("GET", "/events", key=made["read"]).http == 200
    refused = service.api("POST", "/users", {"email": "r@example.com"}, key=made["read"])
    assert is_problem(refused, 403)
    assert items(service, "/users", email="r@example.com") == []
    service.deliver(paid("scope", email=None))
    (payment,) = [
        one for one in items(service, "/payments") if one["external_payment_id"] == "scope"
    ]
    link = f"/payments/{payment['id']}/link"
    body = {"email": "o@example.com"}
    assert is_problem(service.api("POST", link, body, key=made["read"]), 403)
    assert (
        service.api("POST", "/users", {"email": "o@example.com"}, key=made["operate"]).http == 201
    )
    assert service.api("POST", link, body, key=made["operate"]).http == 200
    audited = rows(
        shared.database_url, "SELECT actor FROM audit_log WHERE payment_id = $1", payment["id"]
    )
    assert any("my operate" in row["actor"] for row in audited), audited

    listed = paidonce(service.folder, "keys", "list")
    assert listed.returncode == 0, listed.stderr
    assert "my operate" in listed.stdout
    assert not any(key in listed.stdout for key in made.values())
    (row,) = rows(shared.database_url, "SELECT id FROM api_keys WHERE name = 'my operate'")
    revoked = paidonce(service.folder, "keys", "revoke", str(row["id"]))
    assert revoked.returncode == 0, revoked.stderr
    assert is_problem(service.api("GET", "/events", key=made["operate"]), 401)
    assert service.api("GET", "/events", key=made["read"]).http == 200
    unknown = paidonce(service.folder, "keys", "revoke", NOBODY)
    assert unknown.returncode != 0
    assert "Traceback" not in unknown.stderr


def test_a_path_with_a_slash_too_many_leads_nowhere(shared: Shared) -> None:
    """SEC-6: behind a proxy with TLS a redirect names http://, and the key would follow it."""
    service = shared.service
    for path in ("/api/v1/users/", "/webhooks/health/", "/readyz/", "/docs/"):
        reply = service.request("GET", path, None, {"host": "pay.example.com"})
        assert is_problem(reply, 404), path
        assert "location" not in reply.headers


def test_no_key_has_the_name_of_the_service_or_of_somebody_else(shared: Shared) -> None:
    """SEC-6 OBS-4: the audit log tells what a key did from what the service or a command did."""
    for name in ("paidonce", " Paidonce ", "host", "cli:root"):
        reply = shared.service.api("POST", "/keys", {"name": name, "scope": "admin"})
        assert is_problem(reply, 400)
        made = paidonce(shared.service.folder, "keys", "create", "--name", name, "--scope", "read")
        assert made.returncode != 0
        assert made.stdout == ""


def test_who_created_what_stands_in_the_audit_log_without_addresses(shared: Shared) -> None:
    """SEC-6 SEC-7: once, however often it is asked for."""
    service, address = shared.service, "audited@example.com"
    for _ in range(2):
        user = service.user(address)
        order = {"reference": "audited-1", "amount": "1.00", "currency": "RUB", "kind": "wallet"}
        service.api("POST", "/orders", {**order, "user_id": user["id"]})
        wallet = service.api("POST", "/wallets", {"owner": address, "currency": "RUB"}).json
    audited = rows(
        shared.database_url,
        "SELECT * FROM audit_log WHERE action ~ 'created' AND actor = 'bootstrap'",
    )
    assert address not in str(audited)
    found = [(row["action"], row["order_reference"], str(row["user_id"])) for row in audited]
    wallets = [
        json.loads(row["details"])["wallet_id"]
        for row in audited
        if row["action"] == "wallet_created"
    ]
    assert found.count(("user_created", None, user["id"])) == 1
    assert found.count(("order_created", "audited-1", user["id"])) == 1
    assert wallets.count(wallet["id"]) == 1
    assert len(set(wallets)) == len(wallets) > 1, "the order's own too"


def test_pages_walk_every_item_once(filled: Shared) -> None:
    """OPS-2"""
    service = filled.service
    for path, table in (("/events", "webhook_events"), ("/payments", "payments")):
        (total,) = rows(filled.database_url, f"SELECT count(*) AS n FROM {table}")
        for limit in (1, 3, 500):
            pages = list(_walk(service, path, limit=limit))
            found = [one["id"] for page in pages for one in page]
            assert len(found) == len(set(found)) == total["n"]
            assert all(len(page) <= limit for page in pages)
    pages = list(_walk(service, "/events", limit=2, source="second"))
    assert [one["source"] for page in pages for one in page] == ["second"] * 3


def test_events_have_their_fields_and_are_found_by_every_filter(filled: Shared) -> None:
    """OPS-2"""
    service = filled.service
    everything = items(service, "/events", limit=500)
    for one in everything:
        assert one.keys() >= EVENT_FIELDS
        assert datetime.fromisoformat(one["received_at"]).utcoffset() == timedelta(0)
        whole = service.api("GET", f"/events/{one['id']}").json
        assert whole.keys() >= EVENT_FIELDS | {"trail"}
        assert whole["trail"], "an event without a story"
        for step in whole["trail"]:
            assert step.keys() >= {"at", "action", "success", "details"}

    def ids(**query: Any) -> set[str]:
        return {one["id"] for one in items(service, "/events", limit=500, **query)}

    def those(**wanted: Any) -> set[str]:
        return {one["id"] for one in everything if all(one[k] == v for k, v in wanted.items())}

    assert len(ids(source="second")) == 3
    assert ids(source="second") == those(source="second")
    for status in ("PROCESSED", "IGNORED", "FAILED_RETRYABLE", "FAILED_FINAL", "DEAD_LETTER"):
        assert ids(status=status) == those(status=status), status
    assert ids(status="IGNORED")
    assert ids(payment="a-0") == those(payment="a-0")
    assert len(ids(payment="a-0")) == 2
    assert ids(order="no such order") == set()
    middle = sorted(one["received_at"] for one in everything)[6]
    later = {one["id"] for one in everything if one["received_at"] >= middle}
    assert ids(since=middle) == later
    assert ids(until=middle) in (
        {one["id"] for one in everything if one["received_at"] < middle},
        {one["id"] for one in everything if one["received_at"] <= middle},
    )
    assert ids(since=(datetime.now(UTC) + timedelta(hours=1)).isoformat()) == set()
    assert ids(source="payments", status="PROCESSED", payment="b-0") == set()
    assert ids(source="nobody") == set()


def test_payments_have_their_fields_and_are_found_by_every_filter(filled: Shared) -> None:
    """PAY-8"""
    service = filled.service
    everything = items(service, "/payments", limit=500)
    for one in everything:
        assert one.keys() >= PAYMENT_FIELDS
        assert re.fullmatch(r"\d+\.\d\d", one["captured"])
        assert service.api("GET", f"/payments/{one['id']}").json["id"] == one["id"]
    found = {one["external_payment_id"] for one in items(service, "/payments", source="second")}
    assert found == {"b-0", "b-1", "b-2"}
    unapplied = {one["external_payment_id"] for one in items(service, "/payments", applied="false")}
    assert unapplied == {"a-wait", "a-sum"} or unapplied == {"a-wait", "a-sum", "scope"}
    mine = items(service, "/payments", email="API@example.com", limit=500)
    assert len(mine) == 9
    assert items(service, "/payments", status="REFUNDED") == []
    assert len(items(service, "/payments", status="SUCCEEDED", limit=500)) == len(everything)
    assert items(service, "/payments", order="none") == []


@pytest.mark.parametrize(
    "path",
    [
        "/events?status=NOPE",
        "/events?since=yesterday",
        "/events?until=2026-13-01T00:00:00Z",
        "/events?limit=0",
        "/events?limit=-1",
        "/events?limit=many",
        "/events?limit=99999999999999999999",
        "/events?cursor=nonsense",
        "/events/not-an-id",
        "/payments?applied=perhaps",
        "/payments?status=NOPE",
        "/payments?cursor=%00",
        "/payments/not-an-id",
        "/users/not-an-id",
        "/subscriptions",
        "/subscriptions?user_id=1",
    ],
)
def test_bad_input_is_a_400_problem(shared: Shared, path: str) -> None:
    """REC-5"""
    reply = shared.service.api("GET", path)
    assert reply.http in (400, 404) if "not-an-id" in path else reply.http == 400, reply
    assert is_problem(reply, reply.http)


@pytest.mark.parametrize(
    "path",
    [
        "/events?payment=%00",
        "/events?order=%00",
        "/events?source=%00",
        "/events?source=%F0%9F%92%B8",
        "/events?payment=%FF",
        "/payments?email=%00",
        "/payments?order=%00",
        "/payments?source=%00",
        "/users?email=%00",
        "/subscriptions?email=%00",
        "/events?since=0001-01-01T00:00:00%2B23:59",
        "/events?until=9999-12-31T23:59:59-23:59",
        "/events?since=1969-12-31T00:00:00Z",
        "/events?since=2026-01-01",
        "/events?payment=" + "x" * 5000,
    ],
)
def test_odd_input_is_no_fault_of_the_server(shared: Shared, path: str) -> None:
    """REC-5"""
    reply = shared.service.api("GET", path)
    assert reply.http == 200 or is_problem(reply, 400)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"not json",
        b'{"email":"\xff"}',
        b'{"email":null}',
        b'{"email":5}',
        b'{"email":""}',
        b'{"email":"nobody"}',
        b'{"email":"a\\u0000@example.com"}',
        b'{"email":"\\ud800@example.com"}',
        b'{"email":"' + b"x" * 100_000 + b'@example.com"}',
        b"[" * 100_000,
    ],
)
def test_a_user_that_makes_no_sense_is_a_400_problem(shared: Shared, body: bytes) -> None:
    """REC-5"""
    headers = {
        "authorization": f"Bearer {shared.service.key}",
        "content-type": "application/json",
    }
    assert is_problem(shared.service.request("POST", "/api/v1/users", body, headers), 400)


def test_unknown_things_are_404_problems_and_wrong_methods_405(shared: Shared) -> None:
    """REC-5"""
    service = shared.service
    unknown = str(uuid4())
    for path in (f"/events/{unknown}", f"/payments/{unknown}", f"/users/{unknown}", "/nothing"):
        assert is_problem(service.api("GET", path), 404), path
    assert is_problem(service.api("GET", f"/events/{NOBODY}"), 404)
    assert is_problem(service.api("DELETE", "/events"), 405)
    assert is_problem(service.request("GET", "/nothing"), 404)


def test_users_are_found_and_repeats_return_them(shared: Shared) -> None:
    """PAY-5"""
    service = shared.service
    made = service.api("POST", "/users", {"email": "Found@example.com"})
    again = service.api("POST", "/users", {"email": "found@EXAMPLE.com"})
    assert (made.http, again.http) == (201, 200)
    assert made.json["id"] == again.json["id"]
    assert made.json["email"] == "Found@example.com"
    assert service.api("GET", f"/users/{made.json['id']}").json["id"] == made.json["id"]
    (found,) = items(service, "/users", email="FOUND@example.com")
    assert found["id"] == made.json["id"]
    assert items(service, "/users", email="nobody@example.com") == []
    assert items(service, "/subscriptions", email="nobody@example.com") == []


def test_the_api_describes_itself_without_foreign_hosts(shared: Shared) -> None:
    """USE-6 SEC-6: the page works without internet."""
    service = shared.service
    described = service.request("GET", "/openapi.json")
    assert described.http == 200
    assert described.json["openapi"].startswith("3.")
    paths = described.json["paths"]
    for path in ("/api/v1/users", "/api/v1/events", "/api/v1/payments", "/api/v1/subscriptions"):
        assert path in paths
    page = service.request("GET", "/docs")
    assert page.http == 200
    assert page.headers["content-type"].startswith("text/html")
    text = page.body.decode()
    loaded = re.findall(r"(?:src|href)=[\"']([^\"']+)", text)
    assert loaded
    for path in loaded:
        assert path.startswith("/"), path
        assert not path.startswith("//"), path
        assert service.request("GET", path).http == 200, path
    assert "http://" not in text
    assert "https://" not in text


def test_the_bootstrap_key_is_as_good_as_any_and_another_is_not(
    start_service: StartService,
) -> None:
    """SEC-6"""
    other = "po_another-key-that-is-long-enough"
    service = start_service(PAIDONCE_BOOTSTRAP_KEY=other)
    assert service.api("GET", "/events", key=other).http == 200
    assert is_problem(service.api("GET", "/events"), 401)
    assert service.api("POST", "/users", {"email": "b@example.com"}, key=other).http == 201
    told = "".join((service.folder / name).read_text() for name in ("stdout", "stderr"))
    assert other not in told
