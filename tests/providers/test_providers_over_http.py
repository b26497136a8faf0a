"""Each gateway from an order to its refund, over a real server, and with each byte changed.

PortOne, which needs lookups, is in `test_portone_over_http.py`.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from paidonce.providers.contract import Delivery
from tests.providers.cases.tilda import CASES as TILDA_CASES
from tests.providers.conformance import Case, ExpectedEvent
from tests.support import gateways
from tests.support.gateways import GATEWAYS, SECRETS, Gateway, Told, forgeries, kept, post
from tests.support.servers import Shared
from tests.support.service import SECRET, Reply
from tests.support.shop import Shop, open_line
from tests.support.tools import items, period_end

CONFIG: Final = gateways.CONFIG
COUNTS: Final = """
SELECT (SELECT count(*) FROM event_keys) AS keys, (SELECT count(*) FROM nonces) AS nonces,
       (SELECT count(*) FROM payments) AS payments, (SELECT count(*) FROM outbox) AS outbox,
       (SELECT count(*) FROM ledger_entries) AS entries, (SELECT count(*) FROM event_queue) AS due
"""
every_gateway = pytest.mark.parametrize("gateway", GATEWAYS, ids=str)
every_tilda = pytest.mark.parametrize("case", TILDA_CASES, ids=str)


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


class Bought:
    """An order at one gateway, and what it brings."""

    def __init__(self, shop: Shop, gateway: Gateway, kind: str) -> None:
        self._shop = shop
        self._kind = kind
        self._wallet = shop.wallet(gateway.currency)
        more = {"wallet_id": self._wallet} if kind == "wallet" else {}
        self.reference = shop.order(kind=kind, currency=gateway.currency, **more)

    @property
    def effect(self) -> Any:
        """What is there of it: a booking's status, or a wallet's balance and receivable."""
        if self._kind == "wallet":
            return self._shop.balance(self._wallet)
        return self._shop.booking(self.reference)["status"]


GRANTED: Final = {"booking": "CONFIRMED", "wallet": ("990.00", "0.00")}
TAKEN_BACK: Final = {"booking": "CANCELED", "wallet": ("0.00", "0.00")}


@pytest.mark.parametrize("kind", GRANTED)
@every_gateway
def test_an_order_is_paid_once_and_refunded_once(shop: Shop, gateway: Gateway, kind: str) -> None:
    """PRV-4 PRV-5 PRV-6 REC-5 REC-7 PAY-3 FUL-2 FUL-3 FUL-4"""
    bought = Bought(shop, gateway, kind)
    paid = Told(shop.name("p"), bought.reference)
    deliver_once(shop, gateway, paid)
    _, _, payments, events = kept(shop, gateway.source, bought.reference)
    assert (len(payments), len(events)) == (1, 1)
    assert (shop.status(bought.reference), bought.effect) == ("PAID", GRANTED[kind])
    refunded = Told(paid.payment, bought.reference, "refunded")
    if not gateway.tells_refunds:
        reply = post(shop, gateway.source, gateway.told(refunded))
        gateway.answer(reply, bought.reference, "ignored")
        assert (shop.status(bought.reference), bought.effect) == ("PAID", GRANTED[kind])
        return
    deliver_once(shop, gateway, refunded)
    assert (shop.status(bought.reference), bought.effect) == ("REFUNDED", TAKEN_BACK[kind])
    seen = kept(shop, gateway.source, bought.reference)
    assert post(shop, gateway.source, gateway.told(paid)).http == 200
    assert kept(shop, gateway.source, bought.reference) == seen


def deliver_once(shop: Shop, gateway: Gateway, told: Told) -> None:
    """Deliver it, and again: as it was, signed later, and signed with the other secret."""
    assert told.order is not None
    delivery = gateway.told(told, late_s=20)
    event_id = gateway.answer(post(shop, gateway.source, delivery), told.order, "success")
    seen = kept(shop, gateway.source, told.order)
    for again in (delivery, gateway.told(told), gateway.told(told, SECRETS[1], late_s=10)):
        reply = post(shop, gateway.source, again)
        assert gateway.answer(reply, told.order, "duplicate") == event_id
        assert kept(shop, gateway.source, told.order) == seen


@every_gateway
def test_a_delivery_with_a_changed_byte_is_rejected(
    shared: Shared, shop: Shop, gateway: Gateway
) -> None:
    """REC-1 SEC-5 PRV-9: no key is taken either, so that the right one counts."""
    bought = Bought(shop, gateway, "booking")
    right = gateway.told(Told(shop.name("p"), bought.reference))
    seen, counts = kept(shop, gateway.source, bought.reference), shared.rows(COUNTS)
    path = f"/webhooks/{gateway.source}"
    with open_line(shop.service) as send:
        for one in forgeries(right, gateway.signature, *gateway.signed_headers):
            assert send(path, one.body, dict(one.headers)).http in (400, 401), one
    assert kept(shop, gateway.source, bought.reference) == seen
    assert shared.rows(COUNTS) == counts
    gateway.answer(post(shop, gateway.source, right), bought.reference, "success")
    assert (shop.status(bought.reference), bought.effect) == ("PAID", "CONFIRMED")


@every_tilda
def test_a_payment_at_tilda_extends_a_subscription_once(shop: Shop, case: Case) -> None:
    """PRV-2 REC-7 PAY-2 PAY-3 PAY-5: by its e-mail address; Tilda tells of no refunds."""
    expected = ExpectedEvent(
        shop.name("p"), shop.name("evt"), email=f"{shop.name('buyer')}@example.com"
    )
    user = shop.service.user(str(expected.email))
    first = post(shop, "payments", tilda(case, expected))
    end, word = period_end(shop.service, user["id"]), tilda_word(case)
    for secret in (SECRET, "second-secret"):
        again = post(shop, "payments", case.deliver(expected, secret, datetime.now(UTC)))
        assert (first.http, again.http) == (200, 200)
        assert (word(first), word(again)) in {("success", "duplicate"), ("ok", "ok")}
    refunded = ExpectedEvent(
        expected.payment_id, shop.name("evt"), kind="none", email=expected.email
    )
    assert word(post(shop, "payments", tilda(case, refunded))) in {"ignored", "ok"}
    assert period_end(shop.service, user["id"]) == end
    (payment,) = items(shop.service, "/payments", email=expected.email)
    assert (payment["status"], payment["captured"], payment["refunded"]) == (
        "SUCCEEDED",
        "990.00",
        "0.00",
    )


@every_tilda
def test_a_tilda_delivery_with_a_changed_byte_is_rejected(
    shared: Shared, shop: Shop, case: Case
) -> None:
    """REC-1 SEC-5 PRV-2: of what it signs; whoever has its key may say anything."""
    expected = ExpectedEvent(
        shop.name("p"), shop.name("evt"), email=f"{shop.name('buyer')}@example.com"
    )
    user, right = shop.service.user(str(expected.email)), tilda(case, expected)
    counts = shared.rows(COUNTS)
    with open_line(shop.service) as send:
        for one in forgeries(right, case.signature_header):
            if one.body == right.body or case.signs_whole_body:
                reply = send("/webhooks/payments", one.body, dict(one.headers))
                assert reply.http in (400, 401), one
    assert shared.rows(COUNTS) == counts
    assert items(shop.service, "/payments", email=expected.email) == []
    assert tilda_word(case)(post(shop, "payments", right)) in {"success", "ok"}
    assert period_end(shop.service, user["id"]) > datetime.now(UTC)


def tilda(case: Case, expected: ExpectedEvent) -> Delivery:
    return case.deliver(expected, SECRET, datetime.now(UTC))


def tilda_word(case: Case) -> Callable[[Reply], str]:
    """Reads the word of an answer: JSON to its contract, and `ok` to a form."""
    is_form = case.name.startswith("tilda form")
    return lambda reply: reply.body.decode() if is_form else str(reply.json["status"])
