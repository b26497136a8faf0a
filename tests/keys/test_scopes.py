"""Keys and scopes on every call there is: what is new is covered by itself."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.support.servers import Shared
from tests.support.service import BASIC, Reply, Service, paid
from tests.support.tools import event, is_problem, items, paidonce

CONFIG: Final = f"""{BASIC}
[sources.shop]
provider = "standard"
secrets = ["whsec_c2VjcmV0IG9mIHRoZSBzaG9w"]
[limits]
api_keys = ""
"""
RANK: Final = {"read": 0, "operate": 1, "admin": 2}


@dataclass(frozen=True)
class Call:
    """A call of the description, and what it may be called with."""

    method: str
    path: str
    scope: str
    body: Any

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Known:
    """Things that are there, so that a call that is let through would find something to change."""

    service: Service
    ids: dict[str, str]
    keys: dict[str, str]

    def calls(self) -> Iterator[Call]:
        description = self.service.request("GET", "/openapi.json").json
        for path, methods in description["paths"].items():
            for method, call in methods.items():
                if path.startswith("/api/"):
                    yield Call(
                        method.upper(),
                        self._filled(path),
                        call["x-scope"],
                        self._body(description, call),
                    )

    def _filled(self, path: str) -> str:
        return re.sub(r"{(\w+)}", lambda name: self.ids.get(name[1], str(uuid4())), path)

    def _body(self, description: Any, call: Any) -> Any:
        if "requestBody" not in call:
            return None
        return self._example(
            description, call["requestBody"]["content"]["application/json"]["schema"]
        )

    def _example(self, description: Any, schema: Any, name: str = "") -> Any:
        """The smallest value of a schema, with things that are there where they fit."""
        if "$ref" in schema:
            schema = description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if name in self.ids:
            return self.ids[name]
        for one in schema.get("anyOf", []):
            return self._example(description, one, name)
        match schema.get("type"):
            case "object":
                wanted = schema.get("required") or list(schema.get("properties", {}))[:1]
                return {
                    one: self._example(description, schema["properties"][one], one)
                    for one in wanted
                }
            case "array":
                return []
            case "boolean":
                return True
            case "integer" | "number":
                return 1
            case _:
                return schema.get("enum", ["text"])[0]


@pytest.fixture(scope="module")
def known(shared: Shared) -> Known:
    service = shared.service
    keys = {scope: _new_key(service, scope) for scope in ("read", "operate", "revoked")}
    (row,) = shared.rows("SELECT id FROM api_keys WHERE name = 'revoked'")
    assert paidonce(service.folder, "keys", "revoke", str(row["id"])).returncode == 0
    user = service.user("scopes@example.com")
    told = service.deliver(paid("of-another-sum", email="scopes@example.com", amount="1.00")).json
    (payment,) = items(service, "/payments")
    order = {"reference": "scoped", "amount": "5.00", "currency": "EUR"}
    service.api("POST", "/orders", order)
    wallet = service.api("POST", "/wallets", {"owner": "o", "currency": "EUR"}).json
    ids = {
        "user_id": user["id"],
        "event_id": told["event_id"],
        "payment_id": payment["id"],
        "reference": "scoped",
        "wallet_id": wallet["id"],
        "key_id": str(row["id"]),
        "address": "192.0.2.1",
        "email": "scopes@example.com",
        "amount": "5.00",
        "currency": "EUR",
    }
    return Known(service, ids, keys)


def _new_key(service: Service, name: str) -> str:
    scope = name if name in RANK else "admin"
    made = paidonce(service.folder, "keys", "create", "--name", name, "--scope", scope)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def ask(known: Known, call: Call, key: str | None) -> Reply:
    if key is not None:
        path = call.path.removeprefix("/api/v1")
        return known.service.api(call.method, path, call.body, key=key)
    return known.service.request(
        call.method, call.path, b"{}", {"content-type": "application/json"}
    )


def everything(shared: Shared) -> dict[str, list[str]]:
    """All rows of all tables, without when a key was last used and a consumer last seen.

    Nor what is counted of events: the janitor moves that from one table to another by itself.
    """
    tables = shared.rows(
        "SELECT table_name AS name FROM information_schema.tables"
        " WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'"
        " AND table_name NOT IN ('event_counts', 'event_count_deltas')"
    )
    return {
        table["name"]: [
            row["said"]
            for row in shared.rows(
                "SELECT (to_jsonb(t) - 'last_used_at' - 'seen_at')::text AS said"
                f" FROM {table['name']} AS t ORDER BY 1"
            )
        ]
        for table in tables
    }


def test_every_call_needs_a_valid_key(known: Known) -> None:
    """SEC-6: none, a wrong one, one that was revoked."""
    calls = list(known.calls())
    assert len(calls) >= 17
    for call in calls:
        for key in (None, "po_wrong-but-long-enough-to-be-one", known.keys["revoked"], "x"):
            assert is_problem(ask(known, call, key), 401), call


def test_who_may_read_changes_nothing(known: Known, shared: Shared) -> None:
    """SEC-6: every call that is no GET is refused, and every one that needs more."""
    calls = [one for one in known.calls() if one.method != "GET" or one.scope != "read"]
    assert all(RANK[one.scope] >= RANK["operate"] for one in calls), calls
    before = everything(shared)
    assert before["payments"]
    for call in calls:
        assert is_problem(ask(known, call, known.keys["read"]), 403), call
    assert everything(shared) == before


def test_who_may_operate_does_not_administer(known: Known, shared: Shared) -> None:
    """SEC-6"""
    before = everything(shared)
    for call in known.calls():
        if call.scope == "admin":
            assert is_problem(ask(known, call, known.keys["operate"]), 403), call
    assert everything(shared) == before


def test_who_may_read_can_read(known: Known) -> None:
    """SEC-6: so that it is the scope that was refused above, and not the call."""
    for call in known.calls():
        if call.scope == "read":
            reply = ask(known, call, known.keys["read"])
            assert reply.http in (200, 400, 404), (call, reply)
    path = f"/events/{known.ids['event_id']}"
    assert known.service.api("GET", path, key=known.keys["read"]).json["evidence"] is None
    assert event(known.service, known.ids["event_id"])["evidence"] is not None


def test_what_is_refused_to_readers_is_done_for_operators(known: Known, shared: Shared) -> None:
    """SEC-6: the same calls change something when they are let through."""
    before = everything(shared)
    calls = [one for one in known.calls() if one.method != "GET" and one.scope == "operate"]
    for call in calls:
        assert ask(known, call, known.keys["operate"]).http < 500
    assert everything(shared) != before
