"""A service that pays out of wallets through a real gateway, and how a test talks to both."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from tests.support.payout_gateway import KEY, SECRET, PayingGateway, callback_body, signed
from tests.support.service import Reply, Service
from tests.support.tools import Row, rows

POLL_S: Final = 0.02
PATIENCE_S: Final = 120.0
CURRENCY: Final = "RUB"
SOURCES: Final = f"""
environment = "development"
[sources.bank]
provider = "standard"
secrets = ["{SECRET}"]
[sources.shop]
provider = "standard"
secrets = ["{SECRET}"]
"""


def config_for(gateway: PayingGateway, **settings: object) -> str:
    """Both sources, and a payment service that pays by this gateway, as impatient as a test."""
    chosen: dict[str, object] = {
        "gateway_url": gateway.url,
        "gateway_key": KEY,
        "source": "bank",
        "timeout_s": 0.5,
        "first_pause_s": 0.05,
        "longest_pause_s": 0.5,
        "rate": 1000.0,
    }
    lines = [
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
        for name, value in (chosen | settings).items()
    ]
    return SOURCES + "[payouts]\n" + "\n".join(lines) + "\n"


@dataclass
class Payer:
    """One service, its gateway and its database."""

    service: Service
    gateway: PayingGateway
    database_url: str

    def rows(self, sql: str, *values: object) -> list[Row]:
        return rows(self.database_url, sql, *values)

    def wallet(self, amount: str = "1000.00") -> str:
        """A wallet that somebody has topped up with so much."""
        made = self.service.api(
            "POST", "/wallets", {"owner": uuid4().hex, "currency": CURRENCY}
        ).json
        self.top_up(made["id"], amount)
        return str(made["id"])

    def top_up(self, wallet_id: str, amount: str) -> None:
        reference = f"top-up-{uuid4().hex}"
        order = {"reference": reference, "amount": amount, "currency": CURRENCY}
        made = self.service.api(
            "POST", "/orders", order | {"kind": "wallet", "wallet_id": wallet_id}
        )
        assert made.http == 201, made.body
        data = {"payment_id": reference, "order": reference, "amount": amount, "currency": CURRENCY}
        assert self.post("shop", "payment.succeeded", data).json["status"] == "success"

    def post(self, source: str, kind: str, data: dict[str, Any], name: str = "") -> Reply:
        """Deliver a signed webhook."""
        body = json.dumps({"type": kind, "data": data}).encode()
        return self.service.request(
            "POST", f"/webhooks/{source}", body, signed(name or uuid4().hex, body)
        )

    def call_back(
        self, transaction_id: str, word: str, name: str = "", amount: str = "10.00"
    ) -> Reply:
        """What the gateway would tell of one of its transactions."""
        body = callback_body(transaction_id, word, amount, CURRENCY)
        return self.service.request(
            "POST", "/webhooks/bank", body, signed(name or uuid4().hex, body)
        )

    def start(self, payment_id: str, wallet_id: str, amount: str = "10.00") -> Reply:
        asked = {"payment_id": payment_id, "wallet_id": wallet_id, "amount": amount}
        return self.service.api("POST", "/wallet-payments", asked)

    def payment(self, payment_id: str) -> Any:
        return self.service.api("GET", f"/wallet-payments/{payment_id}").json

    def view(self, payment_id: str) -> Reply:
        return self.service.api("GET", f"/payment-views/{payment_id}")

    def balance(self, wallet_id: str) -> tuple[str, str]:
        """What is in the wallet, and what of it is set aside."""
        wallet = self.service.api("GET", f"/wallets/{wallet_id}").json
        return wallet["balance"], wallet["reserved"]

    def ended(self, payment_id: str, status: str = "COMPLETED") -> Any:
        """The payment, once it has come to this and the query service shows it."""
        until(lambda: self.payment(payment_id)["status"] == status, payment_id)
        until(lambda: self.view(payment_id).http == 200, payment_id)
        until(lambda: self.view(payment_id).json["status"] == status, payment_id)
        return self.payment(payment_id)

    def log_of(self, payment_id: str) -> list[Row]:
        """What the outside was told of the payment, in the order in which it was."""
        return self.rows(
            "SELECT type, version, occurred_at, payload FROM outbox WHERE aggregate_type = "
            "'wallet-payment' AND aggregate_name = $1 ORDER BY seq",
            payment_id,
        )

    def types_of(self, payment_id: str) -> list[str]:
        return [row["type"] for row in self.log_of(payment_id)]


def until(is_so: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for something that is going to be so."""
    deadline_s = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"in vain: {what}"
        time.sleep(POLL_S)
