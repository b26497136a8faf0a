"""S3 Error Handling and Retry Mechanism, over a real server."""

from datetime import datetime
from functools import partial
from typing import Any, Final

import pytest

from tests.scenarios.gateways import CONFIG as FOUR_GATEWAYS
from tests.scenarios.gateways import Sale, standard_headers
from tests.scenarios.listener import listening
from tests.scenarios.merchant import Merchant
from tests.scenarios.trouble import refusing
from tests.support.servers import Shared, StartService
from tests.support.tools import is_problem, items, paidonce, until

CONFIG: Final = f"""{FOUR_GATEWAYS}
[retry]
attempts = 4
initial_s = 0.05
"""
ORDERED: Final = ["cn", "creem", "shop"]
every_source = pytest.mark.parametrize("source", ORDERED)
WHSEC: Final = "whsec_dGhlIG9wZXJhdG9yJ3Mgb3duIHNlY3JldA=="


def of_trail(event: Any, action: str) -> list[Any]:
    return [item for item in event["trail"] if item["action"] == action]


def is_dead(merchant: Merchant, sale: Sale) -> bool:
    return bool(merchant.event(sale)["status"] == "DEAD_LETTER")


def dead_letter(merchant: Merchant, source: str) -> Sale:
    """A sale whose event was tried as often as it may be."""
    sale = merchant.sale(source)
    with refusing(merchant.shared, sale):
        assert merchant.send(sale.told()).http == 200
        assert until(partial(is_dead, merchant, sale))
    return sale


@every_source
def test_what_fails_for_a_moment_is_tried_again(merchant: Merchant, source: str) -> None:
    """S3 Error Handling and Retry Mechanism / Transient error handling: at most three more times,
    with growing pauses, each attempt on record; the third of them succeeds.
    """
    sale = merchant.sale(source)
    with refusing(merchant.shared, sale, times=3):
        assert merchant.send(sale.told()).http == 200
        assert until(partial(merchant.is_given, sale))
    event = merchant.event(sale)
    assert (event["status"], event["attempts"], event["error_code"]) == ("PROCESSED", 4, None)
    started = of_trail(event, "processing_attempt_started")
    assert [item["details"]["attempt"] for item in started] == [1, 2, 3, 4]
    failed = of_trail(event, "processing_attempt_failed")
    assert {item["details"]["error_code"] for item in failed} == {"INTERNAL"}
    assert (len(failed), len(of_trail(event, "processing_succeeded"))) == (3, 1)
    scheduled = of_trail(event, "retry_scheduled")
    pauses = [_pause_s(item) for item in scheduled]
    assert len(pauses) == 3
    assert pauses == sorted(pauses)
    assert pauses[2] > 2 * pauses[0]
    lines = merchant.lines(external_payment_id=sale.payment)
    assert [line["result"] for line in lines] == ["failed_retryable"] * 3 + ["processed"]
    assert len(merchant.payments(sale)) == 1


def _pause_s(item: Any) -> float:
    due, at = item["details"]["run_at"], item["at"]
    return (datetime.fromisoformat(due) - datetime.fromisoformat(at)).total_seconds()


def test_a_redelivery_makes_what_waits_due_at_once(
    start_service: StartService, database_url: str
) -> None:
    """S3 Error Handling and Retry Mechanism / Transient error handling: the next attempt is an
    hour away, the gateway sends once more, and it is done.
    """
    slow = f"{FOUR_GATEWAYS}\n[retry]\ninitial_s = 3600.0\nmax_s = 3600.0\n"
    merchant = Merchant(Shared(start_service(slow), database_url))
    sale = merchant.sale("cn")
    with refusing(merchant.shared, sale, times=1):
        assert merchant.send(sale.told()).body == b"success"
        event = merchant.event(sale)
        assert (event["status"], event["attempts"]) == ("FAILED_RETRYABLE", 1)
        assert event["next_attempt_at"] is not None
        assert not merchant.is_given(sale)
        assert merchant.send(sale.told()).body == b"success"
        assert until(partial(merchant.is_given, sale))
    assert merchant.event(sale)["attempts"] == 2


@pytest.mark.parametrize("source", ["cn", "creem", "payments", "shop"])
@pytest.mark.parametrize("kind", ["forged", "malformed", "short"])
def test_what_can_never_succeed_is_not_tried_again(
    merchant: Merchant, source: str, kind: str
) -> None:
    """S3 Error Handling and Retry Mechanism / Permanent failure handling: the reason is on record,
    the evidence is marked as failed, nothing is due, and the gateway is answered accordingly.
    """
    sale = merchant.sale(source)
    wrong: dict[str, dict[str, Any]] = {
        "cn": {"total_amount": "much"},
        "creem": {"object": []},
        "payments": {"amount": "much"},
        "shop": {"data": []},
    }
    sent, http, code = {
        "forged": (sale.told("whsec_AAAA"), 401, "INVALID_SIGNATURE"),
        "malformed": (sale.told(**wrong[source]), 400, "MALFORMED"),
        "short": (sale.but(amount=sale.amount - 1).told(), 200, "AMOUNT_MISMATCH"),
    }[kind]
    reply = merchant.send(sent)
    assert reply.http == http
    assert source == "cn" or http == 200 or is_problem(reply, http)
    (row,) = merchant.evidence(sent)
    assert (row["status"], row["error_code"]) == ("FAILED_FINAL", code)
    event = merchant.shown(str(row["id"]))
    assert event["error_message"]
    assert event["next_attempt_at"] is None
    assert "retry_scheduled" not in merchant.actions(event["id"])
    assert merchant.shared.rows("SELECT * FROM event_queue WHERE event_id = $1", row["id"]) == []
    assert merchant.lines(webhook_event_id=event["id"], error_code=code)
    assert not merchant.is_given(sale)


@pytest.mark.parametrize(
    "thing",
    [
        None,
        {},
        {"id": "ch_1", "request_id": "o-1"},
        {"id": "ch_1", "request_id": "o-1", "order": "ord_1"},
        {"id": "ch_1", "order": {"id": "ord_1", "amount": 100, "currency": "EUR"}},
    ],
    ids=["null", "empty", "without an order", "with the order's id only", "without a status"],
)
def test_a_completed_checkout_that_does_not_tell_what_was_paid_is_no_success(
    merchant: Merchant, thing: Any
) -> None:
    """S3 Error Handling and Retry Mechanism / Permanent failure handling: no payment id, no status
    or no amount is a data error, on record for a person, and not an event that says nothing.
    """
    sent = Sale("creem").told(object=thing)
    reply = merchant.send(sent)
    (row,) = merchant.evidence(sent)
    assert (row["status"], row["error_code"]) == ("FAILED_FINAL", "MALFORMED")
    assert is_problem(reply, 400)


@every_source
def test_what_was_tried_often_enough_is_a_dead_letter(merchant: Merchant, source: str) -> None:
    """S3 Error Handling and Retry Mechanism / Dead letter queue: it is listed for a person, and
    retried by hand when the trouble is over.
    """
    sale = dead_letter(merchant, source)
    event = merchant.event(sale)
    assert (event["attempts"], event["next_attempt_at"]) == (4, None)
    assert not merchant.is_given(sale)
    assert merchant.service.metric("webhook_events_backlog", status="DEAD_LETTER") >= 1
    listed = {one["id"]: one for one in _dead_letters(merchant)}
    assert listed[event["id"]]["error_code"] == "INTERNAL"

    reply = merchant.service.api("POST", f"/dead-letters/{event['id']}/retry", {})
    assert reply.http in {200, 202}, reply.body
    assert until(partial(merchant.is_given, sale))
    after = merchant.event(sale)
    assert (after["status"], after["error_code"]) == ("PROCESSED", None)
    assert event["id"] not in {one["id"] for one in _dead_letters(merchant)}
    assert len(after["trail"]) > len(event["trail"]), "the operator's action is on record"
    audited = merchant.shared.rows(
        "SELECT actor FROM audit_log WHERE event_id = $1 AND actor IS NOT NULL", after["id"]
    )
    assert audited
    assert merchant.send(sale.told()).http == 200
    assert len(merchant.payments(sale)) == 1


def _dead_letters(merchant: Merchant) -> list[Any]:
    return items(merchant.service, "/dead-letters", limit=500)


def test_a_dead_letter_that_fails_again_stays_one(merchant: Merchant) -> None:
    """S3 Error Handling and Retry Mechanism / Dead letter queue: retrying it is no way to lose
    it.
    """
    sale = dead_letter(merchant, "cn")
    event = merchant.event(sale)
    with refusing(merchant.shared, sale):
        reply = merchant.service.api("POST", f"/dead-letters/{event['id']}/retry", {})
        assert reply.http in {200, 202}, reply.body
        assert until(lambda: len(of_trail(merchant.event(sale), "processing_attempt_failed")) > 4)
        assert until(partial(is_dead, merchant, sale))
    assert event["id"] in {one["id"] for one in _dead_letters(merchant)}
    assert not merchant.is_given(sale)


def test_a_gateway_that_sends_a_dead_letter_again_is_answered_and_heard(
    merchant: Merchant,
) -> None:
    """S3 Error Handling and Retry Mechanism / Dead letter queue: a redelivery is a duplicate; the
    letter is still there for a person, or has been settled by it, and is never lost.
    """
    sale = dead_letter(merchant, "shop")
    reply = merchant.send(sale.told())
    assert (reply.http, reply.json["status"]) == (200, "duplicate")
    assert merchant.is_given(sale) or is_dead(merchant, sale)


def test_a_dead_letter_can_be_discarded_with_a_reason(merchant: Merchant) -> None:
    """S3 Error Handling and Retry Mechanism / Dead letter queue: by whoever may, and it is told
    who and why.
    """
    sale = dead_letter(merchant, "creem")
    event_id = merchant.event(sale)["id"]
    path = f"/dead-letters/{event_id}/discard"
    made = paidonce(
        merchant.service.folder, "keys", "create", "--name", "only reads", "--scope", "read"
    )
    reader = made.stdout.strip()
    service = merchant.service
    assert is_problem(service.api("POST", path, {"reason": "no"}, key=reader), 403)
    assert is_problem(service.api("POST", f"/dead-letters/{event_id}/retry", {}, key=reader), 403)
    assert service.api("GET", "/dead-letters", key=reader).http == 200
    unreasoned = service.api("POST", path, {})
    assert unreasoned.http in {400, 422}
    assert service.api("POST", path, {"reason": "refunded by hand"}).http in {200, 204}
    assert event_id not in {one["id"] for one in _dead_letters(merchant)}
    assert "refunded by hand" in str(merchant.shown(event_id)["trail"])
    assert not merchant.is_given(sale)
    nobody = "00000000-0000-7000-8000-000000000000"
    assert is_problem(service.api("POST", f"/dead-letters/{nobody}/retry", {}), 404)


def test_a_dead_letter_and_a_mismatch_are_notified(
    start_service: StartService, database_url: str
) -> None:
    """S3 Error Handling and Retry Mechanism / Dead letter queue: the operators' own webhook hears
    of it, signed, and of no secret and no whole e-mail.
    """
    with listening() as listener:
        config = f"""{CONFIG}
[notifications.ops]
kind = "webhook"
url = "{listener.url}"
secret = "{WHSEC}"
every_s = 1
"""
        merchant = Merchant(Shared(start_service(config), database_url))
        short = merchant.sale("cn")
        merchant.send(short.but(amount=short.amount - 1).told())
        sale = dead_letter(merchant, "cn")
        event_ids = [merchant.event(one)["id"] for one in (short, sale)]
        for word, event_id in zip(("AMOUNT_MISMATCH", "DEAD_LETTER"), event_ids, strict=True):
            heard = until(partial(listener.that_name, word))
            assert heard, word
            assert any(event_id.encode() in one.body for one in heard)
        for one in listener.heard:
            _is_signed(one)
            assert b"whsec" not in one.body


def _is_signed(sent: Any) -> None:
    sent_at = datetime.fromtimestamp(int(sent.headers["webhook-timestamp"])).astimezone()
    headers = standard_headers(sent.body, sent.headers["webhook-id"], sent_at, WHSEC)
    assert sent.headers["webhook-signature"] == headers["webhook-signature"]
