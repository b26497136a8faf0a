"""HTTP routes of payments."""

from uuid import UUID

from fastapi import FastAPI, Response

from paidonce.api.requests import FromQuery, Operator, Reader
from paidonce.core.input import OptionalReason, Reason, Text
from paidonce.db.paging import Page
from paidonce.payments.model import PaymentDetail, PaymentQuery, PaymentView, RefundRequest
from paidonce.payments.service import PaymentService


class PaymentLink(OptionalReason):
    """The user or the order that the payment belongs to; give one, and a reason if you like."""

    user_id: UUID | None = None
    email: Text | None = None
    order: Text | None = None


def add_to(api: FastAPI, payments: PaymentService) -> None:
    @api.get("/api/v1/payments", tags=["payments"])
    async def list_payments(query: FromQuery[PaymentQuery], actor: Reader) -> Page[PaymentView]:
        """Payments, newest first. `applied=false`: money received and not applied."""
        return await payments.search(query)

    @api.get("/api/v1/payments/{payment_id}", tags=["payments"])
    async def get_payment(payment_id: UUID, actor: Reader) -> PaymentDetail:
        """One payment with its trail: what operators did with it, the oldest first."""
        return await payments.get(payment_id)

    @api.post("/api/v1/payments/{payment_id}/link", tags=["payments"])
    async def link_payment(payment_id: UUID, body: PaymentLink, actor: Operator) -> PaymentDetail:
        """Link a payment to a user or an order; it is applied if possible.

        A payment that is not applied may be linked again.
        """
        return await payments.link(
            payment_id,
            actor,
            user_id=body.user_id,
            email=body.email,
            order=body.order,
            reason=body.reason,
        )

    @api.post("/api/v1/payments/{payment_id}/accept", tags=["payments"])
    async def accept_payment(payment_id: UUID, body: Reason, actor: Operator) -> PaymentDetail:
        """Accept the captured sum of a payment for its order or plan, with a reason.

        A payment with another amount than the price is applied; the excess of an applied payment is
        applied, too. Of an expired payment only the expiry is lifted: the amount is still checked.
        A repeat is 200. Anything else is 409 `NOT_ACCEPTABLE` and names what fits.
        """
        return await payments.accept(payment_id, actor, body.reason)

    @api.post("/api/v1/payments/{payment_id}/mark-for-refund", tags=["payments"])
    async def mark_for_refund(payment_id: UUID, body: Reason, actor: Operator) -> PaymentDetail:
        """Mark a payment that is not applied for refund: it will not be applied."""
        return await payments.mark_for_refund(payment_id, actor, body.reason)

    @api.post("/api/v1/payments/{payment_id}/unmark-for-refund", tags=["payments"])
    async def unmark_for_refund(payment_id: UUID, body: Reason, actor: Operator) -> PaymentDetail:
        """Remove the mark for refund; the payment is applied if possible."""
        return await payments.unmark_for_refund(payment_id, actor, body.reason)

    @api.post("/api/v1/payments/{payment_id}/refunds", status_code=201, tags=["payments"])
    async def record_refund(
        payment_id: UUID, body: RefundRequest, actor: Operator, answer: Response
    ) -> PaymentDetail:
        """Record a refund that was made elsewhere; what it pays for is taken back.

        A repeat is 200. Another payment or amount under the same `refund_id` is 409
        `IDEMPOTENCY_CONFLICT`; more than the payment has left is 422 `REFUND_EXCESS`.
        """
        payment, is_new = await payments.record_refund(payment_id, actor, body)
        answer.status_code = 201 if is_new else 200
        return payment
