"""S3 Webhook Route Response Formats, over a real server."""

import base64
import json
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from tests.scenarios.gateways import CONFIG as FOUR_GATEWAYS
from tests.scenarios.gateways import SECRETS, Sale, Sent
from tests.scenarios.merchant import Merchant, new_address, request
from tests.scenarios.trouble import INSIDE, refusing
from tests.support.service import Reply
from tests.support.tools import is_problem

VECTORS: Final = Path(os.environ.get("PAIDONCE_VECTORS", ""), "vectors.json")
with_vectors = pytest.mark.skipif(
    not VECTORS.is_file(), reason="PAIDONCE_VECTORS names no folder of vectors"
)


def vectors() -> tuple[Any, Any]:
    """What Alipay has really sent, and what Creem shows."""
    found = {one["id"]: one for one in json.loads(VECTORS.read_text(encoding="utf-8"))}
    return found["alipay-v1-trade_status_sync-production"], found["creem-checkout-completed"]


def _sources_of_vectors() -> str:
    """The sources that these were sent to; they are years old."""
    if not VECTORS.is_file():
        return ""
    alipay, creem = vectors()
    return f"""
[sources.cn_then]
provider = "alipay"
public_keys = ["{alipay["public_key"]}"]
app_id = "{alipay["params"]["app_id"]}"
seller_id = "{alipay["params"]["seller_id"]}"
stale = "accept"
[sources.creem_then]
provider = "creem"
secrets = ["{creem["secret"]}"]
stale = "accept"
"""


CONFIG: Final = f"""{FOUR_GATEWAYS}
{_sources_of_vectors()}
[retry]
initial_s = 60.0
max_s = 60.0
"""


def is_alipays_success(reply: Reply) -> bool:
    assert (reply.http, reply.body) == (200, b"success")
    assert reply.headers["content-type"].split(";")[0] == "text/plain"
    return True


def test_alipay_is_answered_success_and_nothing_else(merchant: Merchant) -> None:
    """S3 Webhook Route Response Formats / Alipay webhook success response: seven letters of plain
    text, whatever became of what was stored.
    """
    sale = merchant.sale("cn")
    waiting, unknown = sale.again(), Sale("cn", "an-order-that-is-not-there-yet")
    short = merchant.sale("cn").but(amount=sale.amount - 1)
    assert is_alipays_success(merchant.send(waiting.told(trade_status="WAIT_BUYER_PAY")))
    assert is_alipays_success(merchant.send(sale.told()))
    assert is_alipays_success(merchant.send(sale.told()))
    assert is_alipays_success(merchant.send(sale.again().told(trade_status="TRADE_FINISHED")))
    assert is_alipays_success(merchant.send(unknown.told()))
    assert is_alipays_success(merchant.send(short.told()))
    failing = merchant.sale("cn")
    with refusing(merchant.shared, failing):
        assert is_alipays_success(merchant.send(failing.told()))
    assert merchant.is_given(sale)


def test_creem_is_answered_in_json_with_the_order(merchant: Merchant) -> None:
    """S3 Webhook Route Response Formats / Creem webhook success response: `status` is `success`,
    `orderId` is the order, for the first delivery and for each repeat.
    """
    sale = merchant.sale("creem")
    for _ in range(2):
        reply = merchant.send(sale.told())
        assert reply.http == 200
        assert reply.headers["content-type"].split(";")[0] == "application/json"
        assert (reply.json["status"], reply.json["orderId"]) == ("success", sale.order)
    unknown = Sale("creem", "an-order-that-is-not-there-yet")
    short = merchant.sale("creem").but(amount=sale.amount - 1)
    failing = merchant.sale("creem")
    with refusing(merchant.shared, failing):
        for one in (unknown, short, failing):
            reply = merchant.send(one.told())
            assert (reply.http, reply.json["status"]) == (200, "success")
            assert reply.json["orderId"] == one.order
    other = merchant.send(sale.again().told(eventType="subscription.active"))
    assert (other.http, other.json["status"]) == (200, "success")
    assert "orderId" in other.json


@with_vectors
def test_what_the_gateways_really_sent_is_taken(merchant: Merchant) -> None:
    """S3 Webhook Route Response Formats / Alipay webhook success response: a notification of
    Alipay's production, and an event of Creem's own documentation.
    """
    alipay, creem = vectors()
    form = {"content-type": "application/x-www-form-urlencoded"}
    said = {name: _as_sent(value) for name, value in alipay["params"].items()}
    assert is_alipays_success(merchant.send(Sent("/webhooks/cn_then", form, _form(said))))
    tampered = _form({**said, "total_amount": "1000.00"})
    assert merchant.send(Sent("/webhooks/cn_then", form, tampered)).http == 401
    headers = {"content-type": "application/json", **creem["headers"]}
    body = base64.b64decode(creem["body_b64"])
    reply = merchant.send(Sent("/webhooks/creem_then", headers, body))
    assert (reply.json["status"], reply.json["orderId"]) == ("success", "my-request-id")


def _form(said: dict[str, str]) -> bytes:
    return urlencode(said).encode()


def _as_sent(value: Any) -> str:
    """The vector has one list, which goes over the wire as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def test_every_failure_has_one_form_and_tells_nothing_of_the_inside(merchant: Merchant) -> None:
    """S3 Webhook Route Response Formats / General webhook failure response: problem+json with a
    stable code and the id under which the log has more.
    """
    good = merchant.sale("creem").told()
    json_type = {"content-type": "application/json"}
    big = Sent(good.path, good.headers, b"x" * 262_145)
    failures: list[tuple[str, Sent, int]] = [
        ("POST", merchant.sale("creem").told("another"), 401),
        ("POST", merchant.sale("creem").late(400).told(), 401),
        ("POST", merchant.sale("creem").told(object=[]), 400),
        ("POST", merchant.sale("shop").told(data={}), 400),
        ("POST", Sent("/webhooks/nobody", json_type, b"{}"), 404),
        ("GET", good, 405),
        ("PUT", good, 405),
        ("POST", big, 413),
        ("POST", Sent(good.path, {**good.headers, "content-type": "text/xml"}, good.body), 415),
    ]
    codes = set()
    for method, sent, http in failures:
        reply = request(merchant.service, method, sent.path, sent.body, sent.headers, new_address())
        assert is_problem(reply, http)
        assert reply.headers["x-request-id"] == reply.json["request_id"]
        assert _tells_nothing(merchant, reply)
        codes.add(reply.json["code"])
    assert codes >= {"INVALID_SIGNATURE", "TIMESTAMP_EXPIRED", "MALFORMED"}
    assert len(codes) >= 7, "each kind of failure has a code of its own"


@pytest.mark.parametrize("source", ["cn", "creem", "shop"])
def test_a_failure_of_the_inside_is_in_the_log_and_not_in_the_answer(
    merchant: Merchant, source: str
) -> None:
    """S3 Webhook Route Response Formats / General webhook failure response: the database refuses,
    and only the log and the operators hear of it.
    """
    sale = merchant.sale(source)
    with refusing(merchant.shared, sale):
        reply = merchant.send(sale.told())
    assert reply.http == 200, "it is stored, and will be tried again"
    assert _tells_nothing(merchant, reply)
    event = merchant.event(sale)
    assert (event["status"], event["error_code"]) == ("FAILED_RETRYABLE", "INTERNAL")
    assert event["error_message"]
    assert INSIDE not in json.dumps(event)
    (line,) = merchant.lines(external_payment_id=sale.payment)
    assert (line["error_code"], line["request_id"]) == ("INTERNAL", reply.headers["x-request-id"])
    assert line["error_message"]


def _tells_nothing(merchant: Merchant, reply: Reply) -> bool:
    told = reply.body.decode().lower() + str(reply.headers).lower()
    database = merchant.shared.database_url.split("/")[3].split("?")[0]
    private = [*SECRETS.values(), INSIDE, database, str(merchant.service.folder)]
    private += ["traceback", "asyncpg", "postgres", "paidonce/", ".py", "select ", "uvicorn"]
    found = [one for one in private if one.lower() in told]
    assert found == []
    return True
