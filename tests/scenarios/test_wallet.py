"""S1's lines about the wallet, each over a real server and with a look into its tables."""

from collections import Counter
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.scenarios.gateways import CONFIG as FOUR_GATEWAYS
from tests.scenarios.merchant import Merchant
from tests.support.servers import Shared
from tests.support.service import Reply
from tests.support.tools import at_once, is_problem

CONFIG: Final = FOUR_GATEWAYS
ROW: Final = "SELECT *, xmin::text AS written_by FROM reservations WHERE payment_id = $1"
ENTRIES: Final = "SELECT * FROM ledger_entries WHERE reservation = $1"
WALLET: Final = "SELECT *, xmin::text AS written_by FROM wallets WHERE id = $1"


def filled(merchant: Merchant) -> str:
    """A wallet with 100.00 in it, which a gateway has told of."""
    wallet = merchant.wallet("USD")
    sale = merchant.sale("shop", "100.00", currency="USD", kind="wallet", wallet_id=wallet)
    assert merchant.send(sale.told()).http == 200
    assert merchant.balance(wallet) == 100
    return wallet


def reserve(merchant: Merchant, wallet: str, payment: str, amount: str = "30.00") -> Reply:
    body = {"payment_id": payment, "amount": amount}
    return merchant.service.api("POST", f"/wallets/{wallet}/reservations", body)


def end(merchant: Merchant, payment: str, verb: str) -> Reply:
    return merchant.service.api("POST", f"/reservations/{payment}/{verb}")


def reserved(merchant: Merchant) -> tuple[str, str]:
    """A wallet, and a payment for which something is set aside in it."""
    wallet, payment = filled(merchant), uuid4().hex
    assert reserve(merchant, wallet, payment).http == 201
    return wallet, payment


def state(shared: Shared, wallet: str, payment: str) -> tuple[Any, ...]:
    """Every row that a payment can touch, with who wrote it."""
    rows = shared.rows(WALLET, UUID(wallet)), shared.rows(ROW, payment)
    return (*rows, shared.rows(ENTRIES, payment))


def test_two_rows_of_one_payment_cannot_be_written(merchant: Merchant, shared: Shared) -> None:
    """S1 Wallet Service, Reserve / payment_id is unique in reservations: by a constraint, not by
    a look before.
    """
    _, payment = reserved(merchant)
    columns = "payment_id, wallet_id, request_hash, amount_minor, status, created_at"
    with pytest.raises(asyncpg.UniqueViolationError):
        shared.rows(
            f"INSERT INTO reservations ({columns}) SELECT {columns} FROM reservations"
            " WHERE payment_id = $1",
            payment,
        )


def test_another_wallet_or_amount_under_one_payment_id(merchant: Merchant, shared: Shared) -> None:
    """S1 Wallet Service, Reserve / a second one under the same payment_id is refused by the
    database: and whoever wants something else is told so.
    """
    wallet, payment = reserved(merchant)
    before = state(shared, wallet, payment)
    for other in (reserve(merchant, wallet, payment, "30.01"),
                  reserve(merchant, filled(merchant), payment)):  # fmt: skip
        assert is_problem(other, 409)
        assert other.json["code"] == "IDEMPOTENCY_CONFLICT"
    assert state(shared, wallet, payment) == before


def test_a_repeated_reserve_gets_what_is_there(merchant: Merchant, shared: Shared) -> None:
    """S1 Wallet Service, Reserve / the reservation that is there is returned: the same again, also
    when it has ended since.
    """
    wallet, payment = filled(merchant), uuid4().hex
    first, second = reserve(merchant, wallet, payment), reserve(merchant, wallet, payment)
    assert (first.http, second.http, second.json) == (201, 200, first.json)
    committed = end(merchant, payment, "commit").json
    assert reserve(merchant, wallet, payment).json == committed


def test_many_reserves_of_one_payment_at_once(merchant: Merchant, shared: Shared) -> None:
    """S1 Wallet Service, Reserve / one reservation per payment: whoever is first."""
    wallet, payment = filled(merchant), uuid4().hex
    replies = at_once(*[partial(reserve, merchant, wallet, payment)] * 32)
    assert Counter(reply.http for reply in replies) == {201: 1, 200: 31}
    assert len({reply.body for reply in replies}) == 1
    assert len(shared.rows(ROW, payment)) == 1
    found = merchant.service.api("GET", f"/wallets/{wallet}").json
    assert (found["balance"], found["reserved"]) == ("100.00", "30.00")


@pytest.mark.parametrize("status", ["RELEASED", "EXPIRED", "REJECTED"])
def test_a_commit_of_what_is_not_reserved(merchant: Merchant, shared: Shared, status: str) -> None:
    """S1 Wallet Service, Commit / only what is RESERVED is updated: all else stays as it is, and
    the answer says why.
    """
    wallet, payment = ended(merchant, shared, status)
    before = state(shared, wallet, payment)
    reply = end(merchant, payment, "commit")
    assert is_problem(reply, 409)
    code = {"RELEASED": "ALREADY_RELEASED", "REJECTED": "INSUFFICIENT_FUNDS"}.get(status, status)
    assert reply.json["code"] == code
    assert state(shared, wallet, payment) == before


def test_a_repeated_commit(merchant: Merchant, shared: Shared) -> None:
    """S1 Wallet Service, Commit / a repeated commit updates no row: at once or later, and each is
    answered as the first one.
    """
    wallet, payment = reserved(merchant)
    replies = at_once(*[partial(end, merchant, payment, "commit")] * 16)
    before = state(shared, wallet, payment)
    assert {reply.http for reply in replies} == {200}
    assert end(merchant, payment, "commit").body == replies[0].body
    assert state(shared, wallet, payment) == before
    assert len(shared.rows(ENTRIES, payment)) == 2


def test_the_balance_moves_with_the_commit_and_only_then(
    merchant: Merchant, shared: Shared
) -> None:
    """S1 Wallet Service, Commit / the balance changes only with a successful update: not by a
    reserve, a release, or a commit that is refused.
    """
    wallet, payment = reserved(merchant)
    assert merchant.balance(wallet) == 100
    assert end(merchant, payment, "commit").http == 200
    assert merchant.balance(wallet) == 70
    assert end(merchant, payment, "release").http == 409
    assert merchant.balance(wallet) == 70
    _, released = wallet, uuid4().hex
    reserve(merchant, wallet, released)
    end(merchant, released, "release")
    assert end(merchant, released, "commit").http == 409
    assert merchant.balance(wallet) == 70
    moved = shared.rows(
        "SELECT amount_minor FROM ledger_entries WHERE account = $1", f"wallet:{wallet}"
    )
    assert sum(row["amount_minor"] for row in moved) == Decimal(70) * 100


@pytest.mark.parametrize("status", ["COMMITTED", "EXPIRED", "REJECTED"])
def test_a_release_of_what_is_not_reserved(merchant: Merchant, shared: Shared, status: str) -> None:
    """S1 Wallet Service, Release / only what is RESERVED is updated: as for commit."""
    wallet, payment = ended(merchant, shared, status)
    before = state(shared, wallet, payment)
    reply = end(merchant, payment, "release")
    assert is_problem(reply, 409)
    code = {"COMMITTED": "ALREADY_COMMITTED", "REJECTED": "INSUFFICIENT_FUNDS"}.get(status, status)
    assert reply.json["code"] == code
    assert state(shared, wallet, payment) == before


def test_a_repeated_release(merchant: Merchant, shared: Shared) -> None:
    """S1 Wallet Service, Release / a repeated release does nothing: what is free is freed once."""
    wallet, payment = reserved(merchant)
    reserve(merchant, wallet, uuid4().hex, "50.00")
    replies = at_once(*[partial(end, merchant, payment, "release")] * 16)
    assert {reply.http for reply in replies} == {200}
    before = state(shared, wallet, payment)
    assert end(merchant, payment, "release").body == replies[0].body
    assert state(shared, wallet, payment) == before
    assert merchant.service.api("GET", f"/wallets/{wallet}").json["reserved"] == "50.00"


def ended(merchant: Merchant, shared: Shared, status: str) -> tuple[str, str]:
    """A wallet, and a reservation of it that has come to this end."""
    if status == "REJECTED":
        wallet, payment = filled(merchant), uuid4().hex
        assert reserve(merchant, wallet, payment, "100.01").http == 409
        return wallet, payment
    wallet, payment = reserved(merchant)
    if status == "EXPIRED":
        shared.rows("UPDATE reservations SET status = 'EXPIRED', ended_at = now()"
                    " WHERE payment_id = $1", payment)  # fmt: skip
        shared.rows("UPDATE wallets SET reserved_minor = 0 WHERE id = $1", UUID(wallet))
        return wallet, payment
    verb = {"COMMITTED": "commit", "RELEASED": "release"}[status]
    assert end(merchant, payment, verb).http == 200
    return wallet, payment
