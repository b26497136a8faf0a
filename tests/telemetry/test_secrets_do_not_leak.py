"""What must not leak is put wherever somebody can put something, and then looked for (SEC-7).

Whoever adds a place where words may end up adds it to `PLACES`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode
from uuid import uuid4

import pytest

from paidonce.errors import PaidonceError
from paidonce.providers import load_providers, load_source_secrets
from paidonce.providers.contract import Provider, SampleEvent
from paidonce.settings.reading import load_settings
from tests.providers.cases.alipay import ADDRESSEES, alipay_form, china_time
from tests.providers.cases.standard import whsec
from tests.providers.conformance import FORM
from tests.support import gateways
from tests.support.servers import Shared
from tests.support.service import KEY, Reply, Service
from tests.support.tools import items

UNLIMITED: Final = gateways.CONFIG.replace("[limits]", '[limits]\napi_keys = ""')
CONFIG: Final = f"""{UNLIMITED}
[sources.kr]
provider = "portone"
secrets = ["{whsec("kr")}"]
api_url = "http://127.0.0.1:9"
api_secret = "canary-of-the-api"
[sources.kr_old]
provider = "portone"
version = "v1"
api_url = "http://127.0.0.1:9"
api_key = "canary-of-v1"
allow = ["127.0.0.0/8"]
api_secret = "canary-secret-of-v1"
[notifications.ops]
kind = "webhook"
url = "http://127.0.0.1:9/nobody-listens"
secret = "{whsec("ops")}"
every_s = 1
"""
CARD: Final = "5555341244441115"
EMAIL: Final = "canary.person@leak.example"
SAMPLE_FIELDS: Final = ("payment_id", "event_id", "order", "email", "plan_id", "status", "amount")

Send = tuple[Mapping[str, str], bytes]


@dataclass
class Told:
    """What the service has answered, as far as it went wrong."""

    shared: Shared
    errors: list[str] = field(default_factory=list)
    statuses: set[int] = field(default_factory=set)

    @property
    def service(self) -> Service:
        return self.shared.service

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Reply:
        clean = {name: _header(value) for name, value in headers.items()}
        reply = self.service.request(method, path, body, clean)
        self.statuses.add(reply.http)
        assert reply.http < 500, (method, path, reply)
        if reply.http >= 400:
            self.errors.append(f"{reply.headers} {reply.body.decode()}")
        return reply


PLACES: Final[Mapping[str, Callable[[Told], str]]] = {
    "standard output": lambda told: (told.service.folder / "stdout").read_text(encoding="utf-8"),
    "standard error": lambda told: (told.service.folder / "stderr").read_text(encoding="utf-8"),
    "metrics": lambda told: told.service.request("GET", "/metrics").body.decode(),
    "health": lambda told: told.service.request("GET", "/webhooks/health").body.decode(),
    "error answers": lambda told: "\n".join(told.errors),
    "audit log": lambda told: "\n".join(
        row["said"] for row in told.shared.rows("SELECT to_jsonb(a)::text AS said FROM audit_log a")
    ),
    "notifications": lambda told: "\n".join(
        row["said"]
        for row in told.shared.rows(
            "SELECT to_jsonb(n)::text AS said FROM notifications n"
            " UNION ALL SELECT to_jsonb(m)::text FROM notification_messages m"
        )
    ),
    "error messages": lambda told: "\n".join(
        row["said"]
        for row in told.shared.rows(
            "SELECT DISTINCT coalesce(error_message, '') AS said FROM webhook_events"
        )
    ),
}


def canaries(shared: Shared) -> dict[str, str]:
    settings = load_settings(shared.service.folder / "paidonce.toml")
    secrets = dict.fromkeys(load_source_secrets(settings))
    named = {f"secret {number}": secret for number, secret in enumerate(secrets)}
    return {"card": CARD, "spaced card": _spaced(CARD), "e-mail": EMAIL, "key": KEY, **named}


def words(shared: Shared) -> list[str]:
    """What is put everywhere: some of them alone, and all of them at once."""
    every = canaries(shared)
    alone = [every[name] for name in ("card", "e-mail", "secret 0")]
    return [*alone, " ".join(every.values())]


def test_what_must_not_leak_is_found_nowhere(shared: Shared) -> None:
    """SEC-7 REC-5, S3 "General webhook failure response": nor anything else of the inside."""
    told = Told(shared)
    for canary in words(shared):
        for source, (headers, body) in deliveries(shared, canary):
            told.request("POST", f"/webhooks/{source}", body, headers)
        for method, path, sent, headers in api_calls(shared.service, canary):
            told.request(method, path, sent, headers)
    assert told.statuses >= {200, 201, 400, 401, 404, 409, 413, 415}
    leaks = [
        (place, name, _around(text, canary))
        for place, look in PLACES.items()
        for text in [look(told)]
        for name, canary in canaries(shared).items()
        if (_around(text, canary))
    ]
    assert not leaks, leaks
    assert "c***@leak.example" in PLACES["standard output"](told), "the log was looked at in vain"
    assert "PAYLOAD_CONFLICT" in PLACES["notifications"](told), "nobody was told anything"
    for text in told.errors:
        assert not re.search(r"Traceback|asyncpg|/site-packages/|SELECT |paidonce\.", text), text


def deliveries(shared: Shared, canary: str) -> Iterator[tuple[str, Send]]:
    """Of every source: authentic, forged, malformed, conflicting, stale, of a wrong type, huge."""
    settings = load_settings(shared.service.folder / "paidonce.toml")
    for source, provider in load_providers(settings).items():
        for sent in authentic(source, provider, canary):
            yield source, sent
        headers, body = next(authentic(source, provider, uuid4().hex))
        marked = dict.fromkeys(("user-agent", "x-own", "authorization", "cookie"), canary)
        yield source, ({**headers, **marked}, body)
        for name in headers:
            yield source, ({**headers, name: canary}, body)
        yield source, (headers, body + canary.encode())
        yield source, (headers, b'{"a": "' + canary.encode() + b'", "a": 1')
        yield source, (headers, b"\xff" + canary.encode())
        yield source, ({**headers, "content-type": f"text/{_header(canary)}"}, body)
        yield source, (headers, canary.encode() * (300_000 // len(canary)))
        yield f"{quote(canary)}", (headers, body)


def authentic(source: str, provider: Provider, canary: str) -> Iterator[Send]:
    """Deliveries with the canary in one field after the other, and in all of them."""
    for name in SAMPLE_FIELDS:
        usual = SampleEvent(
            f"p-{uuid4().hex}", "5.00", "EUR", "paid", event_id=uuid4().hex, email="a@b.example"
        )
        changed: dict[str, Any] = {name: canary}
        sample = replace(usual, **changed)
        late = replace(sample, sent_at=datetime.now(UTC) - timedelta(hours=2))
        for one in (sample, replace(sample, amount="6.00"), late):
            if source == "cn":
                yield FORM, _alipay(one)
                continue
            try:
                yield provider.build_sample(one)
            except (PaidonceError, ArithmeticError, ValueError):
                continue  # no such webhook can be made


def _alipay(sample: SampleEvent) -> bytes:
    said = ADDRESSEES | {
        "notify_type": "trade_status_sync",
        "notify_id": sample.event_id or "",
        "notify_time": china_time(sample.sent_at),
        "charset": "utf-8",
        "sign_type": "RSA2",
        "trade_no": sample.payment_id,
        "out_trade_no": sample.order or "",
        "trade_status": "TRADE_SUCCESS" if sample.status == "paid" else sample.status,
        "total_amount": sample.amount,
        "buyer_logon_id": sample.email or "",
    }
    return alipay_form(said, gateways.SECRETS[0])


def api_calls(
    service: Service, canary: str
) -> Iterator[tuple[str, str, bytes | None, Mapping[str, str]]]:
    """Every call that is described, with the canary in its path, its query and its body."""
    key = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    description = service.request("GET", "/openapi.json").json
    (payment, *_) = items(service, "/payments", limit=1)
    for path, methods in description["paths"].items():
        for method, call in methods.items():
            if not path.startswith("/api/"):
                continue
            names = [one["name"] for one in call.get("parameters", []) if one["in"] == "query"]
            filled = re.sub(r"{\w+}", quote(canary, safe=""), path)
            known = re.sub(r"{\w+}", payment["id"], path)
            for place in dict.fromkeys((filled, known)):
                yield method.upper(), place, *_body(description, call, canary, key)
            for name in names:
                query = urlencode({name: canary})
                yield method.upper(), f"{filled}?{query}", *_body(description, call, canary, key)
            for wrong in (canary, f"Bearer {canary}", f"Bearer {canary}x"):
                yield (
                    method.upper(),
                    filled,
                    *_body(description, call, canary, {**key, "authorization": wrong}),
                )
    yield "GET", f"/api/v1/{quote(canary)}", None, key
    yield "POST", "/api/v1/users", canary.encode(), key
    yield "POST", "/api/v1/users", json.dumps({canary: canary}).encode(), key
    wrong_order = {"reference": canary, "amount": "5.00", "currency": "EUR"}
    for amount in ("5.00", "6.00"):
        yield "POST", "/api/v1/orders", json.dumps(wrong_order | {"amount": amount}).encode(), key
    yield "POST", f"/api/v1/orders/{quote(canary, safe='')}/cancel", None, key
    reason = json.dumps({"reason": f"because of {canary}"}).encode()
    yield "POST", f"/api/v1/payments/{payment['id']}/mark-for-refund", reason, key


def _body(
    description: Any, call: Any, canary: str, headers: Mapping[str, str]
) -> tuple[bytes | None, Mapping[str, str]]:
    if "requestBody" not in call:
        return None, headers
    schema = call["requestBody"]["content"]["application/json"]["schema"]
    reference = next(one["$ref"] for one in schema.get("anyOf", [schema]) if "$ref" in one)
    named = description["components"]["schemas"][reference.rpartition("/")[2]]
    return json.dumps(dict.fromkeys(named["properties"], canary)).encode(), headers


def _header(value: str) -> str:
    """As far as a header can hold it."""
    return re.sub(r"[\r\n]", "", value)


def _spaced(number: str) -> str:
    return " ".join(number[at : at + 4] for at in range(0, len(number), 4))


def _around(text: str, canary: str) -> str:
    """Where the canary stands in the text, in whatever spelling."""
    for spelling in {canary, quote(canary), quote(canary, safe=""), json.dumps(canary)[1:-1]}:
        at = text.lower().find(spelling.lower())
        if at >= 0:
            return text[max(at - 200, 0) : at + 100]
    return ""


@pytest.mark.parametrize("place", PLACES)
def test_every_place_has_something_to_look_at(shared: Shared, place: str) -> None:
    """SEC-7: a place that is empty proves nothing."""
    shared.service.request("POST", "/webhooks/payments", b"{}")
    assert PLACES[place](Told(shared, ["an error"])) or place == "audit log"
