"""Addresses of users: exactly one at a time, former ones, and changes while payments arrive."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from paidonce.errors import ConflictError
from paidonce.linking.linker import Linker
from paidonce.processing.transactions import Processor
from tests.support.batches import DAYS, Stage
from tests.support.servers import Shared
from tests.support.service import paid
from tests.support.tools import event, is_problem, items, period_end

NOT_ONE_ADDRESS = [
    "a@x.com, b@x.com",
    "a@x.com,b@x.com",
    "a@x.com;b@x.com",
    "Name <a@x.com>",
    "<a@x.com>",
    "mailto:a@x.com",
    "a @x.com",
    " a@x.com",
    "a@x.com\n",
    "a\tb@x.com",
    "a@x.com\u0007",
    "a@b@x.com",
    "",
]


@pytest.mark.parametrize("email", NOT_ONE_ADDRESS)
def test_a_user_has_exactly_one_address(shared: Shared, email: str) -> None:
    """USR-1: two addresses in one text would be an address that nobody pays under."""
    service = shared.service
    refused = service.api("POST", "/users", {"email": email})
    assert is_problem(refused, 400)
    assert "one address" in refused.json["detail"]
    user = service.user("exactly.one@example.com")
    assert is_problem(service.api("PATCH", f"/users/{user['id']}", {"email": email}), 400)


def test_payments_under_both_addresses_belong_to_a_user_who_changed_it(shared: Shared) -> None:
    """USR-1 PAY-5"""
    service = shared.service
    user = service.user("old@example.com")
    waiting = service.deliver(paid("new-first", email="new@example.com"))
    assert waiting.json["status"] == "accepted"

    changed = service.api("PATCH", f"/users/{user['id']}", {"email": "New@Example.com"})
    assert changed.http == 200, changed.body
    assert changed.json["id"] == user["id"]
    assert (changed.json["email"], changed.json["former_emails"]) == (
        "New@Example.com",
        ["old@example.com"],
    )
    assert event(service, waiting.json["event_id"])["status"] == "PROCESSED"
    for name, email in (("by-new", "new@example.com"), ("by-old", "OLD@example.com")):
        assert service.deliver(paid(name, email=email)).json["status"] == "success"
    end = period_end(service, user["id"])
    assert end > datetime.now(UTC) + timedelta(days=89)
    for email in ("old@example.com", "new@example.com"):
        (found,) = items(service, "/users", email=email)
        assert found["id"] == user["id"]
    again = service.api("PATCH", f"/users/{user['id']}", {"email": "new@example.com"})
    assert (again.http, again.json["former_emails"]) == (200, ["old@example.com"])
    audited = shared.rows(
        "SELECT actor, details::text FROM audit_log WHERE action = 'email_changed'"
    )
    assert audited
    assert not any("example.com" in row["details"] for row in audited)


def test_a_former_address_goes_to_whoever_has_it_next(shared: Shared) -> None:
    """USR-1"""
    service = shared.service
    first = service.user("shared@example.com")
    service.api("PATCH", f"/users/{first['id']}", {"email": "own@example.com"})
    second = service.api("POST", "/users", {"email": "Shared@example.com"})
    assert second.http == 201
    assert second.json["id"] != first["id"]
    service.deliver(paid("to-second", email="shared@example.com"))
    assert items(service, "/subscriptions", user_id=first["id"]) == []
    assert len(items(service, "/subscriptions", user_id=second.json["id"])) == 1

    service.api("PATCH", f"/users/{second.json['id']}", {"email": "second@example.com"})
    back = service.api("PATCH", f"/users/{first['id']}", {"email": "shared@example.com"})
    assert (back.http, back.json["former_emails"]) == (200, ["own@example.com"])
    assert service.api("GET", f"/users/{second.json['id']}").json["former_emails"] == []


def test_the_current_address_of_another_user_cannot_be_taken(shared: Shared) -> None:
    """USR-1"""
    service = shared.service
    one, other = service.user("one@example.com"), service.user("taken@example.com")
    refused = service.api("PATCH", f"/users/{one['id']}", {"email": "TAKEN@example.com"})
    assert is_problem(refused, 409)
    assert "merge" in refused.json["detail"]
    unknown = "00000000-0000-7000-8000-000000000000"
    assert is_problem(service.api("PATCH", f"/users/{unknown}", {"email": "x@example.com"}), 404)
    assert service.api("GET", f"/users/{other['id']}").json["email"] == "taken@example.com"
    assert service.api("GET", f"/users/{one['id']}").json["email"] == "one@example.com"


def test_users_are_listed_page_by_page(shared: Shared) -> None:
    """USR-1 OPS-7"""
    service = shared.service
    made = [service.user(f"page-{number}@example.com")["id"] for number in range(3)]
    first = service.api("GET", "/users", limit=2).json
    assert [one["id"] for one in first["items"]] == made[:0:-1]
    second = service.api("GET", "/users", limit=2, cursor=first["next_cursor"]).json
    assert second["items"][0]["id"] == made[0]


def test_a_subscription_is_shown_with_its_periods(shared: Shared) -> None:
    """OPS-7 FUL-7"""
    service = shared.service
    user = service.user("periods@example.com")
    for name in ("periods-1", "periods-2"):
        service.deliver(paid(name, email="periods@example.com"))
    (subscription,) = items(service, "/subscriptions", email="periods@example.com")
    shown = service.api("GET", f"/subscriptions/{subscription['id']}").json
    assert shown["user_id"] == user["id"]
    last, first = shown["periods"]
    assert last["end"] == shown["current_period_end"]
    assert last["start"] == first["end"]
    (payment,) = [
        one
        for one in items(service, "/payments", email="periods@example.com")
        if one["external_payment_id"] == "periods-1"
    ]
    assert first["payment_id"] == payment["id"]
    assert is_problem(service.api("GET", f"/subscriptions/{user['id']}"), 404)


async def test_a_change_of_address_and_payments_always_find_each_other(shop: Stage) -> None:
    """USR-1 PAY-5: whatever the interleaving."""
    linker = Linker(shop.database, shop.rules)
    processors = [Processor(shop.database, shop.rules) for _ in range(2)]
    users = [await shop.user(f"before-{number}@example.com") for number in range(30)]

    async def meet(number: int) -> None:
        email = f"p-{number}@example.com"
        pay = _settle(processors[number % 2], shop, f"p-{number}")
        both = [pay, linker.change_email(users[number], email, "somebody")]
        await asyncio.gather(*(both if number % 3 else both[::-1]))

    for first in range(0, 30, 2):
        await asyncio.gather(meet(first), meet(first + 1))
    await asyncio.gather(*(one.close() for one in processors))
    assert await shop.rows("SELECT id FROM payments WHERE applied_at IS NULL") == []
    owners = await shop.rows("SELECT user_id FROM payments ORDER BY email")
    assert {row["user_id"] for row in owners} == set(users)
    assert await shop.number("outbox") == 30


async def test_two_users_cannot_change_to_one_address(shop: Stage) -> None:
    """USR-1"""
    linker = Linker(shop.database, shop.rules)
    users = [await shop.user(f"u-{number}@example.com") for number in range(8)]
    done = await asyncio.gather(
        *(linker.change_email(one, "wanted@example.com", "somebody") for one in users),
        return_exceptions=True,
    )
    assert sum(isinstance(one, ConflictError) for one in done) == 7
    row = await shop.one("SELECT user_id FROM user_emails WHERE email_key = 'wanted@example.com'")
    assert row["user_id"] in users
    processor = Processor(shop.database, shop.rules)
    await processor.process([shop.paid("p", email="wanted@example.com")])
    await processor.close()
    subscription = await shop.one("SELECT user_id, current_period_end FROM subscriptions")
    assert subscription["user_id"] == row["user_id"]
    assert subscription["current_period_end"] < datetime.now(UTC) + DAYS + timedelta(minutes=5)


async def _settle(processor: Processor, shop: Stage, name: str) -> None:
    for _ in range(500):
        (result,) = (await processor.process([shop.paid(name)])).results
        if result.kind != "locked":
            return
    raise AssertionError("it is locked for ever")
