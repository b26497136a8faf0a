"""What a person may ask for: a copy of their data, and that it is erased."""

import base64
from typing import Any, Final

import pytest
from uuid_utils.compat import uuid7

from paidonce.bootstrap.services import Services
from paidonce.core.actors import Actor, Scope
from paidonce.core.events import EventType
from paidonce.errors import ConflictError
from paidonce.events.model import EventFilter
from paidonce.processing.transactions import Processor
from paidonce.users import person
from tests.replay.test_replays import create_replay, run
from tests.support import shop as shops
from tests.support.batches import Stage
from tests.support.servers import Shared
from tests.support.service import Service, paid
from tests.support.shop import Shop
from tests.support.tools import is_problem, items, period_end

CONFIG: Final = shops.CONFIG
SOMEBODY: Final = Actor("somebody", Scope.ADMIN)
WHY: Final = {"reason": "the person asked for it"}


def erase(service: Service, user: Any) -> Any:
    return service.api("POST", f"/users/{user['id']}/erase", WHY)


def exported(service: Service, user: Any) -> Any:
    reply = service.api("GET", f"/users/{user['id']}/export")
    assert reply.http == 200, reply.body
    return reply.json


def everything_of(service: Service, name: str) -> Any:
    """A user with two addresses, a subscription, an order, a wallet, and a refused amount."""
    user = service.user(f"{name}-old@example.com")
    address = f"{name}@example.com"
    assert service.api("PATCH", f"/users/{user['id']}", {"email": address}).http == 200
    shop = Shop(service)
    told = paid(f"{name}-1", email=f"{name}-old@example.com", name=f"Maria {name}")
    assert service.deliver(told).json["status"] == "success"
    service.deliver(paid(f"{name}-2", email=address, amount="5.00"))
    order = {"kind": "subscription", "email": address, "plan_id": "monthly"}
    shop.order(f"{name}-order", **order)
    assert shop.paid(f"{name}-3", f"{name}-order", email=address).json["status"] == "success"
    shop.order(f"{name}-pending", **order)
    shop.order(f"{name}-wallet", kind="wallet", user_id=user["id"])
    assert shop.paid(f"{name}-4", f"{name}-wallet").json["status"] == "success"
    owner = {"owner": address, "currency": "RUB"}
    assert service.api("POST", "/wallets", owner).http == 201
    return user


def test_all_that_is_known_of_a_user_is_exported(shared: Shared) -> None:
    """USR-3 OBS-4"""
    service = shared.service
    user = everything_of(service, "export")
    other = service.user("not-this@example.com")
    service.deliver(paid("not-this", email="not-this@example.com"))
    found = exported(service, user)
    assert found["user"]["id"] == user["id"]
    assert [one["email"] for one in found["addresses"]] == [
        "export@example.com",
        "export-old@example.com",
    ]
    (subscription,) = found["subscriptions"]
    assert len(subscription["periods"]) == 2
    assert {one["reference"] for one in found["orders"]} == {
        "export-order",
        "export-pending",
        "export-wallet",
    }
    assert {one["ids"][0].split()[1] for one in found["payments"]} == {
        f"export-{number}" for number in (1, 2, 3, 4)
    }
    assert {one["captured"] for one in found["payments"]} == {"990.00", "5.00"}
    assert len(found["events"]) == 4
    bodies = [one["evidence"]["body"] for one in found["events"]]
    assert any("Maria export" in body for body in bodies), "the person has a right to it"
    assert sorted(one["balance"] for one in found["wallets"]) == ["0.00", "990.00"]
    assert {one["amount"] for one in found["ledger_entries"]} == {"990.00"}
    assert {"user_created", "email_changed"} <= {one["action"] for one in found["audit"]}
    assert found["truncated"] == []
    assert "not-this" not in str(found)
    assert other["id"] not in str(found)
    unknown = {"id": "00000000-0000-7000-8000-000000000000"}
    assert is_problem(service.api("GET", f"/users/{unknown['id']}/export"), 404)
    again = exported(service, user)
    assert "user_exported" in {one["action"] for one in again["audit"]}


def test_an_export_of_a_merged_user_is_that_of_the_remaining_one(shared: Shared) -> None:
    """USR-3 USR-2"""
    service = shared.service
    gone, into = service.user("e-gone@example.com"), service.user("e-into@example.com")
    service.deliver(paid("e-1", email="e-gone@example.com"))
    service.api("POST", f"/users/{gone['id']}/merge", {"into": into["id"], **WHY})
    found = exported(service, gone)
    assert found["user"]["id"] == into["id"]
    assert [one["id"] for one in found["merged_users"]] == [gone["id"]]
    assert len(found["payments"]) == len(found["events"]) == 1


def places_of(shared: Shared, text: str) -> set[str]:
    """The tables that contain this text anywhere, also in bodies."""
    tables = shared.rows(
        "SELECT relname AS name FROM pg_class WHERE relkind IN ('r', 'p')"
        " AND relnamespace = current_schema()::regnamespace AND NOT relispartition"
    )
    found = set()
    encoded = text.encode().hex()
    for table in tables:
        sql = (
            f"SELECT 1 FROM {table['name']} AS t WHERE t::text ILIKE $1 OR t::text ILIKE $2 LIMIT 1"
        )
        if shared.rows(sql, f"%{text}%", f"%{encoded}%"):
            found.add(table["name"])
    return found


def test_no_table_contains_an_erased_person(shared: Shared) -> None:
    """USR-4 OBS-4: neither the addresses nor the name, and the money is as it was."""
    service = shared.service
    user = everything_of(service, "erased")
    end = period_end(service, user["id"])
    money = "SELECT sum(captured_minor)::bigint AS paid, count(applied_at) AS applied FROM payments"
    before = shared.rows(money)
    for text in ("erased@example.com", "erased-old@example.com", "Maria erased"):
        assert "webhook_events" in places_of(shared, text)

    done = erase(service, user)
    assert done.http == 200, done.body
    assert (done.json["user"]["email"], done.json["user"]["former_emails"]) == (None, [])
    assert (done.json["events"], done.json["payments"], done.json["orders"]) == (4, 3, 2)
    for text in ("erased@example.com", "erased-old@example.com", "Maria erased"):
        assert places_of(shared, text) == set()
    assert period_end(service, user["id"]) == end
    assert shared.rows(money) == before
    found = exported(service, user)
    assert len(found["payments"]) == 4
    assert {one["evidence"]["body"] for one in found["events"]} == {""}
    assert all(one["erased_at"] for one in found["events"])
    audited = shared.rows("SELECT reason FROM audit_log WHERE action = 'user_erased'")
    assert [row["reason"] for row in audited] == [WHY["reason"]]

    again = erase(service, user)
    assert (again.http, again.json["events"]) == (200, 0)
    assert len(shared.rows("SELECT 1 FROM audit_log WHERE action = 'user_erased'")) == 1


def test_webhooks_after_an_erasure_count(shared: Shared) -> None:
    """USR-4 FUL-7 PAY-5: a refund takes back the period; a payment waits for a new user."""
    service, shop = shared.service, Shop(shared.service)
    user = service.user("after@example.com")
    told: dict[str, Any] = {"email": "after@example.com", "event_id": "after-paid"}
    assert shop.paid("after-1", **told).json["status"] == "success"
    end = period_end(service, user["id"])
    assert erase(service, user).http == 200
    assert shop.paid("after-1", **told).json["status"] == "duplicate"
    refund = shop.refunded("after-1", email="after@example.com")
    assert refund.json["status"] == "success"
    assert period_end(service, user["id"]) < end
    later = service.deliver(paid("after-2", email="after@example.com"))
    assert later.json["status"] == "accepted"
    (waiting,) = [
        one
        for one in items(service, "/payments", email="after@example.com")
        if one["external_payment_id"] == "after-2"
    ]
    assert (waiting["review"], waiting["user_id"]) == ("USER_MISSING", None)
    assert erase(service, user).json["events"] == 1, "a repeat erases what has arrived since"
    other = service.api("POST", "/users", {"email": "after@example.com"})
    assert other.http == 201
    assert other.json["id"] != user["id"]
    assert len(items(service, "/subscriptions", user_id=other.json["id"])) == 1


def test_an_erased_event_cannot_be_reprocessed(shared: Shared) -> None:
    """USR-4 OPS-4"""
    service = shared.service
    user = service.user("again@example.com")
    event_id = service.deliver(paid("again-1", email="again@example.com")).json["event_id"]
    assert erase(service, user).http == 200
    refused = service.api("POST", f"/events/{event_id}/reprocess")
    assert is_problem(refused, 409)
    assert refused.json["code"] == "ERASED"
    shown = service.api("GET", f"/events/{event_id}").json
    assert (shown["status"], shown["error_code"]) == ("PROCESSED", None)
    assert shown["erased_at"] is not None


def test_only_an_administrator_erases(shared: Shared) -> None:
    """USR-4 SEC-6"""
    service = shared.service
    user = service.user("scope@example.com")
    key = service.api("POST", "/keys", {"name": uuid7().hex, "scope": "operate"}).json["key"]
    path = f"/users/{user['id']}"
    assert is_problem(service.api("POST", f"{path}/erase", WHY, key=key), 403)
    assert service.api("GET", f"{path}/export", key=key).http == 200
    reader = service.api("POST", "/keys", {"name": uuid7().hex, "scope": "read"}).json["key"]
    assert is_problem(service.api("GET", f"{path}/export", key=reader), 403)
    assert erase(service, user).http == 200
    renamed = service.api("PATCH", path, {"email": "new-scope@example.com"})
    assert is_problem(renamed, 409)
    assert is_problem(
        service.api("POST", f"{path}/merge", {"into": service.user("x@example.com")["id"], **WHY}),
        409,
    )


async def test_a_replay_counts_erased_events_and_changes_nothing(
    shop: Stage, processor: Processor
) -> None:
    """USR-4 OPS-4"""
    services = Services(shop.database, shop.rules)
    for name in ("p", "other"):
        await shop.user(f"{name}@example.com")
        await processor.process([shop.paid(name)])
    owner = await shop.one("SELECT user_id FROM user_emails WHERE email_key = 'p@example.com'")
    await services.users.erase(owner["user_id"], SOMEBODY, "asked")
    before = await shop.rows("SELECT id, version, applied_at FROM payments ORDER BY id")
    for is_dry in (True, False):
        done = await run(shop, await create_replay(shop, EventFilter(source="plain"), dry=is_dry))
        assert done.counts == {"PROCESSED → erased": 1, "PROCESSED → PROCESSED": 1}
        assert done.applied.number == 0
    assert await shop.rows("SELECT id, version, applied_at FROM payments ORDER BY id") == before
    assert await shop.number("event_queue") == 0
    await services.wallet_commands.stop()


@pytest.mark.parametrize("status", ["FAILED_RETRYABLE", "VALIDATED", "DEAD_LETTER"])
async def test_events_that_are_not_finished_are_not_erased(
    shop: Stage, processor: Processor, status: str
) -> None:
    """USR-4: they may report money, and could not be read any more."""
    services = Services(shop.database, shop.rules)
    user_id = await shop.user("p@example.com")
    await processor.process([shop.paid("p")])
    refund = shop.event(EventType.REFUNDED, "p", amount_minor=100, currency="RUB")
    await processor.process([refund])
    is_dead = status == "DEAD_LETTER"
    await shop.rows(
        "UPDATE webhook_events SET status = $2, error_code = 'INTERNAL',"
        " processed_at = CASE WHEN $3 THEN now() END WHERE id = $1",
        refund.event_id,
        status,
        is_dead,
    )
    with pytest.raises(ConflictError, match="dead letters") as caught:
        await services.users.erase(user_id, SOMEBODY, "asked")
    assert caught.value.code == "EVENTS_UNFINISHED"
    assert (await services.users.get(user_id)).email == "p@example.com"
    assert await shop.rows("SELECT 1 FROM webhook_events WHERE erased_at IS NOT NULL") == []
    await services.wallet_commands.stop()


async def test_an_erasure_of_many_events_takes_several_transactions(
    shop: Stage, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """USR-4 USR-3: and an export says what it leaves out."""
    monkeypatch.setattr(person, "MAX_ERASED", 2)
    monkeypatch.setattr(person, "MAX_EVENTS", 3)
    services = Services(shop.database, shop.rules)
    user_id = await shop.user("p@example.com")
    names = [f"p-{number}" for number in range(5)]
    await processor.process([shop.paid(name, email="p@example.com") for name in names])
    exported = await services.users.export(user_id, SOMEBODY)
    assert (len(exported.events), exported.truncated) == (3, ["events"])
    erased = await services.users.erase(user_id, SOMEBODY, "asked")
    assert (erased.events, erased.payments) == (5, 5)
    left = await shop.rows("SELECT 1 FROM webhook_events WHERE raw_body <> ''")
    assert left == []
    await services.wallet_commands.stop()


def test_a_body_that_is_no_text_is_exported_in_base64(shared: Shared) -> None:
    """USR-3"""
    service = shared.service
    user = service.user("binary@example.com")
    service.deliver(paid("binary-1", email="binary@example.com"))
    shared.rows(
        "UPDATE webhook_events SET raw_body = '\\xff00'::bytea"
        " WHERE external_payment_id = 'binary-1'"
    )
    (found,) = exported(service, user)["events"]
    assert found["evidence"]["encoding"] == "base64"
    assert base64.b64decode(found["evidence"]["body"]) == b"\xff\x00"


async def test_a_user_with_too_many_payments_is_not_erased(
    shop: Stage, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """USR-4: all of the person is erased, or nothing."""
    monkeypatch.setattr(person, "MAX_ROWS", 1)
    services = Services(shop.database, shop.rules)
    user_id = await shop.user("p@example.com")
    await processor.process([shop.paid("p")])
    with pytest.raises(ConflictError, match="too many"):
        await services.users.erase(user_id, SOMEBODY, "asked")
    assert await shop.rows("SELECT 1 FROM webhook_events WHERE erased_at IS NOT NULL") == []
    await services.wallet_commands.stop()
