"""S3 Webhook Reception and Validation, over a real server."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tests.scenarios.gateways import (
    APP,
    SECRETS,
    Sale,
    Sent,
    china_time,
    encoded,
    forged_form,
    public_key,
    rsa2,
)
from tests.scenarios.gateways import CONFIG as FOUR_GATEWAYS
from tests.scenarios.merchant import Merchant, new_address
from tests.support.servers import Shared, StartService
from tests.support.service import Reply
from tests.support.tools import is_problem

ALIPAY: Final = f"""
provider = "alipay"
public_keys = ["{public_key(SECRETS["cn"])}"]
app_id = "{APP["app_id"]}"
seller_id = "{APP["seller_id"]}"
"""
CONFIG: Final = f"""{FOUR_GATEWAYS}
[sources.elsewhere]
{ALIPAY}
allow = ["192.0.2.0/24", "127.7.7.7/32"]
"""
SOURCES: Final = ["cn", "creem", "payments", "shop"]
TIMED: Final = ["cn", "creem", "shop"]
every_source = pytest.mark.parametrize("source", SOURCES)
every_timed_source = pytest.mark.parametrize("source", TIMED)


def is_refused(reply: Reply, source: str, code: str, http: int = 401) -> bool:
    """Whether the gateway was told no, in its own words; raises what is wrong with them."""
    if source == "cn":
        assert (reply.http, reply.body) == (http, b"fail")
        assert reply.headers["content-type"].startswith("text/plain")
        return True
    assert is_problem(reply, http)
    assert reply.json["code"] == code
    return True


def is_on_record(merchant: Merchant, sent: Sent, code: str, *, signed: bool) -> bool:
    """Whether a refused delivery is in the log and kept as failed evidence, claiming nothing."""
    (row,) = merchant.evidence(sent)
    assert (row["status"], row["error_code"]) == ("FAILED_FINAL", code)
    shown = merchant.shown(str(row["id"]))
    assert (shown["status"], shown["error_code"]) == ("FAILED_FINAL", code)
    (line,) = merchant.lines(webhook_event_id=str(row["id"]))
    assert (line["result"], line["error_code"]) == ("failed_final", code)
    assert line["signature_valid"] is signed
    claims = "SELECT * FROM event_keys WHERE event_id = $1"
    assert merchant.shared.rows(claims, row["id"]) == []
    return True


def is_untouched(merchant: Merchant, sale: Sale) -> bool:
    """Whether nothing has happened to what is sold."""
    assert not merchant.is_given(sale)
    assert merchant.payments(sale) == []
    if sale.order is not None:
        assert merchant.order(sale)["status"] == "PENDING"
        assert merchant.order(sale)["paid_at"] is None
    return True


def test_a_valid_notification_of_alipay(merchant: Merchant) -> None:
    """S3 Webhook Reception and Validation / Valid Alipay webhook received: signed with RSA2 and
    fresh, it is logged in detail, counts once, and is answered `success`.
    """
    sale = merchant.sale("cn", "88.88")
    reply = merchant.send(sale.told())
    assert (reply.http, reply.body) == (200, b"success")
    assert merchant.is_given(sale)
    event = merchant.event(sale)
    assert (event["status"], event["signature_valid"]) == ("PROCESSED", True)
    assert "rsa" in event["signature_method"].lower()
    assert (event["key"], event["order"]) == (sale.event_id, sale.order)
    (line,) = merchant.lines(external_payment_id=sale.payment)
    assert (line["result"], line["signature_valid"]) == ("processed", True)
    assert (line["amount"], line["currency"]) == ("88.88", "CNY")
    assert (line["order"], line["external_event_id"]) == (sale.order, sale.event_id)
    assert line["duration_ms"] > 0
    again = merchant.send(sale.late(-2).told())
    assert (again.http, again.body) == (200, b"success"), "signed anew with a new time"
    assert len(merchant.events(sale)) == len(merchant.payments(sale)) == 1


def test_alipay_is_heard_only_from_where_it_may_come(
    merchant: Merchant, start_service: StartService, database_url: str
) -> None:
    """S3 Webhook Reception and Validation / Valid Alipay webhook received: the address is
    verified, as a network or by the name of a host.
    """
    sale = merchant.sale("cn")
    elsewhere = Sent("/webhooks/elsewhere", sale.told().headers, sale.told().body)
    refused = merchant.send(elsewhere)
    assert refused.http == 403
    forwarded = merchant.send(elsewhere, **{"x-forwarded-for": "192.0.2.1"})
    assert forwarded.http == 403, "nobody is believed who says where he comes from"
    assert is_untouched(merchant, sale)
    reply = merchant.send(elsewhere, "127.7.7.7")
    assert (reply.http, reply.body) == (200, b"success")
    assert merchant.is_given(sale)

    named = f'environment = "development"\n[sources.cn]{ALIPAY}allow = ["localhost"]\n'
    other = Merchant(Shared(start_service(named), database_url))
    sale = other.sale("cn")
    assert other.send(sale.told(), new_address()).http == 403
    assert other.send(sale.told()).body == b"success"
    assert other.is_given(sale)


def test_a_valid_event_of_creem(merchant: Merchant) -> None:
    """S3 Webhook Reception and Validation / Valid Creem webhook received: signed with
    HMAC-SHA256 and fresh, it is logged in detail, counts once, and is answered in JSON.
    """
    sale = merchant.sale("creem", "49.00")
    reply = merchant.send(sale.told())
    assert (reply.http, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json["status"] == "success"
    assert merchant.is_given(sale)
    event = merchant.event(sale)
    assert (event["status"], event["signature_valid"]) == ("PROCESSED", True)
    assert event["signature_method"] == "hmac-sha256"
    (line,) = merchant.lines(external_payment_id=sale.payment)
    assert (line["result"], line["signature_valid"]) == ("processed", True)
    assert (line["amount"], line["currency"]) == ("49.00", "EUR")
    assert (line["order"], line["event_type"]) == (sale.order, "checkout.completed")
    again = merchant.send(sale.told())
    assert (again.http, again.json["status"]) == (200, "success")
    assert len(merchant.events(sale)) == len(merchant.payments(sale)) == 1


@every_source
def test_a_bad_signature_is_refused_and_the_real_event_counts_afterwards(
    merchant: Merchant, source: str
) -> None:
    """S3 Webhook Reception and Validation / Invalid signature: refused, logged, kept, and without
    effect, though it came first and has the real event's id.
    """
    sale = merchant.sale(source)
    counted = merchant.metric("webhook_invalid_signature_total", source)
    another = "whsec_AAAA" if source == "shop" else "another secret"
    for sent in (
        sale.told(another),
        sale.told().changed(sale.payment, f"not-{sale.payment}"),
        sale.told().changed("990" if source != "creem" else "99000", "1"),
    ):
        assert is_refused(merchant.send(sent), source, "INVALID_SIGNATURE")
        assert is_on_record(merchant, sent, "INVALID_SIGNATURE", signed=False)
        assert is_untouched(merchant, sale)
    assert merchant.metric("webhook_invalid_signature_total", source) == counted + 3
    assert merchant.send(sale.told()).http == 200
    assert merchant.is_given(sale)
    assert merchant.event(sale)["key"] == sale.event_id


def test_what_another_gateway_has_signed_is_refused(merchant: Merchant) -> None:
    """S3 Webhook Reception and Validation / Invalid signature: each source has its own secret,
    and none, an empty one and a cut one are refused as well.
    """
    sale = merchant.sale("creem")
    right = sale.told()
    signature = right.headers["creem-signature"]
    for wrong in ("", signature[:-1], signature.upper(), f"{signature},{signature}", "0" * 64):
        reply = merchant.send(right, **{"creem-signature": wrong})
        assert is_refused(reply, "creem", "INVALID_SIGNATURE")
    for secret in (SECRETS["payments"], SECRETS["shop"]):
        reply = merchant.send(sale.told(secret))
        assert is_refused(reply, "creem", "INVALID_SIGNATURE")
    without = Sent(right.path, {"content-type": "application/json"}, right.body)
    assert is_refused(merchant.send(without), "creem", "INVALID_SIGNATURE")
    assert is_untouched(merchant, sale)
    assert merchant.send(right).http == 200


def test_alipays_signature_is_over_the_bytes_of_the_notification(merchant: Merchant) -> None:
    """S3 Webhook Reception and Validation / Invalid signature: one over the same words in another
    charset is refused; the charset that is signed counts, whatever the header says.
    """
    said = dict(_said(merchant.sale("cn")))
    utf8, gbk = encoded(said, "utf-8"), encoded(said, "gbk")
    other_charset = forged_form("cn", utf8, rsa2(gbk, SECRETS["cn"]))
    assert is_refused(merchant.send(other_charset), "cn", "INVALID_SIGNATURE")
    relabelled = forged_form("cn", {**gbk, "charset": b"gbk"}, rsa2(gbk, SECRETS["cn"]))
    assert is_refused(merchant.send(relabelled), "cn", "INVALID_SIGNATURE")
    sale = merchant.sale("cn")
    reply = merchant.send(sale.told(charset="gbk"))
    assert (reply.http, reply.body) == (200, b"success")
    assert merchant.is_given(sale)


def _said(sale: Sale) -> list[tuple[str, str]]:
    return [
        *APP.items(),
        ("notify_id", sale.event_id),
        ("notify_time", china_time(datetime.now(UTC))),
        ("charset", "utf-8"),
        ("sign_type", "RSA2"),
        ("trade_no", sale.payment),
        ("out_trade_no", sale.order or ""),
        ("trade_status", "TRADE_SUCCESS"),
        ("total_amount", str(sale.amount)),
        ("subject", "会员"),
    ]


def test_what_alipay_has_signed_cannot_be_read_in_another_way(merchant: Merchant) -> None:
    """S3 Webhook Reception and Validation / Invalid signature: the buyer's text holds parameters,
    and the signed bytes are sent with these in place of the real ones.
    """
    victim, own = merchant.sale("cn", "9999.00"), merchant.sale("cn", "0.01")
    honest = encoded(dict(_said(own)), "utf-8")
    inside = honest | {
        "notify_id": b"squatted",
        "out_trade_no": (victim.order or "").encode(),
        "total_amount": b"9999.00",
    }
    names = sorted(name for name in inside if name > "body" and name != "sign_type")
    text = b"x&" + b"&".join(name.encode() + b"=" + inside[name] for name in names) + b"&zz=1"
    paid = {**honest, "body": text}
    rest = [name for name in sorted(honest) if name > "body" and name != "sign_type"]
    tail = b"&".join(name.encode() + b"=" + honest[name] for name in rest)
    turned = {**inside, "body": b"x", "zz": b"1&" + tail}
    sign = rsa2(paid, SECRETS["cn"])
    assert rsa2(turned, SECRETS["cn"]) == sign, "the trick is one: the same bytes are signed"
    reply = merchant.send(forged_form("cn", turned, sign))
    assert reply.http in {400, 401}
    assert is_untouched(merchant, victim)


@pytest.mark.parametrize("whose", ["app_id", "seller_id"])
def test_a_notification_for_somebody_else_is_refused(merchant: Merchant, whose: str) -> None:
    """S3 Webhook Reception and Validation / Invalid signature: Alipay has signed it, but not for
    this app and this seller.
    """
    sale = merchant.sale("cn")
    assert merchant.send(sale.told(**{whose: "2088000000000008"})).body == b"fail"
    assert is_untouched(merchant, sale)


@every_timed_source
@pytest.mark.parametrize("seconds", [302, -303, 86_400])
def test_a_time_further_away_than_five_minutes_is_refused(
    merchant: Merchant, source: str, seconds: int
) -> None:
    """S3 Webhook Reception and Validation / Expired timestamp: refused, logged and kept, in both
    directions; told again with a fresh time under the same id, it counts.
    """
    sale = merchant.sale(source)
    sent = sale.late(seconds).told()
    assert is_refused(merchant.send(sent), source, "TIMESTAMP_EXPIRED")
    assert is_on_record(merchant, sent, "TIMESTAMP_EXPIRED", signed=True)
    assert not merchant.is_given(sale)
    payment = merchant.payment(sale)
    assert (payment["applied_at"], payment["review"]) == (None, "TIMESTAMP_EXPIRED")
    assert (merchant.order(sale)["status"], merchant.order(sale)["paid_at"]) == ("PENDING", None)
    fresh = sale.late(0)
    assert merchant.send(fresh.told()).http == 200
    assert merchant.is_given(sale)


@every_timed_source
@pytest.mark.parametrize("seconds", [298, -298])
def test_a_time_within_five_minutes_is_taken(merchant: Merchant, source: str, seconds: int) -> None:
    """S3 Webhook Reception and Validation / Expired timestamp: not yet, in both directions."""
    sale = merchant.sale(source).late(seconds)
    assert merchant.send(sale.told()).http == 200
    assert merchant.is_given(sale)


@every_timed_source
def test_money_that_came_too_late_is_listed_for_a_person(merchant: Merchant, source: str) -> None:
    """S3 Webhook Reception and Validation / Expired timestamp: authentic money that was refused
    for its time alone is among the money not applied.
    """
    sale = merchant.sale(source).late(400)
    assert merchant.send(sale.told()).http == 401
    found = merchant.service.api("GET", "/payments", applied="false", limit=500)
    assert sale.payment in found.body.decode()
    merchant.send(sale.told())
    assert len(merchant.evidence(sale.told())) == 1, "kept once, however often it is tried"


@every_source
def test_a_duplicate_is_answered_like_the_first_and_changes_nothing(
    merchant: Merchant, source: str
) -> None:
    """S3 Webhook Reception and Validation / Duplicate webhook (idempotency check): success, no
    effect, and a line in the log for each.
    """
    sale = merchant.sale(source)
    first = merchant.send(sale.told())
    before = merchant.payment(sale), merchant.event(sale), _given(merchant, sale)
    counted = merchant.metric("webhook_duplicate_total", source)
    for _ in range(3):
        again = merchant.send(sale.told())
        assert again.http == first.http == 200
        if source in {"cn", "creem"}:
            assert again.body == first.body
        else:
            assert again.json == {"status": "duplicate", "event_id": before[1]["id"]}
    after = merchant.payment(sale), merchant.event(sale), _given(merchant, sale)
    assert (before[0], before[2]) == (after[0], after[2])
    assert after[1]["trail"][: len(before[1]["trail"])] == before[1]["trail"]
    (duplicates,) = [one for one in after[1]["trail"] if one["action"] == "event_deduped"]
    assert duplicates["details"]["count"] == 3
    assert len(merchant.lines(result="duplicate", external_payment_id=sale.payment)) == 3
    assert merchant.metric("webhook_duplicate_total", source) == counted + 3


def _given(merchant: Merchant, sale: Sale) -> object:
    if sale.order is not None:
        return merchant.order(sale)
    return merchant.service.api("GET", "/subscriptions", email=sale.email).json


@pytest.mark.parametrize("source", ["cn", "creem", "shop"])
def test_a_duplicate_of_what_failed_finally_stays_failed(merchant: Merchant, source: str) -> None:
    """S3 Webhook Reception and Validation / Duplicate webhook (idempotency check): it is not
    tried again, and has the status that the first one got.
    """
    sale = merchant.sale(source, "990.00")
    short = sale.but(amount=sale.amount - 5)
    first = merchant.send(short.told())
    before = merchant.event(short)
    assert (before["status"], before["error_code"]) == ("FAILED_FINAL", "AMOUNT_MISMATCH")
    again = merchant.send(short.told())
    assert again.http == first.http == 200
    after = merchant.event(short)
    assert (after["attempts"], after["status"]) == (before["attempts"], "FAILED_FINAL")
    assert not merchant.is_given(sale)


@every_source
def test_a_malformed_event_is_malformed_each_time(merchant: Merchant, source: str) -> None:
    """S3 Webhook Reception and Validation / Duplicate webhook (idempotency check): a repeat gets
    the status that the first one got, also where that is an error.
    """
    sale = merchant.sale(source)
    broken: dict[str, dict[str, Any]] = {
        "cn": {"total_amount": "9,90"},
        "creem": {"object": {"order": {"id": "ord_1", "status": "paid", "currency": "EUR"}}},
        "payments": {"amount": None},
        "shop": {"data": {"payment_id": sale.payment, "order": sale.order}},
    }
    sent = sale.told(**broken[source])
    for _ in range(2):
        assert is_refused(merchant.send(sent), source, "MALFORMED", 400)
    assert not merchant.is_given(sale)
    assert {one["review"] for one in merchant.payments(sale)} <= {"MALFORMED"}
    assert {row["error_code"] for row in merchant.evidence(sent)} == {"MALFORMED"}
    assert merchant.send(sale.told()).http == 200
    assert merchant.is_given(sale)
