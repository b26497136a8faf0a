"""Payments, and what is done about those that were not applied."""

from uuid import UUID

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from paidonce.domain.payments import PaymentStatus
from paidonce.views import PaymentView
from paidonce.web.api.shapes import Limit, Page, Reason, Text, page
from paidonce.web.auth import Operator, Reader, Verbs


class Link(BaseModel):
    """Whose payment it is, or which order's; give one."""

    model_config = ConfigDict(extra="forbid")
    user_id: UUID | None = None
    email: Text | None = None
    order: Text | None = None


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.get("/api/v1/payments", tags=["payments"])
    async def list_payments(
        verbs: Verbs,
        actor: Reader,
        source: Text | None = None,
        status: PaymentStatus | None = None,
        applied: bool | None = None,
        email: Text | None = None,
        order: Text | None = None,
        review: Text | None = None,
        limit: Limit = 50,
        cursor: UUID | None = None,
    ) -> Page[PaymentView]:
        """Payments, the newest first. `applied=false`: money received and not applied.

        `review` is the code for which a person should look, such as `AMOUNT_MISMATCH`.
        """
        found = await verbs.payments(
            limit=limit,
            cursor=cursor,
            source=source,
            status=status,
            applied=applied,
            email=email,
            order=order,
            review=review,
        )
        return page(found)

    @api.get("/api/v1/payments/{payment_id}", tags=["payments"])
    async def get_payment(payment_id: UUID, verbs: Verbs, actor: Reader) -> PaymentView:
        """One payment."""
        return await verbs.payment(payment_id)

    @api.post("/api/v1/payments/{payment_id}/link", tags=["payments"])
    async def link_payment(
        payment_id: UUID, body: Link, verbs: Verbs, actor: Operator
    ) -> PaymentView:
        """Say whose payment it is, or which order's; it is applied at once if it can be.

        One that is not applied may be linked to something else than before.
        """
        return await verbs.link_payment(
            payment_id, actor, user_id=body.user_id, email=body.email, order=body.order
        )

    @api.post("/api/v1/payments/{payment_id}/accept", tags=["payments"])
    async def accept_payment(
        payment_id: UUID, body: Reason, verbs: Verbs, actor: Operator
    ) -> PaymentView:
        """Take a payment of another sum, or that came too late; it is applied if it can be."""
        return await verbs.accept_payment(payment_id, actor, body.reason)

    @api.post("/api/v1/payments/{payment_id}/want-refund", tags=["payments"])
    async def want_refund(
        payment_id: UUID, body: Reason, verbs: Verbs, actor: Operator
    ) -> PaymentView:
        """Mark a payment that is not applied for refund: it never will be."""
        return await verbs.want_refund(payment_id, actor, body.reason)
