"""Orders, and the bookings that they are for."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Response
from fastapi import status as http
from pydantic import BaseModel, ConfigDict, Field

from paidonce.domain.orders import Kind, OrderStatus
from paidonce.operations import OrderRequest
from paidonce.views import BookingView, OrderSummary, OrderView
from paidonce.web.api.shapes import Limit, Page, Reference, Text, page
from paidonce.web.auth import Operator, Reader, Verbs


class NewOrder(BaseModel):
    """What is to be paid for.

    A `subscription` needs `user_id` or `email`, and the `plan_id` of its period unless there is a
    default plan; a `wallet` top-up needs `wallet_id`, or `user_id` for the user's own wallet.
    `sources`, if given, are the only ones that may pay it.
    """

    model_config = ConfigDict(extra="forbid")
    reference: Reference
    amount: Text
    currency: Text
    kind: Kind = Kind.ORDER
    user_id: UUID | None = None
    email: Text | None = None
    plan_id: Text | None = None
    wallet_id: UUID | None = None
    sources: Annotated[list[Text], Field(max_length=100)] | None = None


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.post("/api/v1/orders", status_code=http.HTTP_201_CREATED, tags=["orders"])
    async def create_order(
        body: NewOrder, verbs: Verbs, actor: Operator, answer: Response
    ) -> OrderView:
        """Create an order. A repeat returns the one that is there, with 200.

        What was paid for it before is applied when the answer arrives. Other content under the
        same reference is 409.
        """
        asked = body.model_dump(exclude={"sources"})
        sources = None if body.sources is None else tuple(body.sources)
        order, is_new = await verbs.create_order(OrderRequest(**asked, sources=sources), actor)
        answer.status_code = http.HTTP_201_CREATED if is_new else http.HTTP_200_OK
        return order

    @api.get("/api/v1/orders", tags=["orders"])
    async def list_orders(
        verbs: Verbs,
        actor: Reader,
        status: OrderStatus | None = None,
        kind: Kind | None = None,
        email: Text | None = None,
        user_id: UUID | None = None,
        limit: Limit = 50,
        cursor: UUID | None = None,
    ) -> Page[OrderSummary]:
        """Orders, the newest first. `email` is the address that the order itself names."""
        found = await verbs.orders(
            limit=limit, cursor=cursor, status=status, kind=kind, email=email, user_id=user_id
        )
        return page(found)

    @api.get("/api/v1/orders/{reference:path}", tags=["orders"])
    async def get_order(reference: Reference, verbs: Verbs, actor: Reader) -> OrderView:
        """One order and its payments."""
        return await verbs.order(reference)

    @api.post("/api/v1/orders/{reference:path}/cancel", tags=["orders"])
    async def cancel_order(reference: Reference, verbs: Verbs, actor: Operator) -> OrderView:
        """Close an order that is not paid. Money that comes later is kept, and never applied."""
        return await verbs.close_order(reference, actor)

    @api.get("/api/v1/bookings/{reference:path}", tags=["orders"])
    async def get_booking(reference: Reference, verbs: Verbs, actor: Reader) -> BookingView:
        """One booking."""
        return await verbs.booking(reference)
