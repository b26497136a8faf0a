"""Wallets over HTTP: reservations, repeats, races, the ledger and what it says of the past."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import asyncpg
import pytest

from tests.scenarios.trouble import cut_connections
from tests.support import shop as flow_shop
from tests.support.servers import Shared, StartService
from tests.support.service import Reply
from tests.support.shop import Shop
from tests.support.tools import at_once, is_problem, items, until

CONFIG: Final = f"""{flow_shop.CONFIG}
[limits]
unverified = ""
"""
MANY: Final = 64


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def topped_up(shop: Shop, amount: str = "990.00") -> str:
    """A wallet that a customer has just filled."""
    wallet = shop.wallet()
    reference = shop.order(kind="wallet", wallet_id=wallet, amount=amount)
    assert shop.paid(shop.name("paid"), reference, amount=amount).json["status"] == "success"
    return wallet


def reserve(shop: Shop, wallet: str, payment: str, amount: str = "100.00", **said: Any) -> Reply:
    body = {"payment_id": payment, "amount": amount, **said}
    return shop.service.api("POST", f"/wallets/{wallet}/reservations", body)


def commit(shop: Shop, payment: str, amount: str | None = None) -> Reply:
    body = None if amount is None else {"amount": amount}
    return shop.service.api("POST", f"/reservations/{quote(payment)}/commit", body)


def release(shop: Shop, payment: str) -> Reply:
    return shop.service.api("POST", f"/reservations/{quote(payment)}/release")


def standing(shop: Shop, wallet: str) -> tuple[str, str, str]:
    found = shop.service.api("GET", f"/wallets/{wallet}").json
    return found["balance"], found["reserved"], found["available"]


def refused(reply: Reply, code: str) -> bool:
    return is_problem(reply, 409) and reply.json["code"] == code


def test_a_reservation_from_beginning_to_end(shop: Shop) -> None:
    """WAL-1 WAL-2: each step once, and its repeats."""
    wallet = topped_up(shop)
    payment = f"{shop.name('cart')}/1/commit"
    first = reserve(shop, wallet, payment)
    assert first.http == 201
    assert (
        first.json.items()
        >= {
            "payment_id": payment,
            "wallet_id": wallet,
            "amount": "100.00",
            "committed": "0.00",
            "status": "RESERVED",
        }.items()
    )
    assert standing(shop, wallet) == ("990.00", "100.00", "890.00")
    again = reserve(shop, wallet, payment, "100")
    assert (again.http, again.json) == (200, first.json)
    assert refused(reserve(shop, wallet, payment, "100.01"), "IDEMPOTENCY_CONFLICT")
    assert refused(reserve(shop, topped_up(shop), payment), "IDEMPOTENCY_CONFLICT")
    assert refused(commit(shop, payment, "100.01"), "AMOUNT_TOO_LARGE")
    taken = commit(shop, payment, "60.50")
    assert (taken.http, taken.json["status"], taken.json["committed"]) == (
        200,
        "COMMITTED",
        "60.50",
    )
    assert standing(shop, wallet) == ("929.50", "0.00", "929.50")
    assert commit(shop, payment).json == commit(shop, payment, "60.50").json == taken.json
    assert refused(commit(shop, payment, "60.51"), "ALREADY_COMMITTED")
    assert refused(release(shop, payment), "ALREADY_COMMITTED")
    assert shop.service.api("GET", f"/reservations/{quote(payment)}").json == taken.json
    assert standing(shop, wallet) == ("929.50", "0.00", "929.50")


def test_a_released_amount_is_available_again(shop: Shop) -> None:
    """WAL-1"""
    wallet, payment = topped_up(shop), shop.name("cart")
    reserve(shop, wallet, payment)
    released = release(shop, payment)
    assert (released.http, released.json["status"]) == (200, "RELEASED")
    assert release(shop, payment).json == released.json
    assert refused(commit(shop, payment), "ALREADY_RELEASED")
    assert standing(shop, wallet) == ("990.00", "0.00", "990.00")


def test_insufficient_funds_is_final_for_a_payment_id(shop: Shop) -> None:
    """WAL-2: also when the money has come since; ask under another payment id."""
    wallet, payment = topped_up(shop, "50.00"), shop.name("cart")
    assert refused(reserve(shop, wallet, payment), "INSUFFICIENT_FUNDS")
    shop.paid(shop.name("more"), shop.order(kind="wallet", wallet_id=wallet))
    assert refused(reserve(shop, wallet, payment), "INSUFFICIENT_FUNDS")
    assert refused(commit(shop, payment), "INSUFFICIENT_FUNDS")
    assert refused(release(shop, payment), "INSUFFICIENT_FUNDS")
    found = shop.service.api("GET", f"/reservations/{payment}").json
    assert found["status"] == "REJECTED"
    assert reserve(shop, wallet, shop.name("cart")).http == 201


def test_a_reservation_expires(shop: Shop, shared: Shared) -> None:
    """WAL-2: over, it cannot be committed; the janitor gives the money back."""
    wallet, payment = topped_up(shop), shop.name("cart")
    made = reserve(shop, wallet, payment, expires_in_s=1).json
    expires_at = datetime.fromisoformat(made["expires_at"])
    assert expires_at - datetime.fromisoformat(made["created_at"]) == timedelta(seconds=1)
    until(lambda: datetime.now(UTC) > expires_at)
    assert refused(commit(shop, payment), "EXPIRED")
    assert until(lambda: standing(shop, wallet)[1] == "0.00", timeout_s=30)
    assert shop.service.api("GET", f"/reservations/{payment}").json["status"] == "EXPIRED"
    assert refused(commit(shop, payment), "EXPIRED")
    assert refused(release(shop, payment), "EXPIRED")


@pytest.mark.parametrize(("asked_s", "lasts_s"), [(None, 604_800), (0, None), (86_400, 86_400)])
def test_the_expiry_of_a_reservation(shop: Shop, asked_s: int | None, lasts_s: int | None) -> None:
    """WAL-2: a week unless it says otherwise; 0 is for ever."""
    said: dict[str, Any] = {} if asked_s is None else {"expires_in_s": asked_s}
    made = reserve(shop, topped_up(shop), shop.name("cart"), **said).json
    if lasts_s is None:
        assert made["expires_at"] is None
        return
    lasts = [datetime.fromisoformat(made[name]) for name in ("expires_at", "created_at")]
    assert lasts[0] - lasts[1] == timedelta(seconds=lasts_s)


@pytest.mark.parametrize(
    "said",
    [
        {"amount": "0.00"},
        {"amount": "-1.00"},
        {"amount": "0.001"},
        {"amount": "x"},
        {"amount": "1e30"},
        {"amount": 5},
        {"expires_in_s": -1},
        {"expires_in_s": 10**9},
        {"expires_in_s": "60"},
        {"payment_id": ""},
        {"payment_id": "\x00"},
        {"payment_id": ".."},
        {"payment_id": "a\nb"},
        {"payment_id": "x" * 1_001},
        {"wallet": "other"},
    ],
    ids=str,
)
def test_invalid_requests_are_rejected(shop: Shop, said: dict[str, Any]) -> None:
    """WAL-1: amounts are exact, in the wallet's currency, and above zero."""
    wallet = topped_up(shop)
    body = {"payment_id": shop.name("cart"), "amount": "1.00", **said}
    assert is_problem(shop.service.api("POST", f"/wallets/{wallet}/reservations", body), 400)
    assert standing(shop, wallet)[1] == "0.00"


def test_missing_wallets_and_reservations_are_404(shop: Shop) -> None:
    """WAL-1"""
    missing, api = shop.name("cart"), shop.service.api
    nobody = "018f0000-0000-7000-8000-000000000000"
    assert is_problem(reserve(shop, nobody, missing), 404)
    assert is_problem(commit(shop, missing), 404)
    assert is_problem(commit(shop, missing, "1.00"), 404)
    assert is_problem(release(shop, missing), 404)
    for path in (f"/reservations/{missing}", f"/wallets/{nobody}", f"/wallets/{nobody}/entries"):
        assert is_problem(api("GET", path), 404)
    assert is_problem(api("GET", f"/wallets/{nobody}", at="2026-01-01T00:00:00Z"), 404)


def test_the_ledger_explains_every_change(shop: Shop) -> None:
    """WAL-2: the newest first, a page at a time."""
    wallet = topped_up(shop)
    names = [shop.name("cart") for _ in range(3)]
    for number, payment in enumerate(names):
        reserve(shop, wallet, payment)
        commit(shop, payment, f"{number + 1}.00")
    entries = items(shop.service, f"/wallets/{wallet}/entries")
    assert [one["amount"] for one in entries] == ["-3.00", "-2.00", "-1.00", "990.00"]
    assert [one["reservation"] for one in entries] == [*reversed(names), None]
    assert entries[-1]["payment"] is not None
    assert {one["account"] for one in entries} == {"balance"}
    paged, cursor = [], None
    for _ in range(5):
        asked: dict[str, Any] = {"limit": 1} if cursor is None else {"limit": 1, "cursor": cursor}
        page = shop.service.api("GET", f"/wallets/{wallet}/entries", **asked).json
        paged += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert paged == entries


def test_a_wallet_at_a_past_time(shop: Shop) -> None:
    """WAL-2: by the ledger, also what was owed; what was set aside then is not kept."""
    wallet, payment = shop.wallet(), shop.name("paid")
    shop.paid(payment, shop.order(kind="wallet", wallet_id=wallet))
    cart = shop.name("cart")
    reserve(shop, wallet, cart, "600.00")
    commit(shop, cart)
    shop.refunded(payment, "990.00")
    found = items(shop.service, f"/wallets/{wallet}/entries")
    times = sorted({one["at"] for one in found})

    def at(time: str) -> tuple[str, str]:
        said = shop.service.api("GET", f"/wallets/{wallet}", at=time).json
        assert (said["reserved"], said["available"]) == (None, None)
        return said["balance"], said["receivable"]

    assert [at(time) for time in times] == [
        ("990.00", "0.00"),
        ("390.00", "0.00"),
        ("0.00", "600.00"),
    ]
    assert at("2020-01-01T00:00:00Z") == ("0.00", "0.00")
    assert at("2100-01-01T00:00:00Z") == shop.balance(wallet) == ("0.00", "600.00")
    assert {one["account"] for one in found} == {"balance", "receivable"}
    assert is_problem(shop.service.api("GET", f"/wallets/{wallet}", at="yesterday"), 400)
    for beyond in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        assert is_problem(shop.service.api("GET", f"/wallets/{wallet}", at=beyond), 400)


def test_reservations_are_audited_with_the_actor(shop: Shop, shared: Shared) -> None:
    """SEC-6"""
    wallet, payment = topped_up(shop), shop.name("cart")
    reserve(shop, wallet, payment)
    commit(shop, payment)
    found = shared.rows(
        "SELECT actor, action FROM audit_log WHERE details ->> 'payment_id' = $1 ORDER BY id",
        payment,
    )
    assert [row["action"] for row in found] == ["wallet_reserved", "wallet_committed"]
    assert {row["actor"] for row in found} == {"bootstrap"}


def test_the_actor_of_a_reservation_is_audited_without_the_address(
    shop: Shop, shared: Shared
) -> None:
    """SEC-6 SEC-7: the name of a key may be an address."""
    name, payment = f"{shop.name('jane')}@example.com", shop.name("cart")
    key = shop.service.api("POST", "/keys", {"name": name, "scope": "operate"}).json["key"]
    path, body = f"/wallets/{topped_up(shop)}/reservations", {"payment_id": payment, "amount": "1"}
    assert shop.service.api("POST", path, body, key=key).http == 201
    (found,) = shared.rows(
        "SELECT actor FROM audit_log WHERE details ->> 'payment_id' = $1", payment
    )
    assert found["actor"].startswith("j***@example.com#")


def test_commands_are_counted(shop: Shop) -> None:
    """OBS-2"""
    labels = {"command": "reserve", "result": "INSUFFICIENT_FUNDS"}
    before = shop.service.metric("wallet_commands_total", **labels)
    reserve(shop, shop.wallet(), shop.name("cart"))
    assert shop.service.metric("wallet_commands_total", **labels) == before + 1


def test_64_reserves_at_once_over_http(shop: Shop) -> None:
    """WAL-2: of a wallet that can pay for ten."""
    wallet = topped_up(shop, "1000.00")
    calls = [partial(reserve, shop, wallet, shop.name("cart")) for _ in range(MANY)]
    codes = Counter(reply.json.get("code", reply.http) for reply in at_once(*calls))
    assert codes == {201: 10, "INSUFFICIENT_FUNDS": MANY - 10}
    assert standing(shop, wallet) == ("1000.00", "1000.00", "0.00")


def test_two_servers_on_one_database(start_service: StartService) -> None:
    """WAL-1 WAL-2: what one grants the other knows; one reservation has one end."""
    shops = [Shop(start_service(CONFIG)) for _ in range(2)]
    wallet = topped_up(shops[0], "1000.00")
    names = [shops[0].name("cart") for _ in range(MANY)]
    replies = at_once(
        *(partial(reserve, shops[number % 2], wallet, one) for number, one in enumerate(names))
    )
    codes = Counter(reply.json.get("code", reply.http) for reply in replies)
    assert codes == {201: 10, "INSUFFICIENT_FUNDS": MANY - 10}
    first, *others = [name for name, reply in zip(names, replies, strict=True) if reply.http == 201]
    commits = at_once(*(partial(commit, shops[number % 2], first) for number in range(MANY)))
    assert {reply.http for reply in commits} == {200}
    for number, name in enumerate(others):
        ends = [
            partial(commit, shops[number % 2], name),
            partial(release, shops[~number % 2], name),
        ]
        committed, released = at_once(*ends)
        assert {committed.http, released.http} == {200, 409}
        loser = committed if committed.http == 409 else released
        assert loser.json["code"] in ("ALREADY_COMMITTED", "ALREADY_RELEASED")
    spent = sum(
        float(shops[0].service.api("GET", f"/reservations/{name}").json["committed"])
        for name in [first, *others]
    )
    assert standing(shops[1], wallet) == (f"{1000 - spent:.2f}", "0.00", f"{1000 - spent:.2f}")


async def test_a_locked_wallet_is_503_and_not_insufficient_funds(
    shop: Shop, shared: Shared
) -> None:
    """WAL-2: 503, and the same call again is obeyed."""
    wallet, payment = topped_up(shop), shop.name("cart")
    holder = await asyncpg.connect(shared.database_url)
    async with holder.transaction():
        await holder.execute("SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE", UUID(wallet))
        reply = await asyncio.to_thread(reserve, shop, wallet, payment)
        assert is_problem(reply, 503)
        assert reply.json["code"] == "UNAVAILABLE"
        assert int(reply.headers["retry-after"]) > 0
    await holder.close()
    assert reserve(shop, wallet, payment).http == 201


def test_a_call_whose_answer_was_lost_can_be_repeated(shop: Shop, shared: Shared) -> None:
    """WAL-1 REL-1: every session with the database is cut, again and again, while two commit."""
    wallet = topped_up(shop)
    names = [shop.name("cart") for _ in range(20)]

    def insist(call: Callable[[], Reply]) -> Reply:
        return until(lambda: reply if (reply := call()).http != 503 else None) or call()

    def pay() -> set[int]:
        made = [insist(partial(reserve, shop, wallet, one, "10.00")) for one in names]
        return {
            reply.http for reply in [*made, *(insist(partial(commit, shop, one)) for one in names)]
        }

    def cut() -> set[int]:
        for _ in range(10):
            cut_connections(shared)
        return set()

    codes = at_once(pay, pay, cut)
    assert codes[0] | codes[1] <= {200, 201}
    assert standing(shop, wallet) == ("790.00", "0.00", "790.00")
    assert len(items(shop.service, f"/wallets/{wallet}/entries")) == 21


HOWTO: Final = Path(__file__).parents[2] / "docs" / "howto" / "wallet.md"


def test_the_calls_that_the_howto_shows_work(start_service: StartService) -> None:
    """USE-6: one after the other, as they stand there."""
    shop = Shop(start_service(CONFIG))
    text = HOWTO.read_text(encoding="utf-8")
    calls = re.findall(r"```http\n(\w+) /api/v1(\S+)\n(.*?)\n?```", text, re.DOTALL)
    assert len(calls) == 10
    wallet = ""
    for method, path, body in calls:
        said = json.loads(body.replace("{wallet}", wallet)) if body else None
        reply = shop.service.api(method, path.replace("{wallet}", wallet), said)
        assert reply.http in (200, 201), (path, reply.body)
        if path == "/wallets":
            wallet = reply.json["id"]
        if path == "/orders":
            shop.paid(shop.name("paid"), "top-up-1")
    assert standing(shop, wallet) == ("910.00", "0.00", "910.00")
