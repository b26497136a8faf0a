"""HTTP routes of orders and bookings."""

from fastapi import FastAPI, Response

from paidonce.api.requests import FromQuery, Operator, Reader
from paidonce.core.input import OptionalReason, Reference
from paidonce.db.paging import Page
from paidonce.orders.model import BookingView, OrderQuery, OrderRequest, OrderSummary, OrderView
from paidonce.orders.service import OrderService


def add_to(api: FastAPI, orders: OrderService) -> None:
    @api.post("/api/v1/orders", status_code=201, tags=["orders"])
    async def create_order(body: OrderRequest, actor: Operator, answer: Response) -> OrderView:
        """Create an order. A repeat returns the existing order, with 200.

        Payments that were waiting for it are applied before the response. Other content under the
        same reference is 409.
        """
        order, is_new = await orders.create(body, actor)
        answer.status_code = 201 if is_new else 200
        return order

    @api.get("/api/v1/orders", tags=["orders"])
    async def list_orders(query: FromQuery[OrderQuery], actor: Reader) -> Page[OrderSummary]:
        """Orders, newest first."""
        return await orders.search(query)

    @api.get("/api/v1/orders/{reference:path}", tags=["orders"])
    async def get_order(reference: Reference, actor: Reader) -> OrderView:
        """One order with its payments and its trail: what operators did, the oldest first."""
        return await orders.get(reference)

    @api.post("/api/v1/orders/{reference:path}/cancel", tags=["orders"])
    async def cancel_order(
        reference: Reference, actor: Operator, body: OptionalReason | None = None
    ) -> OrderView:
        """Cancel an unpaid order. Later payments are kept and not applied."""
        return await orders.cancel(reference, actor, body.reason if body else None)

    @api.get("/api/v1/bookings/{reference:path}", tags=["orders"])
    async def get_booking(reference: Reference, actor: Reader) -> BookingView:
        """One booking."""
        return await orders.booking(reference)
