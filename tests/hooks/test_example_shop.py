"""The example shop, run as a stranger runs it (FUL-5, USE-6)."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from standardwebhooks import Webhook

from paidonce.runtime.crashpoints import CrashPoint
from tests.support.host_programs import StartHost, start_host, stop
from tests.support.service import Reply, Service
from tests.support.tools import rows, until

__all__ = ["start_host"]

SHOP: Final = Path(__file__).parents[2] / "examples" / "shop"
SECRET: Final = "whsec_c2VjcmV0LXRoYXQtbm9ib2R5LWVsc2Uta25vd3M="
MOMENTS: Final = [
    f"{CrashPoint.COMMITTED}:2",
    # Of many empty claims at the start, too:
    pytest.param(f"{CrashPoint.CLAIMED}:12", marks=pytest.mark.soak),
    f"{CrashPoint.HOOKS_CALLED}:2",
    pytest.param(f"{CrashPoint.WORKER_COMMITTED}:12", marks=pytest.mark.soak),
]


@pytest.fixture
def shop(start_host: StartHost) -> Service:
    return start_host("shop:app", SHOP, SHOP_SECRET=SECRET)


def order_of(shop: Service) -> str:
    reply = shop.request("POST", "/mugs")
    assert reply.http == 201, reply.body
    reference: str = reply.json["reference"]
    return reference


def tell(shop: Service, kind: str, reference: str, amount: str = "12.50") -> Reply:
    """What the gateway says, signed by the SDK of Standard Webhooks; each time anew."""
    now = datetime.now(UTC)
    data = {"payment_id": f"p-{reference}", "order": reference}
    data |= {"amount": amount, "currency": "EUR"}
    body = json.dumps({"type": kind, "timestamp": "2026-11-15T10:00:00Z", "data": data})
    name = f"{kind.rpartition('.')[2]}-{reference}"
    headers = {
        "content-type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(SECRET).sign(name, now, body),
    }
    return shop.request("POST", "/pay/webhooks/shop", body.encode(), headers)


def state_of(shop: Service, reference: str) -> Any:
    reply = shop.request("GET", f"/mugs/{reference}")
    return reply.json["state"] if reply.http == 200 else None


def parcels(database_url: str) -> dict[str, int]:
    found = rows(database_url, "SELECT reference, count(*) AS n FROM parcels GROUP BY reference")
    return {row["reference"]: row["n"] for row in found}


def test_a_paid_mug_leaves_once_and_comes_back_with_its_money(
    shop: Service, database_url: str
) -> None:
    """FUL-5 FUL-3"""
    reference, unpaid = order_of(shop), order_of(shop)
    assert state_of(shop, reference) is None
    first = tell(shop, "payment.succeeded", reference)
    assert (first.http, first.json["status"]) == (200, "accepted")
    for _ in range(5):
        again = tell(shop, "payment.succeeded", reference)
        assert (again.http, again.json["status"]) == (200, "duplicate")
    assert until(lambda: state_of(shop, reference)) == "to be packed"
    assert parcels(database_url) == {reference: 1}
    order = shop.request(
        "GET", f"/pay/api/v1/orders/{reference}", headers={"authorization": f"Bearer {shop.key}"}
    )
    assert order.json["status"] == "PAID"
    assert tell(shop, "payment.refunded", reference).http == 200
    assert until(lambda: state_of(shop, reference) == "called back")
    assert parcels(database_url) == {reference: 1}
    assert state_of(shop, unpaid) is None


@pytest.mark.parametrize("moment", MOMENTS)
def test_whenever_the_shop_dies_each_paid_mug_leaves_once(
    start_host: StartHost, database_url: str, moment: str
) -> None:
    """FUL-5 REL-1 REC-2"""
    shop = start_host("shop:app", SHOP, SHOP_SECRET=SECRET)
    references = [order_of(shop) for _ in range(3)]
    stop(shop)
    dying = start_host("shop:app", SHOP, SHOP_SECRET=SECRET, PAIDONCE_CRASH_AT=moment)
    for reference in references:
        try:
            tell(dying, "payment.succeeded", reference)
        except OSError:
            break
    assert dying.process.wait(30) == -signal.SIGKILL
    shop = start_host("shop:app", SHOP, SHOP_SECRET=SECRET)
    for reference in references:
        assert tell(shop, "payment.succeeded", reference).http == 200
    assert until(lambda: len(parcels(database_url)) == 3)
    assert parcels(database_url) == dict.fromkeys(references, 1)
    applied = "SELECT count(*) AS n FROM payments WHERE applied_at IS NOT NULL"
    assert rows(database_url, applied) == [{"n": 3}]


def test_the_readme_s_own_gateway_pays(shop: Service) -> None:
    """USE-6"""
    reference = order_of(shop)
    url = f"http://127.0.0.1:{shop.port}/pay/webhooks/shop"
    told = [
        subprocess.run(
            [sys.executable, "pay.py", reference, url],
            cwd=SHOP,
            env={**os.environ, "SHOP_SECRET": SECRET},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert ["accepted" in told[0], "duplicate" in told[1]] == [True, True]
    assert until(lambda: state_of(shop, reference)) == "to be packed"
    readme = (SHOP / "README.md").read_text(encoding="utf-8")
    for named in ("uvicorn shop:app", "python pay.py", SECRET, "/pay/docs"):
        assert named in readme
    assert shop.request("GET", "/pay/docs").http == 200
