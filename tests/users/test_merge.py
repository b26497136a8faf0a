"""Two users become one: nothing is lost, and nothing stays with the merged one."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from paidonce.core.wallets import Wallet, merge_wallets
from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.service import Service, paid
from tests.support.shop import Shop
from tests.support.tools import is_problem, items, period_end

CONFIG: Final = shops.CONFIG
WHY: Final = {"reason": "one person, two accounts"}


def merge(service: Service, gone: Any, into: Any) -> Any:
    return service.api("POST", f"/users/{gone['id']}/merge", {"into": into["id"], **WHY})


def test_everything_of_a_merged_user_goes_over(shared: Shared) -> None:
    """USR-2 OBS-4"""
    service = shared.service
    gone, into = service.user("gone@example.com"), service.user("into@example.com")
    for name, email in (("m-1", "gone@example.com"), ("m-2", "into@example.com")):
        assert service.deliver(paid(name, email=email)).json["status"] == "success"
    order = {"reference": "m-order", "amount": "10.00", "currency": "RUB", "user_id": gone["id"]}
    assert service.api("POST", "/orders", order).http == 201

    merged = merge(service, gone, into)
    assert merged.http == 200, merged.body
    assert merged.json["id"] == into["id"]
    assert (merged.json["email"], merged.json["former_emails"]) == (
        "into@example.com",
        ["gone@example.com"],
    )
    assert service.api("GET", f"/users/{gone['id']}").json == merged.json
    end = period_end(service, into["id"])
    assert end > datetime.now(UTC) + timedelta(days=59), "the union of both grants"
    assert period_end(service, gone["id"]) == end, "the old id leads to the remaining user"
    assert service.deliver(paid("m-3", email="Gone@example.com")).json["status"] == "success"
    assert period_end(service, into["id"]) == end + timedelta(days=30)
    owners = {
        one["user_id"]
        for email in ("gone@example.com", "into@example.com")
        for one in items(service, "/payments", email=email)
    }
    assert owners == {into["id"]}
    assert service.api("GET", "/orders/m-order").json["user_id"] == into["id"]
    again = service.api("POST", "/orders", order)
    assert (again.http, again.json["user_id"]) == (200, into["id"])
    later = service.api("POST", "/orders", order | {"reference": "m-later"})
    assert (later.http, later.json["user_id"]) == (201, into["id"])
    ordered = {one["reference"] for one in items(service, "/orders", user_id=gone["id"])}
    assert ordered == {"m-order", "m-later"}, "also in filters"
    entries = items(service, "/audit", user=into["id"])
    assert items(service, "/audit", user=gone["id"]) == entries
    audited = [one["action"] for one in entries]
    assert sorted(audited) == [
        "order_created",  # m-later
        "order_created",
        "user_created",
        "user_created",
        "user_merged",
    ]
    assert {one["user_id"] for one in entries} == {into["id"]}, "the entries went over, too"


def test_a_merge_can_be_repeated_and_makes_no_circle(shared: Shared) -> None:
    """USR-2"""
    service = shared.service
    a, b, c, d = (service.user(f"chain-{name}@example.com") for name in "abcd")
    assert merge(service, a, b).json["id"] == b["id"]
    assert merge(service, a, b).json["id"] == b["id"]
    assert is_problem(merge(service, b, a), 409)
    assert is_problem(merge(service, b, b), 409)
    assert is_problem(merge(service, a, a), 409)
    assert is_problem(merge(service, a, c), 409), "it is merged into another one"
    assert merge(service, b, c).json["id"] == c["id"]
    assert merge(service, a, b).json["id"] == c["id"]
    assert service.api("GET", f"/users/{a['id']}").json["id"] == c["id"]
    assert merge(service, d, a).json["id"] == c["id"], "an old id names the remaining user"
    unknown = {"id": "00000000-0000-7000-8000-000000000000"}
    assert is_problem(merge(service, unknown, c), 404)
    assert is_problem(merge(service, c, unknown), 404)
    path = f"/users/{c['id']}/merge"
    assert is_problem(service.api("POST", path, {"into": a["id"], "reason": ""}), 400)
    audited = shared.rows(
        "SELECT 1 FROM audit_log WHERE action = 'user_merged' AND user_id = $1",
        c["id"],
    )
    assert len(audited) == 3, "a repeat is no merge"


def test_a_payment_is_linked_by_the_id_of_a_merged_user(shared: Shared) -> None:
    """USR-2 PAY-5"""
    service = shared.service
    gone, into = service.user("l-gone@example.com"), service.user("l-into@example.com")
    merge(service, gone, into)
    service.deliver(paid("l-1", email=None))
    (payment,) = [
        one
        for one in items(service, "/payments", applied="false")
        if one["external_payment_id"] == "l-1"
    ]
    linked = service.api("POST", f"/payments/{payment['id']}/link", {"user_id": gone["id"]})
    assert linked.json["user_id"] == into["id"]
    assert linked.json["applied_at"] is not None


def top_up(service: Service, reference: str, user_id: str, amount: str) -> str:
    """Pay an order that tops up the wallet of a user; returns the wallet's id."""
    order = {
        "reference": reference,
        "kind": "wallet",
        "amount": amount,
        "currency": "RUB",
        "user_id": user_id,
    }
    made = service.api("POST", "/orders", order)
    assert made.http == 201, made.body
    told = Shop(service).paid(f"p-{reference}", reference, amount=amount)
    assert told.json["status"] == "success", told.body
    return str(made.json["wallet_id"])


def balance(service: Service, wallet_id: str) -> str:
    return str(service.api("GET", f"/wallets/{wallet_id}").json["balance"])


def test_money_moves_to_the_wallet_of_the_remaining_user(shared: Shared) -> None:
    """USR-2 WAL-2 FUL-4"""
    service = shared.service
    gone, into = service.user("w-gone@example.com"), service.user("w-into@example.com")
    old = top_up(service, "w-1", gone["id"], "100.00")
    new = top_up(service, "w-2", into["id"], "50.00")
    reserved = service.api(
        "POST", f"/wallets/{old}/reservations", {"payment_id": "w-open", "amount": "10.00"}
    )
    assert reserved.http == 201, reserved.body
    refused = merge(service, gone, into)
    assert is_problem(refused, 409)
    assert refused.json["code"] == "OPEN_RESERVATIONS"
    assert "release" in refused.json["detail"]
    assert service.api("POST", "/reservations/w-open/release").http == 200

    assert merge(service, gone, into).http == 200
    assert (balance(service, old), balance(service, new)) == ("150.00", "150.00")
    (wallet,) = items(service, "/wallets", owner=gone["id"])
    assert wallet["id"] == new
    assert service.api("GET", "/orders/w-1").json["wallet_id"] == new
    assert Shop(service).refunded("p-w-1", "100.00").http == 200
    assert balance(service, new) == "50.00", "a later refund debits the remaining wallet"
    later = top_up(service, "w-3", gone["id"], "7.00")
    assert (later, balance(service, new)) == (new, "57.00")
    taken = service.api(
        "POST", f"/wallets/{old}/reservations", {"payment_id": "w-later", "amount": "7.00"}
    )
    assert (taken.http, taken.json["wallet_id"]) == (201, new)
    sums = shared.rows(
        "SELECT account, sum(amount_minor)::bigint AS minor FROM ledger_entries"
        " WHERE account = ANY ($1) GROUP BY account",
        [f"wallet:{old}", f"wallet:{new}"],
    )
    assert {row["account"]: row["minor"] for row in sums} == {
        f"wallet:{old}": 0,
        f"wallet:{new}": 5_700,
    }


def test_a_wallet_without_a_counterpart_changes_its_owner(shared: Shared) -> None:
    """USR-2"""
    service = shared.service
    gone, into = service.user("o-gone@example.com"), service.user("o-into@example.com")
    wallet_id = top_up(service, "o-1", gone["id"], "30.00")
    assert merge(service, gone, into).http == 200
    (wallet,) = items(service, "/wallets", owner=into["id"])
    assert (wallet["id"], wallet["balance"]) == (wallet_id, "30.00")
    assert items(service, "/wallets", owner=gone["id"]) == [wallet]


@pytest.mark.parametrize(
    ("gone", "kept", "after"),
    [
        ((100, 0), (50, 0, 0), (150, 0)),
        ((0, 30), (50, 0, 0), (20, 0)),
        ((100, 0), (0, 0, 30), (70, 0)),
        ((0, 30), (50, 40, 0), (40, 20)),
        ((0, 0), (0, 0, 0), (0, 0)),
    ],
)
def test_wallets_merge_with_their_debt(
    gone: tuple[int, int], kept: tuple[int, int, int], after: tuple[int, int]
) -> None:
    """USR-2 WAL-2 FUL-4: debt is covered as far as money is available, and entries sum to zero."""
    one: Any = Wallet("g", "a", "RUB", gone[0], 0, gone[1])  # type: ignore[arg-type]
    other: Any = Wallet("k", "b", "RUB", *kept)  # type: ignore[arg-type]
    emptied, remaining, entries = merge_wallets(one, other)
    assert (remaining.balance_minor, remaining.receivable_minor) == after
    assert (emptied.balance_minor, emptied.receivable_minor) == (0, 0)
    assert sum(entry.amount_minor for entry in entries) == 0
    sums = {entry.account: entry.amount_minor for entry in entries}
    assert sums.get("wallet:g", 0) == -gone[0]
    assert sums.get("receivable:g", 0) == gone[1]
    assert sums.get("wallet:k", 0) == after[0] - kept[0]
    assert sums.get("receivable:k", 0) == kept[2] - after[1]


@pytest.mark.parametrize("canceled", ["gone", "into"])
def test_a_subscription_that_runs_is_not_canceled_by_a_merge(shared: Shared, canceled: str) -> None:
    """USR-2 FUL-9: the joined one runs on, and what waited for the canceled one is applied."""
    service, shop = shared.service, Shop(shared.service)
    users = {}
    for name in ("gone", "into"):
        email = f"{shop.name(name)}@example.com"
        users[name] = service.user(email)
        shop.paid(shop.name("p"), email=email)
    user, waiting = users[canceled], shop.name("p")
    (subscription,) = items(service, "/subscriptions", user_id=user["id"])
    said = {"at": "now", "reason": "not needed"}
    assert service.api("POST", f"/subscriptions/{subscription['id']}/cancel", said).http == 200
    shop.paid(waiting, email=user["email"])
    assert shop.payment(waiting)["review"] == "SUBSCRIPTION_CANCELED"
    assert merge(service, users["gone"], users["into"]).http == 200
    (joined,) = items(service, "/subscriptions", user_id=users["into"]["id"])
    assert (joined["status"], joined["canceled_at"]) == ("ACTIVE", None)
    assert shop.payment(waiting)["review"] is None
    end = period_end(service, users["into"]["id"])
    assert end > datetime.now(UTC) + timedelta(days=89), "three payments of 30 days"


def test_free_periods_of_both_users_are_joined(shared: Shared) -> None:
    """USR-2 FUL-11: also if nobody has paid."""
    service, shop = shared.service, Shop(shared.service)
    users = [service.user(f"{shop.name('user')}@example.com") for _ in range(2)]
    for user in users:
        shop.order(amount="0", kind="subscription", plan_id="monthly", user_id=user["id"])
    assert merge(service, *users).http == 200
    assert period_end(service, users[1]["id"]) > datetime.now(UTC) + timedelta(days=59)
