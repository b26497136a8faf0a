"""The audit log over HTTP and on the command line: who did what, when, why, and to what."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.shop import Shop
from tests.support.tools import is_problem, items, paidonce

CONFIG: Final = shops.CONFIG
FIELDS: Final = {
    "id", "at", "actor", "action", "reason", "success", "payment_id", "order", "user_id",
    "event_id", "details",
}  # fmt: skip
TRAIL_FIELDS: Final = {"at", "actor", "action", "reason", "success", "details"}


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def accepted(shop: Shop, **order: Any) -> tuple[str, str]:
    """An order that was paid with another sum, and the payment that was accepted for it."""
    reference, payment = shop.order(**order), shop.name("p")
    shop.paid(payment, reference, amount="980.00")
    assert shop.act(payment, "accept", {"reason": "a coupon"}).http == 200
    return reference, str(shop.payment(payment)["id"])


def test_an_action_is_found_by_everything_it_names(shop: Shop) -> None:
    """OPS-8 SEC-6: with its actor, its reason, the payment, and the order and user of it."""
    user = shop.service.user(f"{shop.name('user')}@example.com")
    reference, payment_id = accepted(shop, kind="booking", user_id=user["id"])
    (entry,) = items(shop.service, "/audit", payment=payment_id)
    assert entry.keys() == FIELDS
    assert (entry["actor"], entry["action"], entry["reason"], entry["success"]) == (
        "bootstrap",
        "payment_accepted",
        "a coupon",
        True,
    )
    assert (entry["payment_id"], entry["order"], entry["user_id"], entry["event_id"]) == (
        payment_id,
        reference,
        user["id"],
        None,
    )
    assert "reason" not in entry["details"]
    created = {"order_created", "payment_accepted"}
    assert {one["action"] for one in items(shop.service, "/audit", order=reference)} == created
    of_user = items(shop.service, "/audit", user=user["id"])
    assert {one["action"] for one in of_user} == created | {"user_created"}
    for query in (
        {"order": reference, "action": "payment_accepted"},
        {"user": user["id"], "actor": "bootstrap", "action": "payment_accepted"},
        {"action": "payment_accepted", "payment": payment_id, "since": entry["at"]},
    ):
        assert items(shop.service, "/audit", **query) == [entry], query
    for query in (
        {"payment": payment_id, "until": entry["at"]},
        {"payment": payment_id, "actor": "paidonce"},
        {"payment": payment_id, "action": "event_deduped"},
        {"order": reference, "user": str(uuid4())},
        {"event": str(uuid4())},
    ):
        assert items(shop.service, "/audit", **query) == [], query


def test_pages_of_the_audit_log_contain_every_entry_once(shop: Shop, shared: Shared) -> None:
    """OPS-8: the newest first, also those of one moment."""
    shared.rows(
        "INSERT INTO audit_log (at, actor, action, success) SELECT $1, 'walker', 'walked', true"
        " FROM generate_series(1, 7)",
        datetime(2020, 1, 1, tzinfo=UTC),
    )
    for query in ({"actor": "walker"}, {"action": "walked"}, {"until": "2020-01-02T00:00:00Z"}):
        found: list[int] = []
        cursor: dict[str, str] = {}
        for _ in range(4):
            page = shop.service.api("GET", "/audit", limit=2, **query, **cursor).json
            found += [one["id"] for one in page["items"]]
            cursor = {"cursor": page["next_cursor"]}
        assert page["next_cursor"] is None
        assert len(found) == 7
        assert found == sorted(found, reverse=True)
    everything = items(shop.service, "/audit", limit=500)
    times = [(datetime.fromisoformat(one["at"]), one["id"]) for one in everything]
    assert times == sorted(times, reverse=True)


def test_steps_of_an_event_are_in_the_audit_log(shop: Shop) -> None:
    """OPS-8 OBS-4: by the event, with ourselves as the actor."""
    reply = shop.paid(shop.name("p"), shop.name("missing"))
    event_id = reply.json["event_id"]
    found = items(shop.service, "/audit", event=event_id)
    assert {one["action"] for one in found} >= {"processing_attempt_failed", "retry_scheduled"}
    assert {one["actor"] for one in found} == {"paidonce"}
    (failed,) = items(
        shop.service, "/audit", event=event_id, action="processing_attempt_failed", actor="paidonce"
    )
    assert failed["success"] is False


def test_what_is_done_to_an_event_names_its_payment_and_order(shop: Shop, shared: Shared) -> None:
    """OPS-8 OPS-4 OPS-5: reprocessed, or discarded."""
    reference, payment = shop.order(), shop.name("p")
    event_id = shop.paid(payment, reference).json["event_id"]
    assert shop.service.api("POST", f"/events/{event_id}/reprocess").http == 200
    (entry,) = items(shop.service, "/audit", event=event_id, actor="bootstrap")
    assert (entry["action"], entry["payment_id"], entry["order"]) == (
        "event_reprocessed",
        shop.payment(payment)["id"],
        reference,
    )
    missing = shop.name("missing")
    dead = shop.paid(shop.name("p"), missing).json["event_id"]
    shared.rows(
        "UPDATE webhook_events SET status = 'DEAD_LETTER', processed_at = now() WHERE id = $1", dead
    )
    shared.rows("DELETE FROM event_queue WHERE event_id = $1", dead)
    body = {"reason": "sold in the shop"}
    assert shop.service.api("POST", f"/dead-letters/{dead}/discard", body).http == 200
    (entry,) = items(shop.service, "/audit", order=missing)
    assert (entry["action"], entry["event_id"], entry["reason"]) == (
        "dead_letter_discarded",
        dead,
        "sold in the shop",
    )


@pytest.mark.parametrize(
    "query",
    [
        {"payment": "p-1"},
        {"cursor": "nonsense"},
        {"cursor": "9" * 18 + "-1"},
        {"since": "yesterday"},
        {"limit": 0},
        {"orders": "x"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(shop: Shop, query: Any) -> None:
    """OPS-8 OPS-10"""
    assert is_problem(shop.service.api("GET", "/audit", **query), 400)


def test_a_payment_and_its_order_show_what_operators_did(shop: Shop) -> None:
    """OPS-8: the oldest first; lists do not show it."""
    first, second, payment = shop.order(), shop.order(), shop.name("p")
    shop.paid(payment, first, amount="980.00")
    shop.act(payment, "mark-for-refund", {"reason": "he wants it back"})
    shop.act(payment, "unmark-for-refund", {"reason": "he does not"})
    linked = shop.act(payment, "link", {"order": second, "reason": "a wrong number"})
    assert linked.http == 200, linked.body
    shop.act(payment, "accept", {"reason": "a coupon"})

    payment_id = shop.payment(payment)["id"]
    shown = shop.service.api("GET", f"/payments/{payment_id}").json["trail"]
    assert all(one.keys() == TRAIL_FIELDS for one in shown)
    assert [(one["action"], one["reason"]) for one in shown] == [
        ("marked_for_refund", "he wants it back"),
        ("unmarked_for_refund", "he does not"),
        ("payment_linked", "a wrong number"),
        ("payment_accepted", "a coupon"),
    ]
    assert {one["actor"] for one in shown} == {"bootstrap"}

    marks = ["marked_for_refund", "unmarked_for_refund"]
    of_first = shop.found(first)["trail"]
    assert [one["action"] for one in of_first] == ["order_created", *marks, "payment_unlinked"]
    assert of_first[-1]["details"] == {"unlinked_payment_id": payment_id}
    of_second = [one["action"] for one in shop.found(second)["trail"]]
    assert of_second == ["order_created", "payment_linked", "payment_accepted"]
    shop.service.api("POST", f"/orders/{first}/cancel", {"reason": "ordered twice"})
    closed = shop.found(first)["trail"][-1]
    assert (closed["action"], closed["reason"]) == ("order_closed", "ordered twice")
    for path in ("/payments", "/orders"):
        assert not any("trail" in one for one in items(shop.service, path))


def test_the_audit_log_has_no_addresses(shop: Shop, shared: Shared) -> None:
    """OPS-8 SEC-7: wherever somebody has written one."""
    address = f"{shop.name('jane')}@example.com"
    other = address.replace("jane", "john")
    reference = shop.order(f"order:{address}")
    shop.order(f"order:{other}")
    payment = shop.name("p")
    shop.paid(payment, reference, amount="980.00")
    shop.act(payment, "accept", {"reason": f"{address} has a coupon"})
    body = {"filter": {"order": address}, "reason": f"{address} is gone"}
    assert shop.service.api("POST", "/dead-letters/discard", body).http == 200
    shop.service.api("POST", "/replays", {"filter": {"payment": address}, "dry_run": True})
    written = shared.rows("SELECT to_jsonb(a)::text AS text FROM audit_log AS a")
    assert not any(address in one["text"] or other in one["text"] for one in written)

    actions = [one["action"] for one in shop.found(reference)["trail"]]
    assert actions == ["order_created", "payment_accepted"], "and not those of the other order"
    listed = items(shop.service, "/audit", order=reference)
    assert [one["action"] for one in listed] == actions[::-1]


def test_an_actor_with_an_address_is_masked_and_found(shop: Shop, shared: Shared) -> None:
    """OPS-8 SEC-7: the name of a key may be an address. Two that look alike stay apart."""
    unique = shop.name("x")
    names = [f"{local}-{unique}@example.com" for local in ("jane", "john")]
    for name in names:
        key = shop.service.api("POST", "/keys", {"name": name, "scope": "operate"}).json["key"]
        wallet = {"owner": shop.name(name[:4]), "currency": "USD"}
        created = shop.service.api("POST", "/wallets", wallet, key=key)
        assert created.http == 201, created.body
    written = shared.rows("SELECT to_jsonb(a)::text AS text FROM audit_log AS a")
    assert not any(name in one["text"] for one in written for name in names)

    found = [items(shop.service, "/audit", actor=name) for name in names]
    assert [[one["action"] for one in entries] for entries in found] == [["wallet_created"]] * 2
    shown = [entries[0]["actor"] for entries in found]
    assert all(one.startswith("j***@example.com#") for one in shown)
    assert [items(shop.service, "/audit", actor=one) for one in shown] == found


def test_the_command_lists_the_same(shop: Shop) -> None:
    """OPS-7 OPS-8"""
    reference, payment_id = accepted(shop)
    done = paidonce(shop.service.folder, "audit", "--order", reference, "--since", "1h", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        one | {"at": _same_time(one["at"])}
        for one in items(shop.service, "/audit", order=reference)
    ]
    table = paidonce(shop.service.folder, "audit", "--payment", payment_id, "--limit", "5")
    assert "payment_accepted" in table.stdout
    assert "a coupon" in table.stdout
    none = paidonce(shop.service.folder, "audit", "--actor", "nobody", "--json")
    assert json.loads(none.stdout) == []


def _same_time(text: str) -> str:
    return datetime.fromisoformat(text).isoformat()


def test_the_last_hour_has_no_entry_of_tomorrow(shop: Shop) -> None:
    """OPS-8"""
    accepted(shop)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert items(shop.service, "/audit", since=tomorrow) == []
    assert items(shop.service, "/audit", until=tomorrow, limit=1) != []
