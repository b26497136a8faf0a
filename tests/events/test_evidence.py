"""One event with what arrived: for those who may operate, and without what nobody may see."""

import json
from base64 import b64decode
from typing import Any, Final
from urllib.parse import urlencode

from tests.support.servers import Shared
from tests.support.service import BASIC, SECRET, Service, paid
from tests.support.tools import event, items, paidonce

CONFIG: Final = f"{BASIC}\n[server]\nmax_body_bytes = 200000\n"
CARD: Final = "4111 1111 1111 1111"


def evidence(service: Service, reply: Any) -> Any:
    return event(service, reply.json["event_id"])["evidence"]


def latest(service: Service) -> Any:
    """The evidence of what came last."""
    (newest,) = items(service, "/events", limit=1)
    return event(service, newest["id"])["evidence"]


def test_evidence_is_shown_with_secrets_masked(shared: Shared) -> None:
    """OPS-2 SEC-7"""
    service = shared.service
    said = paid("e-1") | {
        "card": {"number": CARD, "cvv": "123"},
        "note": f"my card is {CARD.replace(' ', '')}, the key {SECRET}",
        "password": ["a", {"b": "c"}],
    }
    found = evidence(service, service.deliver(said))
    body = json.loads(found["body"])
    assert body | {"card": 0, "note": 0, "password": 0} == said | {
        "card": 0,
        "note": 0,
        "password": 0,
    }
    assert body["card"] == {"number": "*** *** *** ***", "cvv": "***"}
    assert body["note"] == "my card is ***, the key ***"
    assert body["password"] == ["***", {"***": "***"}]
    assert found["headers"]["content-type"] == "application/json"
    assert (found["encoding"], found["is_truncated"]) == ("text", False)
    assert found["size"] == len(json.dumps(said).encode())


def test_evidence_of_forms_and_binary_bodies_is_shown(shared: Shared) -> None:
    """OPS-2: whatever was refused."""
    service = shared.service
    form = urlencode({"payment": CARD, "api_key": "guess", "name": "Анна"}).encode()
    headers = {"content-type": "application/x-www-form-urlencoded"}
    service.request("POST", "/webhooks/payments", form, headers)
    shown = latest(service)["body"]
    assert shown.startswith("payment=***+***+***+***&api_key=***&name=%D0%90")
    service.request("POST", "/webhooks/payments", b"\xff\x00" + CARD.encode(), headers)
    found = latest(service)
    assert found["encoding"] == "base64"
    assert b64decode(found["body"]) == b"\xff\x00*** *** *** ***"


def test_a_large_body_is_truncated(shared: Shared) -> None:
    """OPS-2"""
    service = shared.service
    said = paid("e-large") | {"note": "x" * 150_000}
    found = evidence(service, service.deliver(said))
    assert found["is_truncated"] is True
    assert found["size"] > 150_000
    assert len(found["body"]) == 64 * 1024


def test_a_read_key_does_not_see_evidence(shared: Shared) -> None:
    """OPS-2 SEC-6"""
    service = shared.service
    result = service.deliver(paid("e-scope")).json
    for scope, sees in (("read", False), ("operate", True)):
        made = paidonce(service.folder, "keys", "create", "--name", scope, "--scope", scope)
        found = service.api("GET", f"/events/{result['event_id']}", key=made.stdout.strip()).json
        assert (found["evidence"] is not None) is sees
        assert found["trail"]


def test_card_numbers_are_masked_in_the_log(shared: Shared) -> None:
    """SEC-7: and only that."""
    service = shared.service
    number = CARD.replace(" ", "")
    result = service.deliver(paid(number, event_id="who@example.com", status="succeeded")).json
    (line,) = service.log_lines(webhook_event_id=result["event_id"])
    assert line["external_payment_id"] == "***"
    assert line["external_event_id"] == "w***@example.com"
    assert (line["event_type"], line["amount"], line["source"]) == (
        "succeeded", "990.00", "payments",
    )  # fmt: skip
    (found,) = items(service, "/events", payment=number)
    assert found["payment"] == number, "operators find what they look for"
