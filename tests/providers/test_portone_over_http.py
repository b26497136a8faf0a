"""PortOne over a real server: webhooks trigger lookups, and the API decides."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from paidonce.providers.contract import Delivery
from paidonce.queue.senders import MAX_OF_STRANGER
from tests.providers.cases.standard import whsec
from tests.providers.conformance import FORM, JSON, RECEIVED_AT
from tests.support.gateways import forgeries, kept, post, standard_signed
from tests.support.portone_server import (
    V1_KEY,
    V1_SECRET,
    V2_SECRETS,
    Cancellation,
    Payment,
    PortOneGateway,
    Trouble,
    served,
)
from tests.support.service import BASIC, Reply, started_service
from tests.support.shop import Shop, open_line
from tests.support.tools import event, is_problem, items, until

SECRET: Final = "what PortOne and the shop know"
CONFIG: Final = f"""{BASIC}
[limits]
unverified = ""
[security]
ban_threshold = 0
[sources.kr]
provider = "portone"
secrets = ["{whsec(SECRET)}"]
api_url = "URL"
api_secret = "{V2_SECRETS[0]}"
[sources.kr_away]
provider = "portone"
secrets = ["{whsec(SECRET)}"]
api_url = "URL"
api_secret = "{V2_SECRETS[1]}"
[sources.kr_asks]
provider = "portone"
secrets = ["{whsec(SECRET)}"]
api_url = "URL"
api_secret = "{V2_SECRETS[2]}"
confirm = "match-order"
[sources.kr_old]
provider = "portone"
version = "v1"
api_url = "URL"
api_key = "{V1_KEY}"
api_secret = "{V1_SECRET}"
[sources.kr_flooded]
provider = "portone"
version = "v1"
api_url = "URL"
api_key = "{V1_KEY}"
api_secret = "{V1_SECRET}"
"""
PRICE: Final = 10_000
ALL_OF_IT: Final = Cancellation("c-1", PRICE)


@dataclass(frozen=True)
class Korea:
    """A shop and its gateway. An order's reference is the name of its payment, in V1 too."""

    shop: Shop
    gateway: PortOneGateway

    def order(self, **said: Any) -> str:
        usual = {"kind": "booking", "amount": str(PRICE), "currency": "KRW"}
        return self.shop.order(f"imp_{uuid4().hex[:16]}", **usual | said)

    def knows(self, reference: str, **said: Any) -> Payment:
        """What the gateway answers from now on."""
        usual = Payment(
            reference, order=reference, transaction_id=f"tx-{reference}", total_minor=PRICE
        )
        payment = replace(usual, **said)
        self.gateway.add(payment)
        return payment

    def effect(self, reference: str) -> tuple[str, str]:
        return self.shop.status(reference), str(self.shop.booking(reference)["status"])

    def outcome(self, event_id: str) -> tuple[str, str | None]:
        found = event(self.shop.service, event_id)
        return found["status"], found["error_code"]

    def outcome_of(self, reply: Reply) -> tuple[str, str | None]:
        """What becomes of a delivery that was answered so, as soon as it is known."""
        assert (reply.http, reply.json["status"]) == (200, "accepted")
        event_id = reply.json["event_id"]
        assert until(lambda: self.outcome(event_id)[0] != "VALIDATED")
        return self.outcome(event_id)


@pytest.fixture(scope="module")
def korea(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Korea]:
    with served() as gateway:
        config = CONFIG.replace("URL", gateway.url)
        service = started_service(tmp_path_factory.mktemp("korea"), shared_database, config)
        yield Korea(Shop(service), gateway)
        service.end()


@dataclass(frozen=True)
class Version:
    """How one version of PortOne's webhooks says what has happened: `Paid`, `Cancelled` …"""

    source: str
    write: Callable[[str, str], tuple[dict[str, str], bytes]]
    is_signed: bool = True

    def tell(self, reference: str, kind: str = "Paid", late_s: float = 0) -> Delivery:
        headers, body = self.write(reference, kind)
        if not self.is_signed:
            return Delivery(headers, body, RECEIVED_AT)
        at = datetime.now(UTC) - timedelta(seconds=late_s)
        sent = standard_signed(body, f"msg-{kind}-{reference}", SECRET, at)
        return Delivery({**sent.headers, **headers}, body, RECEIVED_AT)


def newer(reference: str, kind: str) -> tuple[dict[str, str], bytes]:
    data: dict[str, Any] = {"paymentId": reference, "storeId": "store-1"}
    data |= {"transactionId": f"tx-{reference}"}
    data |= {"totalAmount": PRICE} if kind == "Confirm" else {}
    said = {"type": f"Transaction.{kind}", "timestamp": "2026-11-15T11:59:00.000Z", "data": data}
    return JSON, json.dumps(said).encode()


def older_fields(reference: str, kind: str) -> dict[str, Any]:
    named = {"payment_id": reference, "tx_id": f"tx-{reference}"}
    return named | ({"total_amount": PRICE} if kind == "Confirm" else {"status": kind})


def old_fields(reference: str, kind: str) -> dict[str, Any]:
    return {"imp_uid": reference, "merchant_uid": reference, "status": kind.lower()}


VERSIONS: Final = {
    "2024-04-25": Version("kr", newer),
    "2024-01-01": Version("kr", lambda *said: (JSON, json.dumps(older_fields(*said)).encode())),
    "2024-01-01 form": Version("kr", lambda *said: (FORM, urlencode(older_fields(*said)).encode())),
    "v1": Version("kr_old", lambda *said: (JSON, json.dumps(old_fields(*said)).encode()), False),
    "v1 form": Version(
        "kr_old", lambda *said: (FORM, urlencode(old_fields(*said)).encode()), False
    ),
}
NEWER, OLD = VERSIONS["2024-04-25"], VERSIONS["v1"]
every_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
both_apis = pytest.mark.parametrize("version", [NEWER, OLD], ids=["v2", "v1"])


@every_version
def test_an_order_is_paid_once_and_refunded_once(korea: Korea, version: Version) -> None:
    """PRV-3 REC-4 REC-7 PAY-3 FUL-2 FUL-3 FUL-4: because the gateway says so when it is asked."""
    reference = korea.order()
    paid = korea.knows(reference)
    deliver_once(korea, version, reference, "Paid")
    assert korea.effect(reference) == ("PAID", "CONFIRMED")
    korea.gateway.add(replace(paid, status="CANCELLED", cancellations=(ALL_OF_IT,)))
    deliver_once(korea, version, reference, "Cancelled")
    assert korea.effect(reference) == ("REFUNDED", "CANCELED")
    (payment,) = items(korea.shop.service, "/payments", order=reference)
    assert (payment["captured"], payment["refunded"]) == ("10000", "10000")


def deliver_once(korea: Korea, version: Version, reference: str, kind: str) -> None:
    """Deliver it, and again: as it was, and signed anew, which is a reason to look once more."""
    delivery, asked = version.tell(reference, kind, late_s=20), korea.gateway.calls[reference]
    reply = post(korea.shop, version.source, delivery)
    assert korea.outcome_of(reply) == ("PROCESSED", None)
    *seen, _ = kept(korea.shop, version.source, reference)
    for again in (delivery, version.tell(reference, kind)):
        repeat = post(korea.shop, version.source, again)
        assert repeat.http == 200
        if not version.is_signed and repeat.json["status"] == "accepted":
            reply = repeat  # V1: of another minute, so another event
        else:
            assert repeat.json == reply.json | {"status": "duplicate"}
    assert until(lambda: is_all_processed(korea, version, reference))
    assert korea.gateway.calls[reference] <= asked + 3
    assert kept(korea.shop, version.source, reference)[:-1] == (*seen,)


def is_all_processed(korea: Korea, version: Version, reference: str) -> bool:
    events = items(korea.shop.service, "/events", source=version.source, order=reference)
    return all(one["status"] == "PROCESSED" for one in events)


@both_apis
def test_a_late_event_is_ignored_unless_its_lookup_adds_a_fact(
    korea: Korea, version: Version
) -> None:
    """PRV-3 PAY-2: and what was processed stays so when it is processed again."""
    reference, other = korea.order(), korea.order()
    for name in (reference, other):
        korea.knows(name)
    late = version.tell(reference, "Failed")
    korea.outcome_of(post(korea.shop, version.source, version.tell(reference)))
    reply = post(korea.shop, version.source, late)
    assert korea.outcome_of(reply) == ("IGNORED", "OUT_OF_ORDER")
    assert korea.effect(reference) == ("PAID", "CONFIRMED")
    early = post(korea.shop, version.source, version.tell(other, "Failed"))
    assert korea.outcome_of(early) == ("PROCESSED", None)
    assert korea.effect(other) == ("PAID", "CONFIRMED")
    event_id, asked = early.json["event_id"], korea.gateway.calls[other]
    assert korea.shop.service.api("POST", f"/events/{event_id}/reprocess").http == 200
    assert until(lambda: korea.gateway.calls[other] > asked)
    assert until(lambda: korea.outcome(event_id)[0] != "VALIDATED")
    assert korea.outcome(event_id) == ("PROCESSED", None)


@both_apis
def test_a_different_amount_does_not_pay_the_order(korea: Korea, version: Version) -> None:
    """PRV-3 PAY-4"""
    reference = korea.order()
    korea.knows(reference, total_minor=PRICE - 1)
    reply = post(korea.shop, version.source, version.tell(reference))
    assert korea.outcome_of(reply) == ("FAILED_FINAL", "AMOUNT_MISMATCH")
    assert korea.effect(reference) == ("PENDING", "PENDING")
    (payment,) = items(korea.shop.service, "/payments", order=reference)
    assert (payment["applied_at"], payment["review"]) == (None, "AMOUNT_MISMATCH")


@both_apis
def test_a_response_about_another_payment_has_no_effect(korea: Korea, version: Version) -> None:
    """PRV-3"""
    reference = korea.order()
    korea.knows(reference, shown={"id": "imp_other", "imp_uid": "imp_other"})
    reply = post(korea.shop, version.source, version.tell(reference))
    assert korea.outcome_of(reply) == ("FAILED_FINAL", "PROVIDER_MISMATCH")
    assert korea.effect(reference) == ("PENDING", "PENDING")
    assert items(korea.shop.service, "/payments", order=reference) == []


@pytest.mark.parametrize(
    ("source", "trouble"),
    [("kr", Trouble.NOT_FOUND), ("kr_away", Trouble.BROKEN)],
    ids=["does not know yet", "away"],
)
def test_a_failed_lookup_is_retried(korea: Korea, source: str, trouble: Trouble) -> None:
    """PRV-3 RET-1 REC-7: what is sent again wakes what waits; one that is away is spared."""
    reference = korea.order()
    korea.knows(reference)
    korea.gateway.misbehave(reference, *[trouble] * 3)
    delivery = NEWER.tell(reference)
    reply = post(korea.shop, source, delivery)
    assert korea.outcome_of(reply) == ("FAILED_RETRYABLE", "PROVIDER_UNREACHABLE")
    assert korea.effect(reference) == ("PENDING", "PENDING")
    assert post(korea.shop, source, delivery).json["status"] == "duplicate"
    assert until(lambda: korea.effect(reference) == ("PAID", "CONFIRMED"))
    assert korea.outcome(reply.json["event_id"]) == ("PROCESSED", None)


@pytest.mark.parametrize("confirmed", ["REQUESTED", "FAILED"])
@both_apis
def test_an_unconfirmed_cancellation_has_no_effect(
    korea: Korea, version: Version, confirmed: str
) -> None:
    """PRV-3 PAY-2"""
    reference = korea.order()
    korea.knows(reference, cancellations=(Cancellation("c-1", PRICE, confirmed),))
    assert korea.outcome_of(post(korea.shop, version.source, version.tell(reference)))
    reply = post(korea.shop, version.source, version.tell(reference, "Cancelled"))
    assert korea.outcome_of(reply) == ("FAILED_RETRYABLE", "PROVIDER_UNREACHABLE")
    assert korea.effect(reference) == ("PAID", "CONFIRMED")
    (payment,) = items(korea.shop.service, "/payments", order=reference)
    assert (payment["status"], payment["refunded"]) == ("SUCCEEDED", "0")


@pytest.mark.parametrize("version", [NEWER, VERSIONS["2024-01-01"]], ids=["newer", "older"])
def test_a_confirmation_request_is_approved_only_for_an_order(
    korea: Korea, version: Version
) -> None:
    """PRV-3: and only where the source says so; the buyer is told of a refusal."""
    reference = korea.order()
    unknown, closed, dearer = korea.shop.name("no"), korea.order(), korea.order(amount="10001")
    korea.shop.service.api("POST", f"/orders/{closed}/cancel")

    def asked(source: str, name: str) -> int:
        reply = post(korea.shop, source, version.tell(name, "Confirm"))
        if reply.http != 200:
            assert reply.headers["content-type"] == "application/json"
            assert reply.json.keys() == {"errorMessage"}
        return reply.http

    assert asked("kr", reference) == 409
    assert [asked("kr_asks", one) for one in (unknown, closed, dearer)] == [409] * 3
    assert [asked("kr_asks", reference) for _ in range(2)] == [200, 200]
    korea.shop.order(unknown, amount=str(PRICE), currency="KRW")
    assert asked("kr_asks", unknown) == 200, "a refusal stands for the moment only"
    assert korea.effect(reference) == ("PENDING", "PENDING")
    assert not korea.gateway.calls[reference]
    korea.knows(reference)
    assert korea.outcome_of(post(korea.shop, "kr_asks", version.tell(reference)))[1] is None
    assert asked("kr_asks", reference) == 409, "it is paid already"


def test_an_unconfirmed_v1_webhook_has_no_effect(korea: Korea) -> None:
    """PRV-3: V1 signs nothing, so only what the gateway knows counts."""
    unpaid, paid = korea.order(), korea.order()
    korea.knows(paid)
    assert korea.outcome_of(post(korea.shop, "kr_old", OLD.tell(paid)))[1] is None
    seen = [korea.shop.found(one) for one in (unpaid, paid)]
    said = (
        {"imp_uid": unpaid, "merchant_uid": unpaid, "status": "paid"},
        {"imp_uid": paid, "merchant_uid": unpaid, "status": "paid"},
        {"imp_uid": paid, "merchant_uid": paid, "status": "cancelled"},
        {"imp_uid": paid, "merchant_uid": unpaid, "status": "cancelled"},
    )
    for one in said:
        forged = Delivery(JSON, json.dumps(one).encode(), RECEIVED_AT)
        reply = post(korea.shop, "kr_old", forged)
        is_of_this_payment = one["imp_uid"] == one["merchant_uid"] == paid
        assert korea.outcome_of(reply) == (
            ("FAILED_RETRYABLE", "PROVIDER_UNREACHABLE")  # it may be true in a moment
            if is_of_this_payment
            else ("FAILED_FINAL", "PROVIDER_MISMATCH")
        ), one
    assert [korea.shop.found(one) for one in (unpaid, paid)] == seen
    korea.knows(unpaid)
    assert post(korea.shop, "kr_old", VERSIONS["v1 form"].tell(unpaid)).http == 200
    assert until(lambda: korea.effect(unpaid) == ("PAID", "CONFIRMED"))


def test_invented_v1_webhooks_are_answered_503_and_delay_no_order(korea: Korea) -> None:
    """SEC-9 SEC-8: 503, because V1's gateway repeats no webhook that was answered 4xx."""
    orders = [korea.order() for _ in range(2)]
    replies: list[Reply] = []
    while len(replies) < 3 * MAX_OF_STRANGER:
        invented = OLD.tell(f"imp_{uuid4().hex[:16]}")
        replies.append(post(korea.shop, "kr_flooded", invented))
        if replies[-1].http != 200:
            break
    assert is_problem(replies[-1], 503)
    assert replies[-1].json["code"] == "OVERLOADED"
    assert int(replies[-1].headers["retry-after"]) > 0
    for order in orders:
        korea.knows(order)
        assert post(korea.shop, "kr_flooded", OLD.tell(order)).http == 200
    assert until(lambda: all(korea.effect(one) == ("PAID", "CONFIRMED") for one in orders))


def test_an_expired_delivery_is_rejected_and_counts_once_confirmed(korea: Korea) -> None:
    """PRV-8"""
    reference = korea.order()
    korea.knows(reference)
    for _ in range(2):
        reply = post(korea.shop, "kr", NEWER.tell(reference, late_s=400))
        assert is_problem(reply, 401)
        assert reply.json["code"] == "TIMESTAMP_EXPIRED"
    assert until(lambda: korea.effect(reference) == ("PAID", "CONFIRMED"))
    korea.outcome_of(post(korea.shop, "kr", NEWER.tell(reference)))
    assert korea.effect(reference) == ("PAID", "CONFIRMED")
    assert len(items(korea.shop.service, "/payments", order=reference)) == 1


@pytest.mark.parametrize("name", [name for name in VERSIONS if VERSIONS[name].is_signed])
def test_a_delivery_with_a_changed_byte_is_rejected_without_a_lookup(
    korea: Korea, name: str
) -> None:
    """REC-1 SEC-5 PRV-3: no key is taken either, so that the right one counts."""
    reference, version = korea.order(), VERSIONS[name]
    korea.knows(reference)
    right = version.tell(reference)
    headers = ("webhook-signature", "webhook-id", "webhook-timestamp")
    with open_line(korea.shop.service) as send:
        for one in forgeries(right, *headers):
            assert send("/webhooks/kr", one.body, dict(one.headers)).http in (400, 401), one
    assert korea.effect(reference) == ("PENDING", "PENDING")
    assert korea.gateway.calls[reference] == 0
    assert korea.outcome_of(post(korea.shop, "kr", right)) == ("PROCESSED", None)
    assert korea.effect(reference) == ("PAID", "CONFIRMED")
