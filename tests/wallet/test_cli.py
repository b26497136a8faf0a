"""`paidonce wallet`."""

import json
from typing import Any, Final
from uuid import UUID

import pytest

from tests.support import shop as flow_shop
from tests.support.servers import Shared
from tests.support.shop import Shop
from tests.support.tools import paidonce

CONFIG: Final = flow_shop.CONFIG


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def asked(shop: Shop, *arguments: str) -> Any:
    done = paidonce(shop.service.folder, "wallet", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_wallet_from_the_command_line(shop: Shop, shared: Shared) -> None:
    """OPS-7 USE-2 WAL-1: all that HTTP can do, and the audit log names who typed."""
    owner = shop.name("owner")
    wallet = asked(shop, "create", "--owner", owner, "--currency", "RUB")
    shop.paid(shop.name("paid"), shop.order(kind="wallet", wallet_id=wallet["id"]))
    payment = shop.name("cart") + "/1"
    made = asked(shop, "reserve", wallet["id"], payment, "100.00", "--expires-in", "0")
    assert (made["status"], made["expires_at"]) == ("RESERVED", None)
    assert [one["available"] for one in asked(shop, "list", "--owner", owner)] == ["890.00"]
    assert asked(shop, "commit", payment, "--amount", "40.00")["committed"] == "40.00"
    other = shop.name("cart")
    asked(shop, "reserve", wallet["id"], other, "5.00")
    assert asked(shop, "release", other)["status"] == "RELEASED"
    assert asked(shop, "show", wallet["id"])["balance"] == "950.00"
    assert asked(shop, "show", wallet["id"], "--at", "2020-01-01")["balance"] == "0.00"
    entries = asked(shop, "entries", wallet["id"])
    assert [one["amount"] for one in entries] == ["-40.00", "990.00"]
    actors = shared.rows(
        "SELECT DISTINCT actor FROM audit_log WHERE details ->> 'wallet_id' = $1", wallet["id"]
    )
    assert [row["actor"].partition(":")[0] for row in actors] == ["cli"]


def test_rejected_commands_print_the_reason(shop: Shop) -> None:
    """USE-2"""
    wallet = asked(shop, "create", "--owner", shop.name("owner"), "--currency", "RUB")
    done = paidonce(shop.service.folder, "wallet", "reserve", wallet["id"], "poor", "1.00")
    assert (done.returncode, done.stdout) == (1, "")
    assert "insufficient funds" in done.stderr
    done = paidonce(shop.service.folder, "wallet", "commit", "nothing-of-this-name")
    assert (done.returncode, "there is no reservation" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        ("wallet", "commit", "\udcff"),
        ("wallet", "release", "\udcff"),
        ("wallet-payments", "show", "\udcff"),
        ("views", "show", "\udcff"),
        ("wallet", "create", "--currency", "RUB", "--owner", "\udcff"),
        ("wallet", "show", str(UUID(int=1)), "--at", "0001-01-01T00:00:00+14:00"),
        ("wallet", "show", str(UUID(int=1)), "--at", "9999999d"),
    ],
    ids=" ".join,
)
def test_invalid_text_is_an_error_without_a_traceback(shop: Shop, words: tuple[str, ...]) -> None:
    """USE-2: a terminal lets bytes through that are no text."""
    done = paidonce(shop.service.folder, *words)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2, done.stderr


def test_verify_exits_with_1_if_a_wallet_differs_from_the_ledger(
    shop: Shop, shared: Shared
) -> None:
    """WAL-2 USE-2"""
    done = paidonce(shop.service.folder, "wallet", "verify")
    assert (done.returncode, "sums to zero" in done.stdout) == (0, True), done.stderr
    wallet = asked(shop, "create", "--owner", shop.name("owner"), "--currency", "RUB")["id"]
    shared.rows("UPDATE wallets SET balance_minor = 5 WHERE id = $1", wallet)
    done = paidonce(shop.service.folder, "wallet", "verify")
    assert done.returncode == 1
    assert wallet in done.stdout
    assert "differ from the ledger" in done.stderr
    told = paidonce(shop.service.folder, "wallet", "verify", "--json")
    assert [one["kind"] for one in json.loads(told.stdout)] == ["balance"]
    shared.rows("UPDATE wallets SET balance_minor = 0 WHERE id = $1", wallet)
