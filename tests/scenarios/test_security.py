"""S3 Webhook Security and Anti-Replay: replays and bans, from many addresses."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.scenarios.gateways import CONFIG as FOUR_GATEWAYS
from tests.scenarios.gateways import SECRETS, Sale, Sent
from tests.scenarios.merchant import Merchant, new_address, times
from tests.support.service import Reply
from tests.support.tools import is_problem, items, until

NONCES: Final = f"""
[sources.once]
provider = "standard"
secrets = ["{SECRETS["shop"]}"]
[sources.once.fields]
nonce = "/nonce"
"""
CONFIG: Final = f"""{FOUR_GATEWAYS}
{NONCES}
[limits]
unverified = "100000/minute"
"""
ENOUGH: Final = 1_000
"""So many forgeries within a few seconds are suspicious by any measure."""
MANY: Final = 400
"""So many are what a gateway may well send that has a wrong secret."""


def at_once(sale: Sale, nonce: str) -> Sent:
    """The delivery to the source that wants a nonce with each event."""
    return replace(sale.told(nonce=nonce), path="/webhooks/once")


def test_a_nonce_counts_once(merchant: Merchant) -> None:
    """S3 Webhook Security and Anti-Replay / Anti-replay protection: another event with a nonce
    that was used is refused; the same one is a duplicate; a forgery uses no nonce up.
    """
    first, second = merchant.sale("shop"), merchant.sale("shop")
    forged = replace(first.told("whsec_AAAA", nonce="n-1"), path="/webhooks/once")
    assert merchant.send(forged).http == 401
    assert merchant.send(at_once(first, "n-1")).json["status"] == "success"
    replayed = merchant.send(at_once(second, "n-1"))
    assert is_problem(replayed, 401)
    assert replayed.json["code"] == "REPLAYED_NONCE"
    assert not merchant.is_given(second)
    (row,) = merchant.evidence(at_once(second, "n-1"))
    assert (row["status"], row["error_code"]) == ("FAILED_FINAL", "REPLAYED_NONCE")
    assert merchant.send(at_once(first, "n-1")).json["status"] == "duplicate"
    assert merchant.send(at_once(second, "n-2")).json["status"] == "success"
    assert merchant.is_given(second)


@pytest.mark.parametrize("source", ["cn", "creem", "payments", "shop"])
def test_a_captured_request_cannot_be_used_again(merchant: Merchant, source: str) -> None:
    """S3 Webhook Security and Anti-Replay / Anti-replay protection: its id is on record, and
    neither the same bytes nor the same event in an old or a new envelope count again.
    """
    sale = merchant.sale(source)
    sent = sale.told()
    assert merchant.send(sent).http == 200
    event = merchant.event(sale)
    assert event["key"] == sale.event_id
    keys = "SELECT digest FROM event_keys WHERE event_id = $1"
    assert len(merchant.shared.rows(keys, event["id"])) == 1
    before = merchant.payment(sale)
    assert merchant.send(sent, new_address()).http == 200
    assert merchant.send(sale.late(60).told()).http == 200
    if source != "payments":
        assert merchant.send(sale.late(86_400).told()).http == 401
    assert merchant.payment(sale) == before
    assert len(merchant.events(sale)) == 1


def test_the_id_and_the_time_of_a_captured_request_cannot_be_changed(merchant: Merchant) -> None:
    """S3 Webhook Security and Anti-Replay / Anti-replay protection: both are signed."""
    sale = merchant.sale("shop")
    sent = sale.told()
    for changed in (
        {"webhook-id": "evt-another"},
        {"webhook-timestamp": str(int(sent.headers["webhook-timestamp"]) + 1)},
        {"webhook-id": f"{sale.event_id}."},
        {"webhook-signature": ""},
        {"webhook-signature": sent.headers["webhook-signature"].replace("v1,", "v1a,")},
    ):
        reply = merchant.send(sent, **changed)
        assert is_problem(reply, 401)
        assert reply.json["code"] == "INVALID_SIGNATURE"
    assert not merchant.is_given(sale)
    assert merchant.send(sent).json["status"] == "success"


def forge(merchant: Merchant, address: str) -> Reply:
    return merchant.send(Sale("creem", "nobody").told("another"), address)


def is_banned(merchant: Merchant, address: str, after: int = ENOUGH) -> bool:
    """Forge until the address is refused as such, or until there is no use."""
    return any(forge(merchant, address).http == 403 for _ in range(after))


def ban_of(merchant: Merchant, address: str) -> list[Any]:
    found = items(merchant.service, "/bans")
    return [one for one in found if address in str(one.get("address"))]


def test_an_address_that_forges_is_banned_for_a_while(merchant: Merchant) -> None:
    """S3 Webhook Security and Anti-Replay / Suspicious pattern detection: its risk grows, it is
    banned and listed with an end, the log and the audit log tell so, and others are still heard.
    """
    address, other = new_address(), new_address()
    assert is_banned(merchant, address)
    sale = merchant.sale("creem")
    refused = merchant.send(sale.told(), address)
    assert is_problem(refused, 403)
    assert refused.json["code"] != "ADDRESS_NOT_ALLOWED", "it has a reason of its own"
    assert not merchant.is_given(sale)
    (ban,) = until(lambda: ban_of(merchant, address))
    assert any(name.endswith(("_at", "until")) and ban[name] for name in ban), ban
    assert until(lambda: _told_of_ban(merchant, address))
    assert until(lambda: _audited(merchant, address))
    assert merchant.send(sale.told(), other).http == 200
    assert merchant.is_given(sale)


def test_the_risk_of_an_address_can_be_seen(merchant: Merchant) -> None:
    """S3 Webhook Security and Anti-Replay / Suspicious pattern detection: its score is shown with
    the ban, in the log, in the audit log or in the metrics, wherever an operator may look.
    """
    address = new_address()
    assert is_banned(merchant, address)
    assert until(lambda: _told_of_ban(merchant, address))
    shown = json.dumps([ban_of(merchant, address), _told_of_ban(merchant, address)])
    audited = merchant.shared.rows("SELECT details FROM audit_log WHERE action LIKE '%ban%'")
    metrics = merchant.service.request("GET", "/metrics").body.decode()
    told = (shown + json.dumps(audited, default=str) + metrics).lower()
    assert "risk" in told or "score" in told


def _told_of_ban(merchant: Merchant, address: str) -> list[Any]:
    lines = [json.dumps(line) for line in merchant.service.log_lines()]
    return [line for line in lines if address in line and "ban" in line.lower()]


def _audited(merchant: Merchant, address: str) -> list[Any]:
    found = merchant.shared.rows("SELECT * FROM audit_log WHERE action LIKE '%ban%'")
    return [row for row in found if address in json.dumps(row, default=str)]


def test_an_operator_lifts_a_ban(merchant: Merchant) -> None:
    """S3 Webhook Security and Anti-Replay / Suspicious pattern detection: the address is heard
    again, and it is on record who has lifted the ban: not whoever has made it.
    """
    address = new_address()
    assert is_banned(merchant, address)
    assert until(lambda: ban_of(merchant, address))
    assert merchant.service.request("GET", "/api/v1/bans").http == 401
    assert merchant.service.request("DELETE", f"/api/v1/bans/{address}").http == 401
    lifted = merchant.service.api("DELETE", f"/bans/{address}")
    assert lifted.http in {200, 204}, lifted.body
    assert ban_of(merchant, address) == []
    sale = merchant.sale("creem")
    assert until(lambda: merchant.send(sale.told(), address).http == 200)
    assert len({row["actor"] for row in _audited(merchant, address)} - {None}) == 2
    assert is_problem(merchant.service.api("DELETE", f"/bans/{new_address()}"), 404)
    assert merchant.service.api("DELETE", "/bans/nonsense").http in {400, 404, 422}


def test_whoever_asks_for_unregistered_sources_is_banned(merchant: Merchant) -> None:
    """S3 Webhook Security and Anti-Replay / Suspicious pattern detection: looking for doors is
    suspicious too.
    """
    address = new_address()
    sent = Sent("/webhooks/admin", {"content-type": "application/json"}, b"{}")
    assert any(merchant.send(sent, address).http == 403 for _ in range(ENOUGH))
    assert until(lambda: ban_of(merchant, address))


@pytest.mark.parametrize("source", ["cn", "creem", "shop"])
def test_a_gateway_is_never_banned_for_a_wrong_secret(merchant: Merchant, source: str) -> None:
    """S3 Webhook Security and Anti-Replay / Suspicious pattern detection: an address from which a
    verified delivery came is the gateway's, and a mis-rotated secret does not cut it off.
    """
    address = new_address()
    sale = merchant.sale(source)
    assert merchant.send(sale.told(), address).http == 200
    assert not is_banned(merchant, address, MANY)
    assert ban_of(merchant, address) == []
    after = merchant.sale(source)
    assert merchant.send(after.told(), address).http == 200
    assert merchant.is_given(after)


def test_what_comes_too_late_or_twice_is_not_suspicious(merchant: Merchant) -> None:
    """S3 Webhook Security and Anti-Replay / Suspicious pattern detection: only what cannot be
    verified adds risk; gateways repeat themselves for a day.
    """
    address = new_address()
    late = merchant.sale("creem").late(4000).told()
    assert set(times(150, lambda: merchant.send(late, address))) == {401}
    assert ban_of(merchant, address) == []
    sale = merchant.sale("creem")
    assert set(times(150, lambda: merchant.send(sale.told(), address))) == {200}
