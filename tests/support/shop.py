"""A merchant's shop, seen from outside: orders over the API, his gateway's webhooks, signed."""

import base64
import hashlib
import hmac
import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from tests.support.service import BASIC, Reply, Service
from tests.support.tools import items

SECRET: Final = b"what the gateway and the shop know"
WHSEC: Final = "whsec_" + base64.b64encode(SECRET).decode()
CONFIG: Final = f"""{BASIC}
[sources.shop]
provider = "standard"
secrets = ["{WHSEC}"]
[sources.till]
provider = "standard"
secrets = ["{WHSEC}"]
"""
"""Two sources, so that an order can be limited to one of them."""

Send = Callable[[str, bytes, dict[str, str]], Reply]


@dataclass(frozen=True)
class Shop:
    """What a merchant and his gateway do. Names are made unique, so that tests can share one."""

    service: Service

    def name(self, kind: str) -> str:
        return f"{kind}-{uuid4().hex[:12]}"

    def order(self, reference: str | None = None, **said: Any) -> str:
        """Create an order of 990.00 RUB, unless it says otherwise, and return its reference."""
        reply = self.try_order(reference or self.name("order"), **said)
        assert reply.http == 201, reply.body
        return str(reply.json["reference"])

    def try_order(self, reference: str, **said: Any) -> Reply:
        usual = {"reference": reference, "amount": "990.00", "currency": "RUB"}
        return self.service.api("POST", "/orders", {**usual, **said})

    def found(self, reference: str) -> Any:
        reply = self.service.api("GET", f"/orders/{reference}")
        assert reply.http == 200, reply.body
        return reply.json

    def status(self, reference: str) -> str:
        return str(self.found(reference)["status"])

    def booking(self, reference: str) -> Any:
        return self.service.api("GET", f"/bookings/{reference}").json

    def wallet(self, currency: str = "RUB") -> str:
        owner = {"owner": self.name("owner"), "currency": currency}
        return str(self.service.api("POST", "/wallets", owner).json["id"])

    def balance(self, wallet_id: str) -> tuple[str, str]:
        """What is in the wallet, and what is owed."""
        found = self.service.api("GET", f"/wallets/{wallet_id}").json
        return found["balance"], found["receivable"]

    def payment(self, name: str, source: str = "shop") -> Any:
        """The only payment that the gateway knows by this name."""
        (payment,) = [
            one
            for one in items(self.service, "/payments", source=source, limit=500)
            if name in {each["id"] for each in one["ids"]}
        ]
        return payment

    def act(self, payment: str, verb: str, said: Any) -> Reply:
        """What an operator does with a payment."""
        return self.service.api("POST", f"/payments/{self.payment(payment)['id']}/{verb}", said)

    def paid(self, payment: str, reference: str | None = None, **data: Any) -> Reply:
        return self.hears("payment.succeeded", payment, order=reference, **data)

    def refunded(self, payment: str, total: str = "990.00", **data: Any) -> Reply:
        return self.hears("payment.refunded", payment, amount=total, **data)

    def hears(
        self,
        kind: str,
        payment: str,
        *,
        event_id: str | None = None,
        source: str = "shop",
        send: Send | None = None,
        at: str = "2026-11-15T10:00:00Z",
        **data: Any,
    ) -> Reply:
        """Deliver an event, signed."""
        usual = {"payment_id": payment, "amount": "990.00", "currency": "RUB"}
        told = {key: value for key, value in (usual | data).items() if value is not None}
        body = json.dumps({"type": kind, "timestamp": at, "data": told}).encode()
        path, headers = f"/webhooks/{source}", signed(body, event_id or f"msg_{uuid4().hex}")
        if send is not None:
            return send(path, body, headers)
        return self.service.request("POST", path, body, headers)


def signed(body: bytes, event_id: str) -> dict[str, str]:
    """The headers of Standard Webhooks, made without the package that checks them."""
    timestamp = str(int(time.time()))
    content = f"{event_id}.{timestamp}.".encode() + body
    mac = base64.b64encode(hmac.new(SECRET, content, hashlib.sha256).digest()).decode()
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{mac}",
    }


@contextmanager
def open_line(service: Service) -> Iterator[Send]:
    """A connection that stays open, for who has much to send."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)

    def send(path: str, body: bytes, headers: dict[str, str]) -> Reply:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return Reply(response.status, dict(response.getheaders()), response.read())

    try:
        yield send
    finally:
        connection.close()
