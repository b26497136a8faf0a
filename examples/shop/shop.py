"""A shop that sells mugs, with Paidonce inside: `uvicorn shop:app` in this folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from fastapi import FastAPI, HTTPException

import paidonce

PRICE = "12.50"
CURRENCY = "EUR"
PARCELS = """
CREATE TABLE IF NOT EXISTS parcels (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reference text NOT NULL,
    state     text NOT NULL DEFAULT 'to be packed'
)
"""

pay = paidonce.asgi(Path(__file__).with_name("paidonce.toml"))


@paidonce.on("payment.succeeded")
async def pack(hook_event: paidonce.HookEvent) -> None:
    """An order is paid: send one mug."""
    if hook_event.order is None:
        raise paidonce.Reject("NO_ORDER", "we sell by order only")
    await hook_event.connection.execute(
        "INSERT INTO parcels (reference) VALUES ($1)", hook_event.order.reference
    )


@paidonce.on("payment.refunded")
async def call_back(hook_event: paidonce.HookEvent) -> None:
    """The payment was refunded: call the mug back."""
    await hook_event.connection.execute(
        "UPDATE parcels SET state = 'called back' WHERE reference = $1", hook_event.payment.order
    )


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run Paidonce while the shop runs."""
    async with pay.lifespan():
        async with pay.connection() as connection:
            await connection.execute(PARCELS)
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/pay", pay)


@app.post("/mugs", status_code=201)
async def buy_a_mug() -> dict[str, str]:
    """Order a mug. The gateway gets the reference and sends it back with the payment."""
    order = paidonce.OrderRequest(reference=f"mug-{uuid4()}", amount=PRICE, currency=CURRENCY)
    await pay.services.orders.create(order)
    return {"reference": order.reference, "amount": PRICE, "currency": CURRENCY}


@app.get("/mugs/{reference}")
async def where_is_my_mug(reference: str) -> dict[str, str]:
    """Return the state of the parcel."""
    async with pay.connection() as connection:
        state = await connection.fetchval(
            "SELECT state FROM parcels WHERE reference = $1", reference
        )
    if state is None:
        raise HTTPException(404, "not paid yet")
    return {"reference": reference, "state": state}
