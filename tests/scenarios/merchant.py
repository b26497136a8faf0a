"""A merchant who sells through four gateways, seen from outside: sockets, the API, logs, rows."""

import http.client
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Any, Final
from uuid import uuid4

from tests.scenarios.gateways import CURRENCIES, Sale, Sent
from tests.support.servers import Shared
from tests.support.service import Reply, Service
from tests.support.tools import Row, items, until

PROVIDERS: Final = {"cn": "alipay", "creem": "creem", "payments": "tilda", "shop": "standard"}
NUMBERS: Final = count(2)


@dataclass(frozen=True)
class Merchant:
    """What a merchant does and sees. Names are made unique, so that tests can share a server."""

    shared: Shared

    @property
    def service(self) -> Service:
        return self.shared.service

    def sale(self, source: str, amount: str = "990.00", **order: Any) -> Sale:
        """An order that waits for its money; at Tilda, a user who does."""
        if source == "payments":
            email = f"{uuid4().hex[:12]}@example.com"
            self.service.user(email)
            return Sale(source, email=email, amount=Decimal(amount))
        currency = order.pop("currency", CURRENCIES[source])
        said = {"reference": f"order-{uuid4().hex[:12]}", "amount": amount, "currency": currency}
        reply = self.service.api("POST", "/orders", {**said, **order})
        assert reply.http == 201, reply.body
        return Sale(source, said["reference"], amount=Decimal(amount), currency=currency)

    def wallet(self, currency: str) -> str:
        said = {"owner": uuid4().hex, "currency": currency}
        return str(self.service.api("POST", "/wallets", said).json["id"])

    def balance(self, wallet_id: str) -> Decimal:
        return Decimal(self.service.api("GET", f"/wallets/{wallet_id}").json["balance"])

    def send(self, sent: Sent, address: str = "127.0.0.1", **headers: str) -> Reply:
        """One request on a connection of its own, from an address of this machine."""
        return request(
            self.service, "POST", sent.path, sent.body, {**sent.headers, **headers}, address
        )

    def order(self, sale: Sale) -> Any:
        reply = self.service.api("GET", f"/orders/{sale.order}")
        assert reply.http == 200, reply.body
        return reply.json

    def is_given(self, sale: Sale) -> bool:
        """Whether the buyer has got what he paid for."""
        if sale.order is not None:
            return bool(self.order(sale)["status"] == "PAID")
        found = items(self.service, "/subscriptions", email=sale.email)
        return any(one["status"] == "ACTIVE" for one in found)

    def payments(self, sale: Sale) -> list[Any]:
        """The payments that the gateway knows by the sale's name."""
        found = items(self.service, "/payments", source=sale.source, limit=500)
        return [one for one in found if sale.payment in {each["id"] for each in one["ids"]}]

    def payment(self, sale: Sale) -> Any:
        (found,) = self.payments(sale)
        return found

    def events(self, sale: Sale, **query: Any) -> list[Any]:
        """The events of the sale's payment."""
        query = {"source": sale.source, "payment": sale.payment, "limit": 500} | query
        return items(self.service, "/events", **query)

    def event(self, sale: Sale) -> Any:
        """The only event of the sale's payment, with its trail."""
        (found,) = self.events(sale)
        return self.shown(found["id"])

    def shown(self, event_id: str) -> Any:
        reply = self.service.api("GET", f"/events/{event_id}")
        assert reply.http == 200, reply.body
        return reply.json

    def actions(self, event_id: str) -> list[str]:
        return [item["action"] for item in self.shown(event_id)["trail"]]

    def evidence(self, sent: Sent) -> list[Row]:
        """The rows that hold these raw bytes, wherever deliveries are kept."""
        sql = "SELECT * FROM webhook_events WHERE raw_body = $1"
        return self.shared.rows(sql, sent.body)

    def lines(self, **wanted: Any) -> list[dict[str, Any]]:
        """The outcomes in the log that have these fields; the log may be a moment late."""
        found = until(lambda: self.service.log_lines(**wanted))
        return [line for line in found if line.get("event") == "webhook_outcome"]

    def metric(self, name: str, source: str) -> float:
        return self.service.metric(name, provider=PROVIDERS[source])


def request(
    service: Service,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
    address: str,
) -> Reply:
    """One request from an address of this machine; all of 127.0.0.0/8 is."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", service.port, timeout=30, source_address=(address, 0)
    )
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, names, response.read())
    finally:
        connection.close()


def new_address() -> str:
    """An address that has sent nothing so far."""
    number = next(NUMBERS)
    return f"127.7.{number // 250}.{number % 250 + 1}"


def times(number: int, action: Callable[[], Reply]) -> list[int]:
    """The statuses of so many answers, one after the other."""
    return [action().http for _ in range(number)]
