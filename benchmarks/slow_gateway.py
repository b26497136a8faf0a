"""A slow gateway: PortOne's query for one payment, where every payment is paid."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import orjson
from aiohttp import web

from benchmarks.load import HOST
from benchmarks.portone_orders import API_SECRET, CURRENCY, PRICE_MINOR, transaction_of

DELAY_S = 0.3
STOP_TIMEOUT_S = 1.0


@asynccontextmanager
async def slow_gateway() -> AsyncIterator[str]:
    """Run it for the length of the block, and return its address."""
    app = web.Application()
    app.router.add_get("/payments/{id}", _payment)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_TIMEOUT_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        port = runner.addresses[0][1]
        yield f"http://{HOST}:{port}"
    finally:
        await runner.cleanup()


async def _payment(request: web.Request) -> web.Response:
    await asyncio.sleep(DELAY_S)
    if request.headers.get("Authorization") != f"PortOne {API_SECRET}":
        return web.Response(status=401)
    said = _paid(request.match_info["id"])
    return web.Response(body=orjson.dumps(said), content_type="application/json")


def _paid(payment_id: str) -> dict[str, object]:
    now = datetime.now(UTC).isoformat()
    return {
        "status": "PAID",
        "id": payment_id,
        "transactionId": transaction_of(payment_id),
        "channel": {"type": "LIVE"},
        "amount": {"total": PRICE_MINOR, "cancelled": 0},
        "currency": CURRENCY,
        "statusChangedAt": now,
        "paidAt": now,
    }
